"""An evaluation's page: the rate with its interval, every task, films, and how to do it again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from embodied.report.page import Video, environment, shown_path, video_on_page, write_page

_ROWS = 2000  # of the table of episodes: a page with more is no longer browsed


def build_evaluation_page(record: dict[str, Any], out: Path, *, command: str) -> Path:
    """Write the page of an evaluation to `out`.

    record: contents of results.json (see `interaction.evaluate.results_record`); paths of its films are relative to the
    page. command: that repeats it. Raises RefusedInput where the page cannot be written.
    """
    page = environment().get_template("evaluation.html.j2").render(**_content(record, out.parent, command))
    write_page(out, page)
    return out


def _content(record: dict[str, Any], folder: Path, command: str) -> dict[str, Any]:
    metrics, episodes = record["metrics"], record["episodes"]
    known = "eval/success_once" in metrics
    films, missing = _films(record, folder)
    successes = sum(episode["success_once"] for episode in episodes) if known else 0
    filmed = record["films"].get("of", "failures")
    meant = {"failures": len(episodes) - successes, "successes": successes, "all": len(episodes)}[filmed]
    return {
        "title": f"Evaluation of {record['environment']['id']}",
        "env": record["environment"]["id"],
        "policy": shown_path(Path(record["policy"]["folder"])),
        "has_success": known,
        "metrics": metrics,
        "tasks": record["tasks"],
        "conditions": record.get("robustness", []),
        "episodes": [(number, episode) for number, episode in enumerate(episodes)][:_ROWS],
        "left_out": max(0, len(episodes) - _ROWS),
        # without a notion of success none failed
        "filmed": {"failures": "Failures", "successes": "Successes"}.get(filmed, "Episodes") if known else "Episodes",
        "nobody": known and not meant,
        "films": films,
        "missing": missing if known else "",
        "command": command,
        "decode": record["protocol"]["sampling"]["decode"],
        "facts": list(_facts(record)),
    }


def _films(record: dict[str, Any], folder: Path) -> tuple[list[Video], str]:
    """The films there are, and why there are no more."""
    shown = []
    for film in record["films"]["episodes"]:
        episode = record["episodes"][film["episode"]]
        name = record["tasks_named"].get(str(episode["task"]), f"task {episode['task']}")
        title = f"Episode {film['episode']}: {name}, {episode['length']} steps, return {episode['returns']:.2f}"
        if not film["same"]:
            title += " (it came out differently when played again: the simulator does not repeat itself exactly)"
        shown.append(video_on_page(folder, folder / film["path"], title))
    return shown, str(record["films"]["missing"])


def _facts(record: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """What the numbers depend on, as (name, value)."""
    yield "policy", record["policy"]["folder"]
    for name, digest in record["policy"]["sha256"].items():
        yield f"SHA-256 of {name}", digest
    yield "device", record["device"]
    for section in ("protocol", "environment", "versions"):
        for key, value in record[section].items():
            yield f"{section}.{key}", value if isinstance(value, str) else json.dumps(value)
