"""The pages of `embodied eval` and `reasoning eval`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, visit
from synthetic_run import make_videos, text_of

from embodied.report import build_evaluation_page
from reasoning.evaluation.metrics import ProblemResult, Try, estimates, rates
from reasoning.evaluation.page import write_results
from reasoning.generation.api import Finish
from reasoning.problems import ask
from reasoning.rewards.extraction import Found
from reasoning.rewards.pool import Outcome


def record(**changes: Any) -> dict[str, Any]:
    episode = {"task": 0, "initial_state": -1, "seed": 1, "length": 9, "returns": 1.0, "success_once": True}
    return {
        "policy": {"folder": "/somewhere/policy", "sha256": {}},
        "environment": {"id": "gym/CartPole-v1"},
        "protocol": {"sampling": {"decode": "greedy"}},
        "device": "cpu",
        "versions": {},
        "metrics": {
            "eval/success_once": 0.5, "eval/success_once_low": 0.1, "eval/success_once_high": 0.9,
            "eval/success_at_end": 0.5, "eval/return": 1.5, "eval/length": 9.0, "eval/episodes": 2.0,
        },
        "tasks_named": {},
        "tasks": [{"task": 0, "instruction": "", "episodes": 2, "successes": 1, "interval": [0.1, 0.9]}],
        "episodes": [episode, episode | {"success_once": False}],
        "films": {"of": "failures", "episodes": [], "missing": ""},
        **changes,
    }  # fmt: skip


def test_evaluation_names_its_policy_and_lists_tasks_only_where_there_is_something_to_tell(tmp_path):
    page = build_evaluation_page(record(), tmp_path / "r.html", command="c").read_text()
    assert "Policy /somewhere/policy on gym/CartPole-v1; the 95% interval of the rate is 10% to 90%." in text_of(page)
    assert "<h2>Tasks</h2>" not in page
    task = record()["tasks"][0]
    two = record(tasks=[task, task | {"task": 1}])
    assert "<h2>Tasks</h2>" in build_evaluation_page(two, tmp_path / "r.html", command="c").read_text()


def test_films_are_shown_where_success_means_nothing(tmp_path):
    make_videos(tmp_path)
    film = {"episode": 1, "path": "after_4of4.mp4", "same": True}
    metrics = {"eval/return": 1.5, "eval/length": 9.0, "eval/episodes": 2.0}
    films = {"of": "failures", "episodes": [film], "missing": "The first 1 of 2 failures."}
    page = build_evaluation_page(record(metrics=metrics, films=films), tmp_path / "r.html", command="c").read_text()
    assert 'src="after_4of4.mp4"' in page
    assert "<h2>Episodes</h2>" in page
    assert "failures" not in text_of(page)


def reasoning_page(folder: Path, *, right: int) -> Path:
    """Two problems, of which the first `right` are answered right."""
    judged = [
        Try("2", 4, Finish.LENGTH, i < right, "2", Found.BOXED, Outcome.GRADED, float(i < right)) for i in range(2)
    ]
    results = [ProblemResult(ask(f"1+1 and {i}?", "2"), (one,)) for i, one in enumerate(judged)]
    return write_results(folder, {"model": "m" * 200}, results, estimates(results), rates(results))[1]


def test_reasoning_page_gives_no_length_of_right_answers_where_there_are_none(tmp_path):
    assert "tokens mean of right –" in text_of(reasoning_page(tmp_path, right=0).read_text())
    assert "tokens mean of right 4.0" in text_of(reasoning_page(tmp_path, right=1).read_text())


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium)")
def test_reasoning_page_counts_and_shows_problems_of_a_kind_and_fits_a_phone(tmp_path):
    script = """
    addEventListener("load", () => {
      const press = (kind) => {
        document.querySelector(`[data-kind="${kind}"]`).click();
        const shown = [...document.querySelectorAll(".problem")].filter((problem) => !problem.hidden);
        return `${shown.length} ${document.querySelector("#none").hidden}`;
      };
      document.body.dataset.shown = ["always right", "sometimes right", "all"].map(press).join();
      document.body.style.width = "360px";
      const wide = [...document.body.querySelectorAll("*")]
        .filter((e) => !e.closest(".scroll") && e.getBoundingClientRect().width > 361);
      document.body.dataset.wide = wide.map((e) => e.tagName).join();
    });
    """
    seen = visit(reasoning_page(tmp_path, right=1), tmp_path / "scratch", script=script, width=500)
    assert seen.console == []
    assert re.search(r">all 2</button>\s*<button[^>]*>always right 1<.*>sometimes right 0<", seen.dom, re.DOTALL)
    assert 'data-shown="1 true,0 false,2 true"' in seen.dom
    assert 'data-wide=""' in seen.dom
