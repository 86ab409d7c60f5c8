import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embodied.errors import RefusedInput
from embodied.runs.folder import create_run_folder
from embodied.runs.lock import writing_alone
from embodied.runs.metrics import MetricsLog, read_metrics, wilson_interval
from embodied.runs.progress import RunProgress, spoken_time


def test_wilson_interval_of_known_cases():
    # 8 of 10: (0.4901, 0.9433), Agresti and Coull's textbook example values
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.4901625, abs=1e-6)
    assert high == pytest.approx(0.9433178, abs=1e-6)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 64)[0] == 0.0
    assert wilson_interval(64, 64)[1] == 1.0


def test_a_resumed_log_drops_what_will_be_computed_again_and_a_half_written_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, None)
    for iteration in range(4):
        log.write(iteration, iteration * 10, 1.0, {"a": float(iteration)})
    log.close()
    path.write_text(path.read_text() + '{"iteration": 4, "env_st')
    assert [r["iteration"] for r in read_metrics(path)] == [0, 1, 2, 3]
    log = MetricsLog(path, None, after=1)
    log.write(2, 20, 1.0, {"a": 9.0})
    log.close()
    assert [(r["iteration"], r["metrics"]["a"]) for r in read_metrics(path)] == [(0, 0.0), (1, 1.0), (2, 9.0)]


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.write(1, 640, 1.0, {"train/return": 2.5})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/return")
    assert [(e.step, e.value) for e in events] == [(640, 2.5)]


def test_run_folders_do_not_collide_and_latest_leads_to_the_newest(tmp_path):
    first = create_run_folder(tmp_path, "recipe")
    second = create_run_folder(tmp_path, "recipe")
    assert first.path != second.path
    assert (tmp_path / "recipe" / "latest").resolve() == second.path.resolve()


def test_a_used_or_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    with pytest.raises(RefusedInput, match="is not empty"):
        create_run_folder(tmp_path, "recipe", tmp_path / "used")
    (tmp_path / "plain_file").write_text("")
    with pytest.raises(RefusedInput, match="cannot be written"):
        create_run_folder(tmp_path / "plain_file", "recipe")


def test_progress_without_a_terminal_prints_plain_lines_with_time_left(tmp_path, capsys):
    with RunProgress(tmp_path / "log.txt", total=100, unit="steps") as progress:
        progress.say("hello [world]")
        progress.update(50, "half way")
    out = capsys.readouterr().out
    assert "hello [world]" in out
    assert "50 of 100 steps" in out
    assert "left" in out
    assert "half way" in (tmp_path / "log.txt").read_text()


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    code = (
        "import pathlib, sys\n"
        "from embodied.runs.progress import RunProgress\n"
        "with RunProgress(pathlib.Path(sys.argv[1]), total=10, unit='steps') as screen:\n"
        "    screen.say('begun')\n"
        "    sys.stdin.readline()\n"
        "    screen.say('nobody reads this')\n"
        "    screen.update(10, 'done')\n"
        "print('nor this', flush=True)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "log.txt")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"begun\n"
        run.stdout.close()
        run.stdin.write(b"go on\n")
        run.stdin.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0
    assert "10 of 10 steps" in (tmp_path / "log.txt").read_text()


def test_the_rate_of_a_resumed_run_leaves_out_what_was_done_before_and_the_start_up(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("embodied.runs.progress.time.monotonic", lambda: now[0])
    with RunProgress(tmp_path / "log.txt", total=1200, unit="steps") as progress:
        now[0] = 60.0
        progress.count_from(1000)
        now[0] = 70.0
        progress.update(1100, "")
        now[0] = 430.0
        progress.update(1130, "")
    assert "1,100 of 1,200 steps, 10/s, at most 10 s left" in (tmp_path / "log.txt").read_text()
    assert "1,130 of 1,200 steps, 3 s each, at most 3 min 19 s left" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_times_are_spoken(seconds, text):
    assert spoken_time(seconds) == text


def test_a_resumed_tensorboard_keeps_the_curve_up_to_there_and_drops_the_rest(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, events = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    with MetricsLog(path, events) as log:
        for iteration in range(6):
            log.write(iteration, iteration * 1024, 1.0, {"a": 1.0})
    with MetricsLog(path, events, after=3) as log:
        for iteration in (4, 5, 6):
            log.write(iteration, iteration * 1024, 1.0, {"a": 2.0})
    read = EventAccumulator(str(events)).Reload().Scalars("a")
    assert [(e.step // 1024, e.value) for e in read] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]


def test_a_second_process_cannot_write_a_folder(tmp_path):
    program = """
import sys
from pathlib import Path
from embodied.runs.lock import writing_alone
with writing_alone(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(RefusedInput, match="another process is writing"), writing_alone(tmp_path):
            pytest.fail("both had it")
        other.kill()
    with writing_alone(tmp_path):  # it ends with the process, however that ends
        pass


def test_a_folder_called_latest_is_left_alone(tmp_path):
    (tmp_path / "recipe" / "latest").mkdir(parents=True)
    made = create_run_folder(tmp_path, "recipe")
    assert made.path.is_dir()
    assert sorted(path.name for path in (tmp_path / "recipe").iterdir()) == sorted([made.path.name, "latest"])


def test_two_runs_that_begin_in_the_same_second_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path, **_: False)  # as the other sees it, a moment before
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: create_run_folder(tmp_path, "small").path, range(4)))
    assert len(set(made)) == 4


def test_a_refused_run_gives_latest_back_to_the_one_before(tmp_path):
    first, second = create_run_folder(tmp_path, "small"), create_run_folder(tmp_path, "small")
    latest = tmp_path / "small" / "latest"
    assert latest.resolve() == second.path
    second.discard()
    assert latest.resolve() == first.path
    first.discard()
    assert not latest.is_symlink()
