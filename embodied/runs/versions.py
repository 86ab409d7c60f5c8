"""Versions of everything that decides what a run does."""

from __future__ import annotations

import importlib.metadata
import platform

from embodied import __version__


def versions() -> dict[str, str]:
    """Of everything that decides what a run does."""
    names = ("torch", "mani-skill", "sapien", "mujoco", "gymnasium", "numpy", "transformers")
    own = {"embodied": __version__, "python": platform.python_version(), "machine": platform.machine()}
    return own | {name: importlib.metadata.version(name) for name in names}
