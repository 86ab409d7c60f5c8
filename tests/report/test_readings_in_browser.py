"""Readings of a chart by keyboard, and how they name lines that have no record there, in a real browser."""

from __future__ import annotations

import re

import pytest
from browser import PROGRAM, visit
from synthetic_run import make_run

from embodied.report import build_comparison, build_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium)")

PRESS = """
addEventListener("load", () => {
  const plot = document.querySelector(".plot");
  plot.focus();
  const read = (key) => {
    plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return plot.querySelector(".tip").hidden ? "hidden" : plot.querySelector(".tip").textContent;
  };
  document.body.dataset.focused = document.activeElement === plot;
  document.body.dataset.tips = ["Home", "ArrowRight", "End", "ArrowRight", "Escape"].map(read).join("|");
});
"""


def tips(dom: str) -> list[str]:
    found = re.search(r'data-tips="([^"]*)"', dom)
    assert found
    return found[1].split("|")


def test_arrow_keys_read_a_chart_and_a_line_without_a_record_says_where_its_nearest_is(bare, tmp_path):
    seen = visit(build_report(bare), tmp_path, script=PRESS)
    assert seen.console == []
    assert 'data-focused="true"' in seen.dom
    first, second, last, end, hidden = tips(seen.dom)
    assert re.fullmatch(r"at 0 environment stepsTraining [\d.]+%Evaluation 3.1% \([\d.]+% – [\d.]+%\)", first)
    assert re.fullmatch(r"at 8.19k environment stepsTraining [\d.]+%Evaluation 3.1% \(.*\) at 0", second)
    assert last == end
    assert "at 492k environment steps" in last
    assert hidden == "hidden"


def test_readings_keep_the_whole_name_of_a_line(tmp_path):
    runs = [make_run(tmp_path, seed=seed, videos=False) for seed in (1, 2)]
    seen = visit(build_comparison(runs), tmp_path, script=PRESS)
    assert "mean and range of seeds 1, 2 " in tips(seen.dom)[0]
