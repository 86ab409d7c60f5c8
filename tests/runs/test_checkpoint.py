import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from embodied.errors import CheckpointError
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.state_file import read_state, write_state
from policies.vla.bundle import Bundle

STATE = {
    "weights": {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor(3, dtype=torch.int64)},
    "list": [1, 2.5, "text", None, True, torch.tensor([False, True])],
    "big": 2**62 + 1,
    "third": 1 / 3,
}


def export(folder):
    folder.mkdir(parents=True)
    (folder / "policy.json").write_text("{}")


def save(store, step, state, write=export):
    with store.writing(step, state) as folder:
        write(folder / "policy")
    return store.latest()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_state_is_read_back_to_the_bit(tmp_path):
    write_state(tmp_path / "state", STATE)
    assert same(read_state(tmp_path / "state"), STATE)


def test_tensors_that_share_memory_are_stored_apart(tmp_path):
    whole = torch.arange(4.0)
    write_state(tmp_path / "state", {"whole": whole, "part": whole[1:3]})
    assert same(read_state(tmp_path / "state"), {"whole": whole, "part": whole[1:3].clone()})


def test_a_value_that_json_and_safetensors_cannot_hold_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="state/a/1 is a object"):
        write_state(tmp_path / "state", {"a": [1, object()]})
    with pytest.raises(CheckpointError, match="keys must be strings"):
        write_state(tmp_path / "state", {"a": {1: 2}})


def test_saved_checkpoints_load_and_old_ones_go(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 10):
        save(store, step, {**STATE, "step": step})
    assert [c.step for c in store.all()] == [2, 10]
    assert store.latest().state()["step"] == 10
    assert (store.latest().folder / "policy" / "policy.json").exists()


def test_a_damaged_checkpoint_is_refused_naming_the_file(tmp_path):
    checkpoint = save(CheckpointStore(tmp_path, keep=2), 1, STATE)
    path = checkpoint.folder / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged: state\.safetensors"):
        checkpoint.state()


def test_a_failed_write_leaves_the_previous_checkpoint_and_says_why(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, STATE)

    def disk_full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device"):
        save(store, 2, STATE, disk_full)
    assert [c.step for c in store.all()] == [1]
    assert same(store.latest().state(), STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]


def test_what_the_disk_changed_while_writing_is_found_and_the_previous_checkpoint_stays(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, STATE)

    def faulty(path):
        if path.name == "state.safetensors":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1  # a number: the file as such is still in order
            path.write_bytes(data)

    monkeypatch.setattr("embodied.runs.checkpoint.flush_to_disk", faulty)
    with pytest.raises(CheckpointError, match=r"state\.safetensors differ.*Earlier checkpoints are intact"):
        save(store, 2, STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]
    assert same(store.latest().state(), STATE)


def test_a_disk_that_is_really_full_leaves_the_previous_checkpoint_and_holds_nothing(tmp_path):
    """No file of this process may pass 64 KiB, so that the tensors' writer meets what it meets on a full disk."""
    script = textwrap.dedent("""
        import resource, signal, sys, torch
        from pathlib import Path
        from embodied.errors import CheckpointError
        from embodied.runs.checkpoint import CheckpointStore
        from embodied.runs.state_file import keep_evidence
        store = CheckpointStore(Path(sys.argv[1]), keep=1)
        with store.writing(1, {"x": torch.zeros(8)}):
            pass
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            with store.writing(2, {"x": torch.zeros(1 << 18)}):
                pass
        except CheckpointError as error:
            print(error)
        print(keep_evidence(Path(sys.argv[1]) / ".." / "batch", {"x": torch.zeros(1 << 18)}))
    """)
    folder = tmp_path / "checkpoints"
    words = [sys.executable, "-c", script, str(folder)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "could not write a checkpoint to" in said
    assert "Earlier checkpoints are intact" in said
    assert "The batch could not be kept" in said
    assert [path.name for path in folder.iterdir()] == ["step_1"]


def test_a_process_killed_while_saving_leaves_only_complete_checkpoints(tmp_path):
    script = textwrap.dedent("""
        import sys, torch
        from pathlib import Path
        from embodied.runs.checkpoint import CheckpointStore
        store = CheckpointStore(Path(sys.argv[1]), keep=3)
        step = 0
        while True:
            step += 1
            with store.writing(step, {"x": torch.full((200_000,), float(step)), "step": step}):
                pass
            print(step, flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for _ in range(4):
        last = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    latest = CheckpointStore(tmp_path, keep=3).latest()
    assert latest.step >= last
    state = latest.state()
    assert state["step"] == latest.step
    assert bool((state["x"] == latest.step).all())


def test_a_half_written_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "step_5").mkdir()
    (tmp_path / "step_5" / "state.json").write_text(json.dumps({}))
    assert CheckpointStore(tmp_path, keep=1).latest() is None


def test_an_old_checkpoint_that_cannot_be_removed_is_said_and_the_new_one_counts(tmp_path, monkeypatch, caplog):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, STATE)
    genuine = shutil.rmtree

    def stuck(path, *rest, **options):
        if path == store.path(1):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        return genuine(path, *rest, **options)

    monkeypatch.setattr(shutil, "rmtree", stuck)
    save(store, 2, STATE)
    assert store.latest().step == 2
    assert "step_1 cannot be removed: Device or resource busy" in caplog.text
    monkeypatch.setattr(shutil, "rmtree", genuine)
    save(store, 3, STATE)
    assert [checkpoint.step for checkpoint in store.all()] == [3]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
def test_a_vlas_tokenizer_that_does_not_fit_on_the_disk_fails_as_the_rest_of_a_checkpoint_does(tmp_path):
    def write(folder):
        folder.mkdir()
        (folder / "tokenizer.json").symlink_to("/dev/full")
        Bundle.preset("tiny").write(folder)

    with pytest.raises(CheckpointError, match=r"could not write a checkpoint .* tokenizer .*No space left"):
        save(CheckpointStore(tmp_path, keep=1), 1, STATE, write)
