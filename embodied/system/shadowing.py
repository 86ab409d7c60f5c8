"""Detect a foreign package that hides one of this project's, whose import names are everyday words.

`envs`, `policies`, `configs`, `reasoning` and `sim_assets` are likely names in other people's folders; the first one on
sys.path wins, and the failure would otherwise be an AttributeError far from its cause. Imports nothing: it only asks
the path finder, about a millisecond.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from embodied.errors import ConfigurationError

PACKAGES = ("envs", "policies", "configs", "reasoning", "sim_assets")


@dataclasses.dataclass(frozen=True)
class ForeignPackage:
    """A package of another origin that Python would import under one of our names.

    `entry` is the item of sys.path that leads to it.
    """

    name: str
    found: Path
    expected: Path
    entry: str


def find_foreign(path: Sequence[str] | None = None) -> list[ForeignPackage]:
    """Every package name of ours that leads elsewhere on `path` (by default sys.path)."""
    home = Path(__file__).resolve().parents[2]
    foreign = []
    for name in PACKAGES:
        expected = home / name
        if not (expected / "__init__.py").exists():
            continue  # not part of this installation
        spec = PathFinder.find_spec(name, None if path is None else list(path))
        if spec is None:
            continue  # importing it will fail by itself, and say so
        # A folder without __init__.py has no origin but may have several locations.
        found = Path(spec.origin).parent if spec.origin else Path(next(iter(spec.submodule_search_locations or [""])))
        if found.resolve() != expected:
            foreign.append(ForeignPackage(name, found, expected, str(found.parent)))
    return foreign


def check_shadowing(path: Sequence[str] | None = None) -> None:
    """Refuse to start when a foreign package hides one of this project's.

    Raises:
        ConfigurationError: names both places and how to get the foreign one out of the way.
    """
    foreign = find_foreign(path)
    if not foreign:
        return
    lines = [
        f"Expected the package {item.name!r} of this project ({item.expected}), but Python finds another one first: "
        f"{item.found}."
        for item in foreign
    ]
    entries = sorted({item.entry for item in foreign})
    where = " and ".join("the current folder" if entry in {"", str(Path.cwd())} else entry for entry in entries)
    remedy = (
        f"Take {where} off the path (PYTHONPATH, or run `embodied` from another folder), rename that package, "
        f"or uninstall it from this environment ({sys.prefix})."
    )
    raise ConfigurationError(" ".join([*lines, remedy]))
