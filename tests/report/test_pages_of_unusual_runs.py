"""Reports of runs that go on, ended before they began, fit demonstrations, reason, or wrote what nobody expects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic_run import edit_result, evaluation, make_run, text_of

from embodied.report import build_comparison, build_report, read_run
from embodied.report.charts import Line, line_chart
from embodied.report.metrics import Series
from embodied.report.reader import CONFIG, METRICS, PLAN, RESULT
from embodied.report.words import as_sentence, percent


def edit_rows(run: Path, keep: slice = slice(None), **changes: float) -> None:
    """Keep some of the rows and write `changes` into the metrics of each of them."""
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()][keep]
    for row in rows:
        row["metrics"] |= changes
    (run / METRICS).write_text("\n".join(map(json.dumps, rows)) + "\n")


def edit_config(run: Path, **changes: object) -> None:
    (run / CONFIG).write_text((run / CONFIG).read_text() + json.dumps(changes)[1:-1].replace(', "', '\n"') + "\n")


def test_running_run_tells_its_success_so_far_and_how_to_look_again(bare):
    run = bare.rename(bare.parent.parent / "mine")  # no folder runs/<recipe>/<time>
    (run / RESULT).unlink()
    edit_config(run, name="the_recipe")
    edit_rows(run, slice(20))
    page = build_report(run).read_text()
    text = text_of(page)
    assert "the_recipe" in text
    assert "embodied train the_recipe seed=1" in text
    assert re.search(r"Success went from 3\.1% before training to \d+% so far\. This run trains the mlp policy", text)
    assert re.search(r"Success in the latest evaluation \d+% 95% interval", text)
    assert re.search(r"Refresh this page embodied report \S+/mine ", text)
    assert re.search(r"Written \d{4}-\d\d-\d\d \d\d:\d\d by embodied", text)
    assert 'class="notes"' not in page


def test_run_that_ended_before_its_first_iteration_claims_no_change_and_no_checkpoint(bare):
    edit_rows(bare, slice(1))
    (bare / "checkpoints/step_60").rmdir()
    edit_result(bare, status="interrupted", iterations=0, env_steps=0, seconds=0.0, after=evaluation(0.03))
    page = build_report(bare).read_text()
    text = text_of(page)
    assert "Training the mlp policy on maniskill/PushCube-v1 with PPO." in text
    assert "It was interrupted after 1.0 s and 0 environment steps; resume begins again, as no checkpoint" in text
    assert "after training" not in text
    assert "at its best" not in text
    assert "a second over the whole run" not in text
    assert re.findall(r'class="x[^"]*" style="left:[^"]*">([^<]*)<', page)[:2] == ["0", "1"]
    assert page.count('class="band c-eval"') == 1  # the interval of the only evaluation


def test_fit_to_demonstrations_shows_its_losses_and_the_commands_of_a_fit(tmp_path):
    run = tmp_path / "fit"
    (run / "policy").mkdir(parents=True)
    (run / "checkpoints/step_3").mkdir(parents=True)
    (run / "sft.yaml").write_text("name: sft_tiny\npolicy: {name: tiny}\ndata: {folders: [data/cubes]}\nseed: 3\n")
    losses = [3.0, 2.0, 2.5]
    rows = [
        {"iteration": i, "env_steps": 64 * i, "seconds": 2.0 * i,
         "metrics": {"sft/loss": loss, "sft/accuracy": 0.1 * i, "held_out/loss": loss + 1, "held_out/accuracy": 0.5}}
        for i, loss in enumerate(losses, 1)
    ]  # fmt: skip
    (run / METRICS).write_text("\n".join(map(json.dumps, rows)))
    (run / RESULT).write_text(json.dumps({"recipe": "sft_tiny", "status": "done", "command": "embodied sft tiny"}))
    page = build_report(run).read_text()
    text = text_of(page)
    assert "Fitting the tiny policy to data/cubes. It is done after 6.0 s and 192 samples." in text
    assert "Held-out loss 3.5 lowest 3" in text
    assert re.findall(r"<h2>(.*?)</h2>", page)[:2] == ["Loss", "Accuracy of actions"]
    assert "is missing" not in text
    assert "environment steps" not in page
    assert re.search(r"embodied eval \S*/fit/policy ENV", text)
    assert "resume" not in text
    edit_result(run, status="interrupted")
    assert re.search(r"embodied sft --resume \S*/fit ", text_of(build_report(run).read_text()))


def test_reasoning_run_is_told_by_its_accuracy(bare):
    (bare / CONFIG).write_text("workload: reasoning\ngoal: {metric: accuracy, at_least: null}\n")
    rows = [
        {"iteration": i, "env_steps": 32 * i, "seconds": 2.0 * i,
         "metrics": {"reward/right": 0.2 * i, "eval/accuracy": 0.25 * i}}
        for i in range(3)
    ]  # fmt: skip
    (bare / METRICS).write_text("\n".join(map(json.dumps, rows)))
    edit_result(
        bare, status="limit", before={"eval/accuracy": 0.0}, after={"eval/accuracy": 0.5}, best={"eval/accuracy": 0.5},
        responses=64, env_steps=None, iterations=1, reason="",
    )  # fmt: skip
    (bare / "evaluation").mkdir()
    (bare / "evaluation/index.html").touch()
    page = build_report(bare).read_text()
    text = text_of(page)
    assert "Accuracy went from 0% before training to 50%." in text
    assert "Success" not in text
    assert "Accuracy: Training from 0% to 40% at 64 responses; Evaluation" in page
    assert " 1 iteration " in text
    assert "without reaching its goal" not in text  # it had none
    assert re.search(r"reasoning eval \S+", text)
    assert '<a href="evaluation/index.html">' in page


def test_pages_of_evaluations_are_linked(bare):
    for name in ("results.html", "results-2.html", "results-10.html"):
        (bare / name).touch()
    found = re.findall(r'<a href="(results[^"]*)"', build_report(bare).read_text())
    assert found == ["results.html", "results-2.html", "results-10.html"]


def test_what_null_means_in_a_plan_is_written_out(bare):
    plan = json.loads((bare / PLAN).read_text())
    plan["stages"] = {"env": {"devices": ["cpu"], "granularity": None, "processes": None, "new": None}}
    (bare / PLAN).write_text(json.dumps(plan))
    assert "env cpu whole round as the stage&#39;s options say –" in text_of(build_report(bare).read_text())


def test_metric_without_any_finite_value_is_named_as_well(bare):
    edit_rows(bare, **{"policy/approx_kl": float("nan")})
    text = text_of(build_report(bare).read_text())
    assert "KL divergence not a number" in text
    assert "61 of 61 records are not finite numbers." in text


def test_least_and_most_of_a_metric_are_among_its_finite_values(bare):
    rows = [json.loads(line) for line in (bare / METRICS).read_text().splitlines()]
    for row, value in zip(rows, [float("nan"), 5.0, -2.0, float("inf")], strict=False):
        row["metrics"]["odd"] = value
    (bare / METRICS).write_text("\n".join(map(json.dumps, rows)))
    assert "odd not a number ∞ −2 5" in text_of(build_report(bare).read_text())


def test_row_of_impossible_numbers_is_left_out(bare):
    with (bare / METRICS).open("a") as file:
        file.write('{"iteration": 61, "env_steps": Infinity, "seconds": 1, "metrics": {}}\n')
    run = read_run(bare)
    assert len(run.rows) == 61
    assert run.notes == ["metrics.jsonl: the last line is incomplete and was left out."]


def test_hostile_names_stay_text_on_every_page(tmp_path):
    hostile = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    for run in runs:
        edit_result(run, recipe=hostile, status=hostile, seed=hostile, versions={hostile: hostile})
        edit_config(run, **{hostile: f"{hostile}{run.name}"})
        edit_rows(run, **{hostile: 1.0, f"{hostile}/entropy": 1.0, f"time/{hostile}_s": 1.0})
        (run / PLAN).write_text(json.dumps({"stages": {hostile: {hostile: hostile}}, "why": hostile, hostile: hostile}))
    for page in (build_report(runs[0]), build_comparison(runs)):
        html = page.read_text()
        assert "alert(1)" in html
        assert len(re.findall("<script", html)) == 1
        assert "<img" not in html


def test_very_long_run_gives_a_small_page(bare):
    row = json.loads((bare / METRICS).read_text().splitlines()[1])
    with (bare / METRICS).open("w") as file:
        for i in range(20_000):
            file.write(json.dumps(row | {"iteration": i, "env_steps": 8192 * i, "seconds": 2.5 * i}) + "\n")
    page = build_report(bare)
    assert page.stat().st_size < 300_000


def test_chart_of_nothing_but_zero_begins_at_zero():
    chart = line_chart("c", [Line("a", Series("k", [0.0, 1.0], [0.0, 0.0]), "eval")])
    assert [label for _, label in chart.y_ticks] == ["0", "0.25", "0.5", "0.75", "1"]


@pytest.mark.parametrize("values", [[4.3, 4.3 + 1e-15], [-7e-20, -7e-20], [0.0, 5e-324], [1e-310, 1e-310]])
def test_chart_of_values_that_differ_by_rounding_alone_is_drawn(values):
    chart = line_chart("c", [Line("a", Series("k", [0.0, 1.0], values), "eval")])
    assert len(chart.y_ticks) > 2


@pytest.mark.parametrize(("most", "ticks"), [(0.0, ["0", "1"]), (3.0, ["0", "1", "2", "3"])])
def test_steps_are_counted_in_whole_numbers(most, ticks):
    chart = line_chart("c", [Line("a", Series("k", [0.0, most], [1.0, 2.0]), "eval")])
    assert [label for _, label in chart.x_ticks] == ticks


def test_rates_that_are_almost_none_or_almost_all_are_not_rounded_to_it():
    assert [percent(x) for x in (0.0002, 0.9998, 0.0, 1.0)] == ["<0.1%", ">99.9%", "0%", "100%"]


def test_names_keep_their_spelling_at_the_start_of_a_sentence():
    assert as_sentence("success_once was at least 0.9") == "success_once was at least 0.9."
    assert as_sentence("the limit was reached") == "The limit was reached."
