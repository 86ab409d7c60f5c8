"""OpenVLA (Kim et al. 2024): build it, load a published or saved checkpoint, save it in the same layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.api import Interface
from policies.openvla.config import OpenVLAConfig
from policies.openvla.model import OpenVLAPolicy
from policies.vla import build as _steps
from policies.vla.statistics import Statistics

__all__ = ["Config", "OpenVLAConfig", "OpenVLAPolicy", "build", "load", "save"]

Config = OpenVLAConfig
save = _steps.save


def build(config: OpenVLAConfig, interface: Interface, seed: int = 0, known: Statistics | None = None) -> OpenVLAPolicy:
    """A policy of the preset's size with fresh weights, or with those of `config.checkpoint`.

    known: statistics of the data it is to be fitted to, in place of the checkpoint's.
    """
    return _steps.assemble(OpenVLAPolicy, config, interface, seed, known)


def load(folder: str | Path, **options: Any) -> OpenVLAPolicy:
    """The policy in a folder that `save` wrote or that is in the published layout; `options` replace stored ones."""
    return _steps.load(OpenVLAPolicy, OpenVLAConfig, Path(folder), options)
