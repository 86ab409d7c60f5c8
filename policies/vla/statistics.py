"""Action and proprioception statistics of a dataset, in the layout published checkpoints carry as `norm_stats`.

Normalisation maps the 1st..99th percentile range [q01, q99] to [-1, 1]; dimensions outside the mask (a gripper) are
left as they are, and dimensions that never change (q01 == q99) are pinned to their constant.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch

from embodied.errors import CheckpointError, ConfigurationError, suggest

Statistics = dict[str, dict[str, Any]]  # dataset name -> {"action": {...}, "proprio": {...}, "num_transitions": ...}


class RangeGuard(enum.Enum):
    """What is added to q99 - q01: OpenVLA adds nothing, OpenVLA-OFT 1e-8."""

    NONE = 0.0
    EPSILON = 1e-8


class QuantileScale:
    """The affine map between raw values and [-1, 1] given by q01, q99 and a mask.

    Raises CheckpointError where an entry has no such numbers.
    """

    def __init__(self, entry: dict[str, Any], guard: RangeGuard) -> None:
        try:
            self.low = torch.tensor(entry["q01"], dtype=torch.float64, device="cpu")
            self.high = torch.tensor(entry["q99"], dtype=torch.float64, device="cpu")
            self.mask = torch.tensor(entry.get("mask") or [True] * len(self.low), dtype=torch.bool, device="cpu")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"Action statistics are damaged ({type(error).__name__}: {error}).") from error
        if self.low.ndim != 1 or not self.low.shape == self.high.shape == self.mask.shape:
            raise CheckpointError(
                f"Action statistics are damaged: q01 is {list(self.low.shape)}, q99 {list(self.high.shape)}, mask "
                f"{list(self.mask.shape)}; expected one number a dimension in each."
            )
        if not bool((self.high >= self.low).all()) or not bool(torch.isfinite(self.high - self.low).all()):
            raise CheckpointError(
                f"Action statistics are damaged: q01 {self.low.tolist()} to q99 {self.high.tolist()}; expected finite "
                "numbers, none of them below."
            )
        self._guard = guard.value

    def __len__(self) -> int:
        return len(self.low)

    def unnormalise(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [..., A] raw values of `values` [..., A] in [-1, 1]."""
        low, high, mask = (t.to(values.device) for t in (self.low, self.high, self.mask))
        values = values.double()
        return torch.where(mask, 0.5 * (values + 1) * (high - low + self._guard) + low, values).float()

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [..., A] in [-1, 1] of raw `values` [..., A], clipped; a constant dimension gives 0."""
        low, high, mask = (t.to(values.device) for t in (self.low, self.high, self.mask))
        values = values.double()
        width = high - low
        safe = torch.where(width > 0, width + self._guard, torch.ones_like(width))
        scaled = torch.where(width > 0, 2 * (values - low) / safe - 1, torch.zeros_like(values)).clamp(-1, 1)
        return torch.where(mask, scaled, values).float()


class StandardScale:
    """(value - mean) / deviation of a dataset, clipped to five deviations, for numbers that a critic looks at."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.mean = torch.tensor(entry["mean"], dtype=torch.float32)
        self.deviation = torch.tensor(entry["std"], dtype=torch.float32).clamp_min(1e-3)

    def __len__(self) -> int:
        return len(self.mean)

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [..., P] of raw `values` [..., P]."""
        return ((values.float() - self.mean.to(values.device)) / self.deviation.to(values.device)).clamp(-5, 5)


def select(statistics: Statistics, key: str | None) -> tuple[str, dict[str, Any]]:
    """The dataset `key` of a checkpoint's statistics; None takes the only one there is.

    Raises ConfigurationError naming the valid keys where `key` is absent or ambiguous.
    """
    if key is None:
        if len(statistics) == 1:
            return next(iter(statistics.items()))
        raise ConfigurationError(
            f"The checkpoint carries statistics of {len(statistics)} datasets; `statistics` must name one. "
            + suggest("", sorted(statistics), noun="keys")
        )
    if key not in statistics:
        raise ConfigurationError(
            f"The checkpoint has no action statistics for {key!r}. " + suggest(key, sorted(statistics), noun="keys")
        )
    return key, statistics[key]


def from_bounds(low: tuple[float, ...], high: tuple[float, ...], state_dim: int) -> dict[str, Any]:
    """Statistics of an environment's own action bounds, for a policy that starts without data.

    Proprioception is passed through unscaled (mask False) until a dataset's statistics replace these.
    """
    dims = len(low)
    centre = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    bounds = {"min": list(low), "max": list(high), "q01": list(low), "q99": list(high), "mean": centre}
    state = {"min": [-1.0], "max": [1.0], "q01": [-1.0], "q99": [1.0], "mean": [0.0], "std": [1.0], "mask": [False]}
    return {
        "action": {**bounds, "std": [(b - a) / 2 for a, b in zip(low, high, strict=True)], "mask": [True] * dims},
        "proprio": {name: value * state_dim for name, value in state.items()},
        "num_transitions": 0,
        "num_trajectories": 0,
    }


def compute(
    actions: np.ndarray,
    trajectories: int,
    proprio: np.ndarray | None = None,
    mask: list[bool] | None = None,
    privileged: np.ndarray | None = None,
) -> dict[str, Any]:
    """Statistics of a dataset: `actions` [N, A], `proprio` [N, S] and `privileged` [N, P] over all N transitions.

    mask: which action dimensions are normalised; None normalises all. Raises ConfigurationError on empty or
    non-finite data.
    """

    def entry(values: np.ndarray, name: str) -> dict[str, Any]:
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
            raise ConfigurationError(
                f"Statistics need finite {name} of shape [N, dims] with N > 0; got shape {values.shape}, "
                f"{int((~np.isfinite(values)).sum())} non-finite numbers. Check the recorded demonstrations."
            )
        return {
            "mean": values.mean(0).tolist(),
            "std": values.std(0).tolist(),
            "max": values.max(0).tolist(),
            "min": values.min(0).tolist(),
            "q01": np.quantile(values, 0.01, axis=0).tolist(),
            "q99": np.quantile(values, 0.99, axis=0).tolist(),
        }

    result: dict[str, Any] = {"action": entry(actions, "actions")}
    result["action"]["mask"] = list(mask) if mask is not None else [True] * actions.shape[1]
    if proprio is not None:
        result["proprio"] = entry(proprio, "proprioception")
    if privileged is not None:
        result["privileged"] = entry(privileged, "privileged state")
    return {**result, "num_transitions": len(actions), "num_trajectories": trajectories}
