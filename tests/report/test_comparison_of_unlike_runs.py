"""Comparisons of many runs, of runs of different environments, and of runs that have not ended."""

from __future__ import annotations

import re

from synthetic_run import edit_result, make_run, text_of

from embodied.report import build_comparison
from embodied.report.reader import CONFIG, RESULT


def test_more_runs_than_colours_are_told_apart_by_their_strokes(tmp_path):
    page = build_comparison([make_run(tmp_path, seed=seed, videos=False) for seed in range(1, 9)]).read_text()
    colours = re.findall(r'<span class="key"><i class="c-([^"]*)"></i></span>', page)
    assert colours == ["0", "1", "2", "3", "4", "5", "0 dashed", "1 dashed"]


def test_returns_of_different_environments_share_no_chart(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    assert "Return of each run" in build_comparison(runs).read_text()
    (runs[1] / CONFIG).write_text((runs[1] / CONFIG).read_text().replace("maniskill/PushCube-v1", "gym/CartPole-v1"))
    assert "Return of each run" not in build_comparison(runs).read_text()


def test_run_that_goes_on_is_compared_by_its_latest_evaluation(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    (runs[1] / RESULT).unlink()
    text = text_of(build_comparison(runs).read_text())
    assert "Before Latest Steps" in text
    assert "No result yet 3.1% 97%" in text


def test_folder_of_a_run_is_no_difference_and_values_are_written_as_in_the_configuration(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    for run, value in zip(runs, ("null", "true"), strict=True):
        (run / CONFIG).write_text((run / CONFIG).read_text() + f"odd: {value}\nrun: {{folder: {run.name}}}\n")
    text = text_of(build_comparison(runs).read_text())
    assert re.search(r"odd\s+null\s+true", text)
    assert "run.folder" not in text


def test_long_list_of_differences_is_folded(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    assert "<details>" not in build_comparison(runs).read_text()
    with (runs[1] / CONFIG).open("a") as file:
        file.writelines(f"option_{i}: {i}\n" for i in range(40))
    assert "<summary>41 keys</summary>" in build_comparison(runs).read_text()


def test_runs_without_a_goal_are_not_said_to_have_missed_it(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    edit_result(runs[1], status="limit")
    (runs[1] / CONFIG).write_text((runs[1] / CONFIG).read_text().replace("at_least: 0.95", "at_least: null"))
    assert "1 of 1 reached their goal. 1 had none." in text_of(build_comparison(runs).read_text())
