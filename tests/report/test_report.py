"""The run report: from finished, running, killed and broken run folders, and in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from synthetic_run import RECIPE, edit_result, make_run, text_of, wilson

from embodied.errors import RefusedInput
from embodied.report import build_report, read_run
from embodied.report.charts import Line, line_chart, nice_scale
from embodied.report.metrics import SIGNS, Series, find_sign, has_success, operation_times, phase_times, series, thinned
from embodied.report.reader import METRICS, RESULT, Row
from embodied.report.words import count, duration, number, percent


def test_headline_says_what_was_trained_and_that_the_goal_was_reached(finished):
    text = text_of(build_report(finished).read_text())
    assert "Success went from 3.1% before training to 97%." in text
    assert "This run trained the mlp policy on maniskill/PushCube-v1 with PPO." in text
    assert "It reached its goal after 2 min 31 s and 492k environment steps." in text
    assert "95% interval 89% – 99.1%" in text


def test_page_has_every_section_and_the_commands_to_do_it_again(finished):
    page = build_report(finished).read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Success rate", "Return", "Before and after", "Where the time went", "Learning health", "Do it again", "Plan",
    ]  # fmt: skip
    text = text_of(page)
    assert f"embodied train {RECIPE} seed=1" in text
    assert re.search(r"embodied eval \S+/2026-01-31_12-00-01 ", text)
    assert re.search(r"embodied resume \S+/2026-01-31_12-00-01", text)
    assert "gamma: 0.8" in text
    assert "One device: all workers run as coroutines" in text
    assert "mani-skill 3.0.1" in text


def test_videos_are_relative_links_with_a_picture_of_the_video_as_poster(finished):
    page = build_report(finished).read_text()
    sources = re.findall(r'<source src="([^"]*)"', page)
    assert sources == ["videos/before_0of4.mp4", "videos/after_4of4.mp4"]
    assert all((finished / source).is_file() for source in sources)
    posters = re.findall(r'poster="data:image/jpeg;base64,([^"]*)"', page)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(posters[0]))))
    assert picture.std() > 20  # a scene, not a blank


def test_page_refers_to_nothing_outside_the_run_folder(finished):
    page = build_report(finished).read_text()
    targets = re.findall(r'(?:src|href|poster|action|data)="([^"]*)"', page)
    outside = [t for t in targets if not t.startswith("data:") and not (finished / t).is_file()]
    assert outside == []
    assert not re.search(r"url\(\s*['\"]?(?!data:)", page)
    assert "@import" not in page


def test_time_is_summed_by_stage_and_the_bottleneck_named(tmp_path):
    rows = [
        {"iteration": i, "env_steps": i, "seconds": 10.0 * i,
         "metrics": {"time/rollout_s": 6.0, "time/env_simulate_s": 5.0, "time/learn_s": 3.0, "time/iteration_s": 10.0}}
        for i in (1, 2)
    ]  # fmt: skip
    (tmp_path / METRICS).write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "plan.json").write_text('{"stages": {"env": {}}}')
    run = read_run(tmp_path)
    # 20 s in all: operations inside a phase and the total are not counted again, and 2 s are nobody's
    assert [(op.name, op.seconds, op.share) for op in operation_times(run)] == [("env simulate", 10.0, 0.5)]
    times = {phase.name: (phase.seconds, round(phase.share, 3)) for phase in phase_times(run)}
    assert times == {"rollout": (12.0, 0.6), "learn": (6.0, 0.3), "other": (2.0, 0.1)}
    text = text_of(build_report(tmp_path).read_text())
    assert "The bottleneck is rollout: 60% of the time, 12 s. If it took no time at all" in text
    assert "2.5 times as fast. The busiest operation is env simulate, 10 s." in text


def test_running_run_gives_a_report_that_says_so(bare):
    (bare / RESULT).unlink()
    lines = (bare / METRICS).read_text().splitlines()[:20]
    (bare / METRICS).write_text("\n".join(lines) + '\n{"iteration": 20, "env_st')
    text = text_of(build_report(bare).read_text())
    assert "No result yet" in text
    assert "still running, or it was killed. The last record is iteration 19, after 48 s and 156k" in text
    assert "metrics.jsonl: the last line is incomplete and was left out." in text
    # the first sentence says it: no warning beside it
    assert "result.json is missing." not in text


def test_broken_line_in_the_middle_is_named_and_the_others_are_read(bare):
    lines = (bare / METRICS).read_text().splitlines()
    lines[4] = '{"iteration": 4, "metrics": 3}'
    (bare / METRICS).write_text("\n".join(lines))
    run = read_run(bare)
    assert [row.iteration for row in run.rows] == [*range(4), *range(5, 61)]
    assert run.notes == ["metrics.jsonl: line 5 is incomplete and was left out."]


@pytest.mark.parametrize("kept", ["config.yaml", METRICS, RESULT])
def test_any_single_file_of_a_run_gives_a_report(bare, tmp_path, kept):
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(bare / kept, alone / kept)
    text = text_of(build_report(alone).read_text())
    assert "is missing." in text
    assert "Do it again" in text


def test_files_cut_anywhere_still_give_a_report(bare):
    whole = {name: (bare / name).read_bytes() for name in ("config.yaml", "plan.json", METRICS, RESULT)}
    for share in (0.0, 0.13, 0.5, 0.9, 0.999):
        for name, data in whole.items():
            (bare / name).write_bytes(data[: int(share * len(data))])
        assert "Do it again" in build_report(bare).read_text()


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("limit", "It stopped at its limit after 2 min 31 s and 492k environment steps without reaching its goal."),
        ("interrupted", "It was interrupted after 2 min 31 s and 492k environment steps; resume continues"),
        ("failed", "It failed after 2 min 31 s and 492k environment steps."),
    ],
)
def test_every_ending_is_said_in_plain_words(bare, status, sentence):
    edit_result(bare, status=status)
    assert sentence in text_of(build_report(bare).read_text())


def test_failed_run_shows_its_reason_and_the_last_lines_of_its_log(bare):
    edit_result(bare, status="failed", reason="SimulatorError: worker 3 died")
    (bare / "log.txt").write_text("\n".join(f"line {i}" for i in range(100)))
    text = text_of(build_report(bare).read_text())
    assert "SimulatorError: worker 3 died" in text
    assert "line 99" in text
    assert "line 59" not in text


def test_metrics_that_are_not_numbers_are_flagged_not_drawn(bare):
    lines = [json.loads(line) for line in (bare / METRICS).read_text().splitlines()]
    for line in lines[-3:]:
        line["metrics"]["learner/gradient_norm"] = float("nan")
    (bare / METRICS).write_text("\n".join(map(json.dumps, lines)))
    page = build_report(bare).read_text()
    assert "3 of 61 records are not finite numbers." in text_of(page)
    assert not any("nan" in path for path in re.findall(r' d="([^"]*)"', page))


def test_what_the_run_wrote_cannot_become_markup(bare):
    edit_result(bare, reason="<script>alert(1)</script>", command='embodied train "><img src=x onerror=alert(2)>')
    (bare / "config.yaml").write_text("name: '</pre><script>alert(3)</script>'\n")
    page = build_report(bare).read_text()
    assert len(re.findall("<script", page)) == 1
    assert "<img" not in page


def test_missing_video_is_said_instead_of_linked(bare):
    page = build_report(bare).read_text()
    assert "videos/after_4of4.mp4 is missing." in text_of(page)
    assert "<video" not in page


def test_moved_run_folder_uses_its_own_videos_and_checkpoint(finished, tmp_path):
    moved = shutil.copytree(finished, tmp_path / "elsewhere")
    edit_result(moved, videos={"before": str(finished / "videos/before_0of4.mp4"), "after": "videos/after_4of4.mp4"})
    assert re.findall(r'<source src="([^"]*)"', build_report(moved).read_text())[0] == "videos/before_0of4.mp4"


def test_folder_that_is_no_run_is_refused_with_the_runs_inside_it(bare, tmp_path):
    with pytest.raises(RefusedInput, match=r"no run folder.*Runs inside it: .*12-00-01"):
        build_report(bare.parent)
    with pytest.raises(RefusedInput, match="does not exist"):
        build_report(tmp_path / "nothing")


def test_signs_find_their_metric_by_the_last_part_of_its_key():
    rows = [
        Row(0, 0, 0.0, {"eval/entropy": 9.0, "policy/entropy_bonus": 8.0, "policy/entropy": 1.0, "loss/value": 2.0})
    ]
    found = {sign.title: find.key for sign in SIGNS if (find := find_sign(rows, sign))}
    assert found == {"Entropy": "policy/entropy", "Value loss": "loss/value"}


@pytest.mark.parametrize(
    ("title", "values", "concerned"),
    [
        ("Explained variance", [0.9] * 38 + [-9.0, 0.9], False),  # one dip is no trend
        ("KL divergence", [0.01] * 20, False),
        ("KL divergence", [0.01] * 10 + [0.5] * 10, True),
        ("Explained variance", [-0.5] + [0.9] * 19, False),
        ("Explained variance", [0.9] * 10 + [-0.5] * 10, True),
        ("Entropy", [2.0, 1.5, 1.0], False),
        ("Entropy", [2.0, 1.0, 0.05], True),
        ("Gradient norm", [1.0] * 19 + [50.0], True),
        ("Gradient norm", [1.0] * 20, False),
    ],
)
def test_signs_ask_to_look_closer_only_when_the_recent_values_are_off(title, values, concerned):
    sign = next(sign for sign in SIGNS if sign.title == title)
    assert (sign.concern(values) is not None) is concerned


def test_run_without_a_notion_of_success_is_told_by_its_return(bare):
    lines = [json.loads(line) for line in (bare / METRICS).read_text().splitlines()]
    for line in lines:
        line["metrics"] = {k: 0.0 if "success" in k else v for k, v in line["metrics"].items()}
    (bare / METRICS).write_text("\n".join(map(json.dumps, lines)))
    assert has_success(read_run(bare))  # its goal is success: none was had
    config = (bare / "config.yaml").read_text()
    (bare / "config.yaml").write_text(
        config.replace("metric: success_once\n  at_least: 0.95", "metric: return\n  at_least: 30")
    )
    assert not has_success(read_run(bare))
    page = build_report(bare).read_text()
    assert "The return went from 4.969 before training to 34.03." in text_of(page)
    assert "<h2>Success rate</h2>" not in page
    assert "goal 30" in text_of(page)


def test_interval_is_read_only_if_every_evaluation_has_one():
    low, high = wilson(60, 64)
    whole = {"eval/success_once": 60 / 64, "eval/success_once_low": low, "eval/success_once_high": high}
    rows = [Row(0, 0, 0.0, whole), Row(1, 10, 1.0, {"train/return": 1.0}), Row(2, 20, 2.0, whole)]
    found = series(rows, "eval/success_once")
    assert (found.steps, found.low, found.high) == ([0.0, 20.0], [low] * 2, [high] * 2)
    rows[2].metrics.pop("eval/success_once_low")
    assert series(rows, "eval/success_once").low is None


def test_long_series_are_drawn_as_means_over_equal_windows():
    line = thinned(Series("x", [float(i) for i in range(1000)], [float(i) for i in range(1000)]))
    assert line.window == 5
    assert line.values[:2] == [2.0, 7.0]  # means of 0..4 and 5..9
    assert len(line.values) == 200


def test_chart_maps_values_to_the_drawing_with_the_top_at_zero():
    chart = line_chart("Success", [Line("a", Series("k", [0.0, 50.0, 100.0], [0.0, 0.5, 1.0]), "eval")], y_range=(0, 1))
    assert chart.lines[0].path == "M0.0 1000.0L500.0 500.0L1000.0 0.0"
    assert chart.x_ticks == [(0.0, "0"), (20.0, "20"), (40.0, "40"), (60.0, "60"), (80.0, "80"), (100.0, "100")]
    assert "a from 0 to 1 at 100 environment steps" in chart.summary


def test_chart_breaks_its_line_where_a_value_is_missing():
    line = Series("k", [0.0, 1.0, 2.0, 3.0], [0.0, float("nan"), 1.0, 1.0])
    assert line_chart("c", [Line("a", line, "eval")]).lines[0].path.count("M") == 2
    assert line_chart("c", [Line("a", Series("k", [0.0], [float("inf")]), "eval")]) is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (3, 97, [0, 25, 50, 75, 100]), (5, 5, [4.4, 4.6, 4.8, 5, 5.2, 5.4, 5.6])],
)
def test_scales_have_round_ticks_that_cover_the_values(low, high, ticks):
    first, last, found = nice_scale(low, high, 4)
    assert first <= low
    assert last >= high
    if low != high:
        assert found == ticks


def test_numbers_are_written_as_a_reader_would():
    assert [percent(x) for x in (0, 0.031, 0.97, 0.991, 1, float("nan"))] == ["0%", "3.1%", "97%", "99.1%", "100%", "–"]
    assert [count(x) for x in (7, 491_520, 2_000_000, None)] == ["7", "492k", "2M", "–"]
    assert [duration(x) for x in (2.5, 59.7, 151, 7322)] == ["2.5 s", "1 min 00 s", "2 min 31 s", "2 h 02 min"]
    assert [number(x) for x in (0, -0.01255, 123456789, float("nan"))] == ["0", "−0.01255", "1.23e+08", "not a number"]


def test_what_a_plan_predicted_is_no_phase(tmp_path):
    assert "predicted" not in [phase.name for phase in phase_times(read_run(make_run(tmp_path, videos=False)))]


def test_commands_are_quoted_and_a_run_from_python_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "my runs", videos=False)
    (run / "checkpoints" / "step_1").mkdir(parents=True, exist_ok=True)
    page = build_report(run).read_text()
    assert "embodied eval &#39;" in page
    (run / "given.json").write_text(json.dumps({"problems": True, "reward": True}))
    page = build_report(run).read_text()
    assert "with its own problems and reward" in page
    assert "embodied eval" not in page
