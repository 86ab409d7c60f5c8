"""Reference values of another implementation, read once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parents[1] / "golden" / "rl_math"


@dataclass(frozen=True)
class Case:
    """One reference case: parameters, logged metrics, inputs and outputs (float64, or bool and int as stored)."""

    params: dict[str, Any]
    metrics: dict[str, float]
    none_inputs: list[str]
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]


class Golden:
    """All cases by name."""

    def __init__(self) -> None:
        self.cases = json.loads((FOLDER / "rl_math.json").read_text())["cases"]
        self._arrays = np.load(FOLDER / "rl_math.npz", allow_pickle=False)

    def __getitem__(self, name: str) -> Case:
        described = self.cases[name]
        tensors: dict[str, dict[str, torch.Tensor]] = {"in": {}, "out": {}}
        for key in self._arrays.files:
            if key.startswith(f"{name}/"):
                _, side, field = key.split("/")
                tensor = torch.from_numpy(self._arrays[key])
                tensors[side][field] = tensor.double() if tensor.is_floating_point() else tensor
        return Case(
            described["params"],
            described.get("metrics", {}),
            described["none_inputs"],
            tensors["in"],
            tensors["out"],
        )


GOLDEN = Golden()
