"""Reference arrays of the OpenVLA family and a loader for the tiny reference checkpoint they were made with."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.api import Interface
from policies.vla.prompt import small_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = GOLDEN / "openvla" / "checkpoint"
STATISTICS = "libero_spatial_no_noops"


@functools.cache
def arrays(name: str) -> dict[str, torch.Tensor]:
    """All arrays of `golden/<name>.npz` as tensors."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file}


@functools.cache
def facts(name: str) -> dict[str, Any]:
    """`golden/<name>.json`."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def checkpoint_folder(folder: Path) -> Path:
    """A copy of the reference checkpoint that can be loaded as a policy: with our tokenizer, for want of LLaMA's."""
    shutil.copytree(CHECKPOINT, folder, dirs_exist_ok=True)
    small_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def interface(cameras: int = 1) -> Interface:
    """LIBERO's: 7 action dimensions, 8 of state."""
    return Interface(state_dim=8, action_dim=7, cameras=cameras)


def planes(pixel_values: torch.Tensor) -> torch.Tensor:
    """The reference's [B, 6 V, H, W] as [B, V, 2, 3, H, W]."""
    return pixel_values.unflatten(1, (-1, 2, 3))


def assert_gradients(module: torch.nn.Module, expected: dict[str, dict[str, float]], rename=lambda name: name) -> None:
    """Each parameter's gradient has the recorded norm and sum; parameters without record have none."""
    found = {rename(name): p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert set(expected) <= set(found)
    for name, gradient in found.items():
        if name not in expected:
            assert not gradient.any(), name
            continue
        norm = expected[name]["norm"]
        assert abs(gradient.double().norm().item() - norm) <= 1e-4 * max(norm, 1e-2), name
        # a sum of n entries of opposite signs keeps the rounding of its largest terms
        assert abs(gradient.double().sum().item() - expected[name]["sum"]) <= 2e-4 * max(1.0, norm), name
