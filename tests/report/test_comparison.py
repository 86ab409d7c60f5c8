"""Several runs on one page, their mean curve, and the command."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic_run import RECIPE, edit_result, make_run, text_of

from embodied.commands import report as command
from embodied.errors import EXIT_DONE, RefusedInput
from embodied.report import build_comparison, build_report, read_run, success_curve_png
from embodied.report.curve import common_grid
from embodied.report.metrics import Series
from embodied.report.reader import METRICS


def test_comparison_shows_outcomes_what_differs_and_averages_only_what_differs_in_the_seed(tmp_path):
    runs = [make_run(tmp_path, seed=seed, clip=0.3 if seed == 3 else 0.2, videos=False) for seed in (1, 2, 3)]
    edit_result(runs[1], status="limit")
    build_report(runs[0])
    page = build_comparison(runs)
    assert page == tmp_path / "runs" / RECIPE / "comparison.html"
    text = text_of(page.read_text())
    assert "2 of 3 reached their goal. Success after training: 97% on average." in text
    assert f"{RECIPE}: mean and range of seeds 1, 2" in text
    assert "seeds 1, 2, 3" not in text
    assert re.search(r"algorithm\.clip\s+0\.2\s+0\.2\s+0\.3", text)
    assert "gamma" not in text
    assert 'href="2026-01-31_12-00-01/report.html"' in page.read_text()


def test_an_option_is_no_runs_own_for_having_the_folders_name_in_it(tmp_path):
    runs = [make_run(tmp_path, seed=seed, clip=clip, videos=False) for seed, clip in ((1, 0.2), (2, 0.3))]
    runs = [run.rename(run.with_name(name)) for run, name in zip(runs, ("2", "3"), strict=True)]
    assert "mean and range of seeds" not in text_of(build_comparison(runs).read_text())


def test_comparison_of_one_run_is_refused(bare):
    with pytest.raises(RefusedInput, match="at least two runs; got 1"):
        build_comparison([bare])


def test_success_curve_draws_the_evaluations_and_their_mean(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    one = np.asarray(Image.open(success_curve_png(runs[0], tmp_path / "one.png")).convert("RGB")).astype(int)
    both = np.asarray(Image.open(success_curve_png(runs, tmp_path / "both.png")).convert("RGB")).astype(int)
    for picture in (one, both):
        blue = (picture[..., 2] - picture[..., 0]) > 150
        columns = np.flatnonzero(blue.any(axis=0))
        assert columns[-1] - columns[0] > 700  # a line across the picture
        left, right = np.flatnonzero(blue[:, columns[5]]).mean(), np.flatnonzero(blue[:, columns[-5]]).mean()
        assert left - right > 250  # that rises
    (runs[0] / METRICS).write_text("")
    with pytest.raises(RefusedInput, match="no evaluation to draw"):
        success_curve_png(runs, tmp_path / "none.png")


def test_mean_over_seeds_keeps_the_last_value_of_a_run_that_reached_its_goal_and_ends_with_any_other(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    lines = [Series("k", [0.0, 100.0], [0.0, 1.0]), Series("k", [0.0, 200.0], [0.0, 0.5])]
    steps, values = common_grid([read_run(run) for run in runs], lines, points=5)
    assert steps.tolist() == [0, 50, 100, 150, 200]
    assert values.tolist() == [[0, 0.5, 1, 1, 1], [0, 0.125, 0.25, 0.375, 0.5]]
    edit_result(runs[0], status="limit")
    steps, values = common_grid([read_run(run) for run in runs], lines, points=3)
    assert steps.tolist() == [0, 50, 100]


def test_pages_of_several_runs_name_what_they_count(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    for run in runs:
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(f"workload: reasoning\n{text}")
    page = build_comparison(runs, tmp_path / "all.html").read_text()
    assert "Responses a second" in page
    assert "environment steps" not in page


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["report", *arguments])
    return command.run(parsed)


def test_command_writes_reports_comparison_and_picture_and_says_where(tmp_path, capsys):
    runs = [str(make_run(tmp_path, seed=seed, videos=False)) for seed in (1, 2)]
    png = str(tmp_path / "curve.png")
    assert call(*runs, "--png", png, "--output", str(tmp_path / "all.html")) == EXIT_DONE
    printed = capsys.readouterr().out.splitlines()
    written = [f"{runs[0]}/report.html", f"{runs[1]}/report.html", str(tmp_path / "all.html")]
    assert printed == [*(f"report  {path}" for path in written), f"curve   {png}"]
    assert all(Path(path).stat().st_size > 5000 for path in [*written, png])


def test_command_refuses_what_it_cannot_write(bare, tmp_path):
    with pytest.raises(RefusedInput, match="--output is for the comparison"):
        call(str(bare), "--output", str(tmp_path / "x.html"))
    with pytest.raises(RefusedInput, match="does not exist"):
        call(str(bare), "--png", str(tmp_path / "missing" / "x.png"))


def test_command_counts_a_run_once_however_often_it_is_named(bare, capsys):
    latest = bare.parent / "latest"
    latest.symlink_to(bare.name)
    assert call(str(bare), str(latest)) == EXIT_DONE
    assert capsys.readouterr().out == f"report  {latest}/report.html\n"
