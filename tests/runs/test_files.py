"""Paths of a run's recipe, as it keeps them, and names that nobody else has."""

from __future__ import annotations

import pytest

from embodied.errors import RefusedInput
from embodied.runs.files import anchored, reserved, reserved_folder


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


def test_two_at_once_get_names_of_their_own_and_leave_nothing_empty(tmp_path):
    path = tmp_path / "new" / "results.json"
    with reserved(path) as first, reserved(path) as second, reserved(path) as third:
        assert [one.name for one in (first, second, third)] == ["results.json", "results-2.json", "results-3.json"]
        second.write_text("{}")
    assert [one.name for one in path.parent.iterdir()] == ["results-2.json"]
    with reserved(path) as again:
        assert again == path


def test_two_at_once_get_folders_of_their_own_and_leave_nothing_empty(tmp_path):
    path = tmp_path / "new" / "evaluation"
    with reserved_folder(path) as first, reserved_folder(path) as second, reserved_folder(path) as third:
        assert [one.name for one in (first, second, third)] == ["evaluation", "evaluation-2", "evaluation-3"]
        (second / "results.json").write_text("{}")
    assert [one.name for one in path.parent.iterdir()] == ["evaluation-2"]
    with reserved_folder(path) as again:
        assert again == path


def test_a_place_where_no_file_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedInput, match="cannot be written"), reserved(tmp_path / "file" / "results.json"):
        pass
    with pytest.raises(RefusedInput, match="cannot be written"), reserved_folder(tmp_path / "file" / "evaluation"):
        pass
