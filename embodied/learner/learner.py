"""One optimiser step at a time: gradients of micro-batches added up, checked, clipped and applied.

The learner knows parameters and losses, not what they are about. A loss function returns its share of the global
batch's loss (already divided by the batch's denominator), so that one big batch and its micro-batches give the same
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from embodied.algorithms import alarms
from embodied.algorithms.statistics import Mean, Statistic, merge
from embodied.config import config
from embodied.errors import CorrectnessAlarm
from embodied.learner.sharding import full, like

Batch = TypeVar("Batch")


@config
class LearnerConfig:
    """lr: of the actor (Adam with decoupled weight_decay, betas and eps as usual).
    value_lr: of the critic's own parameters; None means lr.
    warmup_steps: the first optimiser steps, in which the learning rates rise linearly; Adam knows the scale of the
    gradients only after some. decay_steps: those after the warm-up in which the rates fall linearly to decay_to times
    themselves, where they stay; 0 leaves them constant. Large steps learn fast, small ones settle.
    grad_clip: largest global gradient norm; None does not clip.
    epochs: passes over a rollout. global_batch: decisions per optimiser step; None takes the whole rollout.
    micro_batch: decisions per forward and backward pass; None takes the global batch.
    target_kl: stop the epochs of an iteration once the approximate KL to the policy before its update exceeds it; None
    never does.
    precision: arithmetic of the forward pass; parameters and optimiser state are float32.
    activations: "recompute" computes those of every block again in the backward pass instead of keeping them.
    """

    lr: float = 3e-4
    value_lr: float | None = None
    warmup_steps: int = 0
    decay_steps: int = 0
    decay_to: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5
    weight_decay: float = 0.0
    grad_clip: float | None = 0.5
    epochs: int = 1
    global_batch: int | None = None
    micro_batch: int | None = None
    target_kl: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    activations: Literal["keep", "recompute"] = "keep"

    def __post_init__(self) -> None:
        for name in ("lr", "value_lr", "eps", "grad_clip", "target_kl"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be a finite number above 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; expected two numbers of at least 0 and below 1")
        for name in ("warmup_steps", "decay_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be negative")
        if not 0 <= self.decay_to <= 1:
            raise ValueError(f"decay_to is {self.decay_to}; it is a share of the learning rate, from 0 to 1")
        for name in ("epochs", "global_batch", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


class Learner:
    """Adam over a module's parameter groups.

    groups: parameters by role ("actor", "critic"); each role may have its own learning rate, and may be held still.
    """

    def __init__(self, groups: dict[str, list[nn.Parameter]], options: LearnerConfig, device: str) -> None:
        self.options = options
        self.device = device
        self.groups = {role: parameters for role, parameters in groups.items() if parameters}
        rates = {"critic": options.value_lr or options.lr}
        self.optimizer = torch.optim.AdamW(
            [{"params": p, "lr": rates.get(role, options.lr), "role": role} for role, p in self.groups.items()],
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=True,
        )

    def step(
        self,
        micro_batches: Iterable[Batch],
        loss_of: Callable[[Batch], tuple[torch.Tensor, dict[str, Statistic]]],
        *,
        frozen: tuple[str, ...] = (),
        accept: Callable[[dict[str, Statistic]], bool] = lambda statistics: True,
    ) -> tuple[dict[str, Statistic], bool]:
        """One optimiser step over the micro-batches of one global batch.

        loss_of: a micro-batch's share of the loss, with gradient, and its statistics. frozen: roles whose parameters
        stay as they are. accept: looks at the batch's statistics before the step; False leaves the parameters alone.
        Returns the merged statistics, with the gradient norm, and whether the step was taken.

        Raises CorrectnessAlarm for a loss or gradient that is not finite; the parameters are then untouched.
        """
        self.optimizer.zero_grad(set_to_none=True)
        parts: list[dict[str, Statistic]] = []
        for batch in micro_batches:
            with self.arithmetic():
                loss, statistics = loss_of(batch)
            alarms.require_finite_loss(loss)
            loss.backward()
            parts.append(statistics)
        moving = [p for role, params in self.groups.items() if role not in frozen for p in params if p.grad is not None]
        for role in frozen:
            for parameter in self.groups.get(role, []):
                parameter.grad = None
        limit = self.options.grad_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(moving, limit, foreach=True) if moving else torch.zeros((), device=self.device)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if not bool(torch.isfinite(norm)):
            named = [(f"{role}[{i}]", p) for role, params in self.groups.items() for i, p in enumerate(params)]
            alarms.require_finite_gradients(named)
            raise CorrectnessAlarm(f"The norm of finite gradients is {norm.item()}: it overflowed. No step was taken.")
        merged = merge(*parts)
        taken = accept(merged)
        if taken:
            self._schedule()
            self.optimizer.step()
        everything = torch.ones(1, dtype=torch.bool, device=norm.device)
        merged["learner/gradient_norm"] = Mean.of(norm.reshape(1), everything)
        return merged, taken

    def arithmetic(self) -> torch.autocast:
        """The precision of forward passes: whatever is compared with the loss's numbers is computed in it too."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.options.precision == "bfloat16")

    def rate_at(self, taken: int) -> float:
        """The share of the learning rates that the step after `taken` others uses."""
        options = self.options
        if taken < options.warmup_steps:
            return (taken + 1) / options.warmup_steps
        if not options.decay_steps:
            return 1.0
        done = min(1.0, (taken - options.warmup_steps) / options.decay_steps)
        return 1.0 + (options.decay_to - 1.0) * done

    def _schedule(self) -> None:
        """Set the learning rates of the step that follows. How many were taken is in Adam's own state."""
        if not (self.options.warmup_steps or self.options.decay_steps):
            return
        for group in self.optimizer.param_groups:
            states = [self.optimizer.state[p] for p in group["params"] if p in self.optimizer.state]
            taken = max((int(state["step"]) for state in states), default=0)
            base = (self.options.value_lr or self.options.lr) if group["role"] == "critic" else self.options.lr
            group["lr"] = base * self.rate_at(taken)

    def tensors(self) -> list[torch.Tensor]:
        """The optimiser state's tensors themselves."""
        return [t for entry in self.optimizer.state.values() for t in entry.values() if isinstance(t, torch.Tensor)]

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, whole, with string keys throughout; every rank must call."""
        state = self.optimizer.state_dict()["state"]
        return {"state": {str(index): {k: full(v) for k, v in entry.items()} for index, entry in state.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a copy of a `state_dict`; learning rates and the like come from the options."""
        current = self.optimizer.state_dict()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        current["state"] = {
            int(index): {k: like(v, parameters[int(index)]).clone() if v.dim() else v.clone() for k, v in entry.items()}
            for index, entry in state["state"].items()
        }
        self.optimizer.load_state_dict(current)
