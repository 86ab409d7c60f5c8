"""The evaluation as files: results.json for programs, index.html for readers. Both hold every response."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from reasoning.evaluation.metrics import Estimate, ProblemResult

_TEMPLATE = Path(__file__).with_name("page.html")


def write_results(
    folder: Path,
    described: dict[str, Any],
    results: Sequence[ProblemResult],
    estimates: dict[str, Estimate],
    rates: dict[str, float],
) -> tuple[Path, Path]:
    """Write both files and return their paths.

    described: what was evaluated and how (model, data, sampling, versions), plain values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        **described,
        "metrics": {name: dataclasses.asdict(estimate) for name, estimate in estimates.items()},
        "rates": rates,
        "problems": [_plain(result) for result in results],
    }
    results_path, page_path = folder / "results.json", folder / "index.html"
    results_path.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page_path.write_text(page.render(record=record, described=_lines(described)), encoding="utf-8")
    return results_path, page_path


def _plain(result: ProblemResult) -> dict[str, Any]:
    return {
        "origin": result.problem.origin,
        "question": result.problem.text,
        "answers": list(result.problem.answers),
        "right": result.right,
        "tries": [dataclasses.asdict(attempt) for attempt in result.tries],
    }


def _lines(described: dict[str, Any]) -> list[tuple[str, str]]:
    return [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in described.items()]
