"""The description beside a saved policy's weights, `policy.json`: its kind, its options, and what it was made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embodied.config import parse
from embodied.errors import AssetError, ConfigurationError
from policies.api import Interface

DESCRIPTION = "policy.json"


def read_description(folder: Path) -> dict[str, Any]:
    """What `Policy.metadata` gave for the policy saved in `folder`.

    Raises AssetError where there is no description, or one without the names that every kind has.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        published = (folder / "config.json").is_file()
        hint = " It may be a published checkpoint: start from it with policy.checkpoint=FOLDER." if published else ""
        raise AssetError(f"{folder} holds no saved policy: there is no {DESCRIPTION} in it.{hint}")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise AssetError(f"{path} is not valid JSON: {error}.") from error
    named = values if isinstance(values, dict) else {}
    expected = {"kind": str, "options": dict, "interface": dict}
    wrong = [name for name, kind in expected.items() if not isinstance(named.get(name), kind)]
    if wrong:
        raise AssetError(f"{path} does not describe a policy: no {', '.join(wrong)} in it, or of the wrong type.")
    return values


def described_interface(description: dict[str, Any]) -> Interface:
    """The interface that a description names. Raises AssetError where it is none."""
    try:
        return parse(Interface, description["interface"], at="interface")
    except ConfigurationError as error:
        raise AssetError(f"a saved policy's description is damaged: {error}") from None
