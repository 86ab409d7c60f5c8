"""Paths of a run's recipe, as it keeps them."""

from __future__ import annotations

from embodied.runs.files import anchored


def test_paths_of_what_is_there_become_absolute_and_all_else_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("policy", "tiny", "a.jsonl", "CartPole"):
        (tmp_path / name).mkdir()
    values = {
        "env": {"id": "CartPole"},
        "policy": {"checkpoint": "policy"},
        "model": {"source": "tiny", "reference": "owner/name", "other": None},
        "problems": {"files": ("a.jsonl", "hub:owner/name")},
        "evaluation": {"problems": None},
    }
    values["record"] = {"dataset": "data/new"}
    keys = ["policy.checkpoint", "model.source", "model.reference", "model.other", "problems.files"]
    kept = anchored(
        values, [*keys, "evaluation.problems.files", "critic.source"], frozenset({"tiny"}), ["record.dataset"]
    )
    assert kept == {
        **values,
        "policy": {"checkpoint": str(tmp_path / "policy")},
        "record": {"dataset": str(tmp_path / "data" / "new")},
        "problems": {"files": [str(tmp_path / "a.jsonl"), "hub:owner/name"]},
    }
    assert values["policy"]["checkpoint"] == "policy"
