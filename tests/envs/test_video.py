"""Recording: every test decodes the files that real ffmpeg processes wrote."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import timeit
from collections.abc import Callable

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from embodied.errors import RefusedInput, WorkerError
from envs.video import Keep, Overlay, VideoRecorder, codec, read_frames, side_by_side, video_info
from envs.video.overlay import FAILURE_COLOUR, SUCCESS_COLOUR, draw_overlay, enlarge


def flat(colour: tuple[int, int, int], height: int = 64, width: int = 96) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def numbered(index: int, height: int = 64, width: int = 96) -> np.ndarray:
    """A picture whose grey level tells its number, far enough apart to survive compression."""
    return flat((index * 5,) * 3, height, width)


def numbers_in(path) -> list[int]:
    return [round(float(frame[8:-8, 8:-8].mean()) / 5) for frame in read_frames(path)]


def near(pixel: np.ndarray, colour: tuple[int, int, int], tolerance: int = 45) -> bool:
    return bool(np.abs(pixel.astype(int) - colour).max() <= tolerance)


def test_every_frame_arrives_in_order_at_the_given_rate(tmp_path):
    with VideoRecorder(tmp_path, fps=25, overlay=False) as recorder:
        for index in range(40):
            recorder.add(0, numbered(index))
        path = recorder.end_episode(0, success=True, name="push")
    assert path == tmp_path / "push_success.mp4"
    assert numbers_in(path) == list(range(40))
    info = video_info(path)
    assert (info.width, info.height, info.fps, info.frames) == (96, 64, 25.0, 40)


def test_file_is_h264_in_yuv420p_with_its_index_in_front(tmp_path):
    with VideoRecorder(tmp_path) as recorder:
        recorder.add(0, numbered(3))
        path = recorder.end_episode(0)
    said = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)], capture_output=True, text=True).stderr
    assert "Video: h264" in said
    assert "yuv420p" in said
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # a browser can play it while it loads


@pytest.mark.parametrize(("height", "width"), [(63, 97), (64, 97), (63, 96), (1, 1)])
def test_odd_sizes_gain_one_repeated_line(tmp_path, height, width):
    with VideoRecorder(tmp_path, overlay=False) as recorder:
        recorder.add(0, flat((200, 40, 40), height, width))
        path = recorder.end_episode(0)
    info = video_info(path)
    assert (info.height, info.width) == (height + height % 2, width + width % 2)
    frame = next(read_frames(path))
    assert near(frame[-1, -1], (200, 40, 40), tolerance=12)


def test_torch_pictures_are_recorded_like_numpy_ones(tmp_path):
    with VideoRecorder(tmp_path, overlay=False) as recorder:
        for index in range(5):
            recorder.add(0, torch.from_numpy(numbered(index)))
            recorder.add(1, torch.from_numpy(numbered(index)).permute(1, 0, 2).permute(1, 0, 2))
        paths = [recorder.end_episode(env) for env in (0, 1)]
    assert [numbers_in(path) for path in paths] == [list(range(5))] * 2


def test_overlay_shows_instruction_numbers_bars_and_outcome_around_an_untouched_scene():
    scene = flat((90, 90, 90), 300, 320)
    bare = draw_overlay(scene, Overlay())
    top = (bare.shape[0] - 300) * 29 // 59
    full = draw_overlay(scene, Overlay("stack the cubes", 12, 0.5, True, [1.0, -1.0, 0.0], 0.25))
    assert full.shape == bare.shape  # the size does not depend on what is written
    differs = (full != bare).any(axis=2)
    assert differs[:top].any()  # the instruction
    assert differs[top + 300 :].any()  # numbers, word and bars
    assert not differs[top + 20 : top + 280, 20:300].any()
    assert near(full[top + 150, 0], SUCCESS_COLOUR, 0)
    failed = draw_overlay(scene, Overlay(success=False))
    assert near(failed[top + 150, 0], FAILURE_COLOUR, 0)


def test_action_bars_grow_with_the_action_and_change_colour_with_its_sign():
    scene = flat((0, 0, 0), 300, 320)

    def coloured(action: list[float], colour: tuple[int, int, int]) -> int:
        return int((draw_overlay(scene, Overlay(action=action)) == colour).all(axis=2).sum())

    blue, orange = (86, 156, 255), (255, 170, 80)
    assert coloured([1.0], blue) > 1.5 * coloured([0.5], blue) > 0
    assert coloured([-1.0], orange) > 0
    assert coloured([-1.0], blue) == 0
    assert coloured([float("nan")], FAILURE_COLOUR) > 0


def test_overlay_survives_compression(tmp_path):
    overlay = Overlay("push the cube to the target", 7, 0.1, True, [0.9, -0.9], 1.5)
    with VideoRecorder(tmp_path) as recorder:
        recorder.add(0, flat((90, 90, 90), 256, 256), overlay)
        path = recorder.end_episode(0, success=True)
    expected = draw_overlay(flat((90, 90, 90), 256, 256), overlay)
    decoded = next(read_frames(path))
    assert decoded.shape[:2] == tuple(n + n % 2 for n in expected.shape[:2])
    gap = np.abs(decoded[: expected.shape[0], : expected.shape[1]].astype(int) - expected)
    assert gap.mean() < 6


def test_small_pictures_are_enlarged_until_text_is_readable():
    assert draw_overlay(flat((0, 0, 0), 64, 64), Overlay()).shape[1] == 256
    assert draw_overlay(flat((0, 0, 0), 300, 300), Overlay()).shape[1] == 300


def test_successes_and_failures_have_names_of_their_own_and_nothing_is_overwritten(tmp_path):
    outcomes = [True, False, None, np.bool_(True)]
    with VideoRecorder(tmp_path) as recorder:
        paths = []
        for outcome in outcomes:
            recorder.add(0, numbered(1))
            paths.append(recorder.end_episode(0, outcome, name="task3"))
    assert [p.name for p in paths] == [
        "task3_success.mp4", "task3_failure.mp4", "task3.mp4", "task3_success-2.mp4",
    ]  # fmt: skip
    with VideoRecorder(tmp_path) as recorder:
        recorder.add(0, numbered(1))
        again = recorder.end_episode(0, True, name="task3")
    assert again.name == "task3_success-3.mp4"
    assert all(video_info(p).frames == 1 for p in [*paths, again])


def test_only_every_kth_episode_of_each_environment_is_recorded(tmp_path):
    with VideoRecorder(tmp_path, every=3) as recorder:
        recorded = {}
        for env in (0, 1):
            for episode in range(7):
                recorder.add(env, numbered(episode))
                recorded[env, episode] = recorder.end_episode(env) is not None
    assert [key for key, value in recorded.items() if value] == [(e, n) for e in (0, 1) for n in (0, 3, 6)]
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize(("keep", "left"), [(Keep.SUCCESSES, ["e_success.mp4"]), (Keep.FAILURES, ["e_failure.mp4"])])
def test_episodes_of_the_other_outcome_leave_no_file(tmp_path, keep, left):
    with VideoRecorder(tmp_path, keep=keep) as recorder:
        for outcome in (True, False, None):
            recorder.add(0, numbered(1))
            recorder.end_episode(0, outcome, name="e")
    assert [p.name for p in tmp_path.iterdir()] == left


def test_grid_shows_each_environment_in_its_cell_and_holds_the_last_picture_of_who_has_ended(tmp_path):
    with VideoRecorder(tmp_path, overlay=False, tile=3) as recorder:
        for step in range(6):
            for env in range(3):
                if env == 0 and step >= 2:
                    continue
                recorder.add(env, numbered(10 * env + step, 32, 32))
            if step == 1:
                assert recorder.end_episode(0, True) is None
                recorder.add(0, numbered(50, 32, 32))  # its next episode belongs to the next grid
        assert recorder.end_episode(1, True) is None
        path = recorder.end_episode(2, False)
    assert path.name == "grid_round0000_2of3.mp4"
    levels = [
        [round(float(frame[y + 6 : y + 26, x + 6 : x + 26].mean()) / 5) for y, x in ((0, 0), (0, 32), (32, 0))]
        for frame in read_frames(path)
    ]
    assert levels == [[min(step, 1), 10 + step, 20 + step] for step in range(6)]


def test_a_slow_disk_or_encoder_delays_but_drops_nothing(tmp_path):
    # 3 MiB pictures through a 4 MiB buffer: the ring is full after each one and wraps every time
    with VideoRecorder(tmp_path, overlay=False, buffer_mib=4) as recorder:
        for index in range(12):
            recorder.add(0, numbered(index, 1024, 1024))
        path = recorder.end_episode(0)
    assert numbers_in(path) == list(range(12))


def test_flush_makes_ended_episodes_complete_while_recording_goes_on(tmp_path):
    with VideoRecorder(tmp_path, overlay=False) as recorder:
        recorder.add(0, numbered(1))
        path = recorder.end_episode(0)
        recorder.flush()
        assert numbers_in(path) == [1]
        recorder.add(0, numbered(2))


def test_an_exception_in_the_loop_keeps_the_frames_recorded_so_far(tmp_path):
    def loop() -> None:
        with VideoRecorder(tmp_path, overlay=False) as recorder:
            for index in range(30):
                recorder.add(0, numbered(index))
            raise ZeroDivisionError("the loop broke")

    with pytest.raises(ZeroDivisionError, match="the loop broke"):
        loop()
    assert numbers_in(tmp_path / "env000_episode0000_unfinished.mp4") == list(range(30))


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_producer_that_exits_or_is_killed_without_closing_loses_nothing(tmp_path, end):
    script = textwrap.dedent(f"""
        import os, signal, sys
        import numpy as np
        from envs.video import VideoRecorder
        recorder = VideoRecorder(sys.argv[1], overlay=False)
        for index in range(30):
            recorder.add(0, np.full((64, 96, 3), index * 5, np.uint8))
        {end}
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode in (3, -signal.SIGKILL), done.stderr
    path = tmp_path / "env000_episode0000_unfinished.mp4"
    deadline = time.monotonic() + 240  # nobody hurries the encoder of a dead process, which has the lowest priority
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert numbers_in(path) == list(range(30))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_processes_forked_meanwhile_neither_end_nor_hold_up_the_recording(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys, time
        import numpy as np
        from envs.video import VideoRecorder
        with VideoRecorder(sys.argv[1], overlay=False) as recorder:
            recorder.add(0, np.full((64, 96, 3), 0, np.uint8))
            if not (quick := os.fork()):
                sys.exit()  # runs the exit handlers of a process that is not the recorder's owner
            os.waitpid(quick, 0)
            if not (lasting := os.fork()):
                time.sleep(60)
                os._exit(0)
            for index in range(1, 10):
                recorder.add(0, np.full((64, 96, 3), index * 5, np.uint8))
            recorder.end_episode(0, name="fork")
        os.kill(lasting, signal.SIGKILL)
    """)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < 20
    assert numbers_in(tmp_path / "fork.mp4") == list(range(10))


def test_a_dead_recording_process_is_reported_instead_of_waited_for(tmp_path):
    recorder = VideoRecorder(tmp_path, buffer_mib=1)
    recorder._process.kill()

    def loop() -> None:
        for index in range(1000):
            recorder.add(0, numbered(index % 50))

    with pytest.raises(WorkerError, match=r"recording process failed \(exit code -9\)"):
        loop()
    with pytest.raises(WorkerError, match="recording process failed"):
        recorder.close()
    recorder.close()


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((8, 8, 3), np.float32), r"uint8 \[H, W, 3\]; got float32 \[8, 8, 3\]"),
        (np.zeros((3, 8, 8), np.uint8), r"got uint8 \[3, 8, 8\]"),
        (np.zeros((8, 8), np.uint8), r"got uint8 \[8, 8\]"),
        (np.zeros((900, 900, 3), np.uint8), "larger buffer_mib"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_shape(tmp_path, picture, message):
    with VideoRecorder(tmp_path, buffer_mib=1) as recorder, pytest.raises(RefusedInput, match=message):
        recorder.add(0, picture)


def test_a_change_of_size_within_an_episode_is_refused(tmp_path):
    with VideoRecorder(tmp_path) as recorder:
        recorder.add(0, flat((1, 2, 3), 64, 64))
        with pytest.raises(RefusedInput, match="32x64x3 after 64x64x3"):
            recorder.add(0, flat((1, 2, 3), 32, 64))


def test_impossible_options_are_refused(tmp_path):
    with pytest.raises(RefusedInput, match="every >= 1"):
        VideoRecorder(tmp_path, every=0)
    with pytest.raises(RefusedInput, match="tile=None"):
        VideoRecorder(tmp_path, tile=4, keep=Keep.FAILURES)
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedInput, match="cannot be written"):
        VideoRecorder(tmp_path / "file" / "videos")
    with pytest.raises(RefusedInput, match="cannot be decoded"):
        next(read_frames(tmp_path / "file"))


def test_side_by_side_aligns_heights_and_holds_the_shorter_video(tmp_path):
    with VideoRecorder(tmp_path, overlay=False, fps=10) as recorder:
        for index in range(9):
            recorder.add(0, flat((200, 30, 30), 128, 128))
            if index < 4:
                recorder.add(1, flat((30, 30, 30 + 50 * index), 64, 96))
        left, right = recorder.end_episode(0), recorder.end_episode(1)
    out = side_by_side(left, right, tmp_path / "both.mp4", titles=("Before training", "After training"))
    frames = list(read_frames(out))
    assert len(frames) == 9
    assert video_info(out).fps == 10.0
    height, width = frames[0].shape[:2]
    assert width >= 128 + 192  # the right one was enlarged to the left one's height
    assert all(near(frame[height - 60, 60], (200, 30, 30)) for frame in frames)
    assert near(frames[-1][height - 60, width - 90], (30, 30, 180))  # held since its fourth frame
    assert frames[0][:20].max() > 200  # titles


def step_of(milliseconds: float) -> Callable[[], int]:
    """Pure Python work of that length, so that a shared interpreter lock would show. Measured in processor time, the
    fastest of seven tries: one that others interrupt would make every step too short."""
    fastest = min(timeit.repeat("sum(i * i for i in range(100_000))", timer=time.thread_time, number=1, repeat=7))
    count = round(100_000 * milliseconds / 1e3 / fastest)
    return lambda: sum(i * i for i in range(count))


def test_adding_a_picture_costs_a_small_part_of_what_drawing_it_would(tmp_path):
    """Processor time of the calling thread, side by side, so that whoever else needs the cores and their caches slows
    both. The tests below time the whole loop by the clock, where nobody does."""
    step, picture = step_of(3), numbered(9, 128, 128)
    overlay = Overlay("push the cube", 3, 0.5, None, [0.1] * 7, 0.2)
    adds, draws = [], []
    with VideoRecorder(tmp_path) as recorder:
        for _ in range(100):
            for action, spent in (
                (lambda: recorder.add(0, picture, overlay), adds),
                (lambda: draw_overlay(picture, overlay), draws),
            ):
                step()  # what a loop does between two pictures, and what it needs the caches for
                started = time.thread_time()
                action()
                spent.append(time.thread_time() - started)
    assert statistics.median(adds) < 0.25 * statistics.median(draws)


@pytest.mark.slow
@pytest.mark.skipif(os.getloadavg()[0] > 1.2, reason="wall-clock time needs a machine that nobody else uses")
@pytest.mark.parametrize("step_ms", [3, 10])
def test_recording_every_step_slows_the_whole_loop_by_less_than_three_percent(tmp_path, capsys, step_ms):
    step, picture = step_of(step_ms), numbered(9, 128, 128)
    overlay = Overlay("push the cube", 3, 0.5, None, [0.1] * 7, 0.2)

    def turn(recorder: VideoRecorder | None) -> float:
        started = time.perf_counter()
        for _ in range(100 // step_ms):
            step()
            if recorder is not None:
                recorder.add(0, picture, overlay)
        return time.perf_counter() - started

    # short turns side by side, each begun with nothing left to encode: whatever else the machine does hits both alike
    bare, recorded = [], []
    with VideoRecorder(tmp_path) as recorder:
        recorder.add(0, picture, overlay)
        for _ in range(40):
            recorder.flush()
            bare.append(turn(None))
            recorded.append(turn(recorder))
    slower = statistics.median(recorded) / statistics.median(bare) - 1
    with capsys.disabled():
        print(f"\n{step_ms} ms steps, every one recorded: {100 * slower:+.1f} %")
    assert slower < 0.03


def test_without_ffmpeg_a_recording_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "ffmpeg"))
    with pytest.raises(RefusedInput, match=r"Videos need ffmpeg, and '.*ffmpeg' .* is no program.*--films 0"):
        VideoRecorder(tmp_path / "videos")


@pytest.mark.parametrize(
    ("encoder", "pictures"),
    [
        ("exit 1", 40),  # ends at once: the pipe breaks
        ('for last; do :; done; head -c 300 > "$last"; cat > /dev/null', 3),  # leaves the beginning of a file
    ],
)
def test_a_file_that_could_not_be_written_to_its_end_is_not_left_behind(tmp_path, monkeypatch, encoder, pictures):
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{encoder}\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))  # for the process that encodes
    with pytest.raises(WorkerError, match=r"mp4 could not be written: ffmpeg ended") as failed:  # noqa: PT012, SIM117
        with VideoRecorder(tmp_path / "videos") as recorder:
            for _ in range(pictures):
                recorder.add(0, np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8))
            recorder.end_episode(0, True)
    assert "Traceback" not in str(failed.value)
    assert list((tmp_path / "videos").iterdir()) == []


def test_a_full_disk_is_called_by_its_name(tmp_path, monkeypatch):
    nothing_free = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nothing_free)
    encoder = codec.Encoder(tmp_path / "a.mp4", 10)
    encoder.write(np.zeros((16, 16, 3), np.uint8))
    monkeypatch.setattr(codec, "_is_whole", lambda _: False)
    with pytest.raises(WorkerError, match="the disk is full"):
        encoder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_long_thin_picture_is_enlarged_to_what_players_can_show():
    shown = draw_overlay(np.zeros((7, 300, 3), np.uint8), Overlay())
    assert shown.shape[1] == 1800
    assert draw_overlay(np.zeros((1, 4000, 3), np.uint8), Overlay()).shape[1] == 4000
    assert enlarge(np.zeros((64, 64, 3), np.uint8)).shape == (256, 256, 3)
