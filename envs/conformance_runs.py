"""Running an environment for the conformance suite: drawn assignments and actions, copied and compared results, and the
error that names a violated rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from embodied.errors import CorrectnessAlarm
from embodied.random import derive_seed, generator
from envs.api import Assignments, Bounds, EnvSpec, StepResult, VectorEnv

SEED = 20240917
CHUNK = 3
CHUNKS = 6


@dataclasses.dataclass(frozen=True)
class Script:
    """What to do: assignments [N], actions [T, N, C, A], and for each chunk the assignments that come next [N]."""

    assignments: Assignments
    actions: torch.Tensor
    following: list[Assignments]


def draw_assignments(env: VectorEnv, *purpose: int | str) -> Assignments:
    spec = env.spec
    rows = range(env.num_envs)
    tasks = [row % spec.tasks for row in rows]
    states = [spec.initial_states[task] for task in tasks]
    return Assignments(
        task=torch.tensor(tasks),
        initial_state=torch.tensor([row % count if count else -1 for row, count in zip(rows, states, strict=True)]),
        seed=torch.tensor([derive_seed(SEED, *purpose, row) for row in rows]),
    )


def draw_actions(spec: EnvSpec, shape: tuple[int, ...], *purpose: int | str) -> torch.Tensor:
    """float32 [*shape, A], uniform over what the spec allows."""
    noise = torch.rand(*shape, spec.action.dim, generator=generator(SEED, *purpose))
    if spec.action.kind is Bounds.DISCRETE:
        return (noise * spec.action.choices).floor().clamp(max=spec.action.choices - 1)
    low = torch.tensor(spec.action.low).clamp(min=-1e3)
    high = torch.tensor(spec.action.high).clamp(max=1e3)
    return low + noise * (high - low)


def make_script(env: VectorEnv, name: str, chunks: int = CHUNKS, steps: int = CHUNK) -> Script:
    return Script(
        assignments=draw_assignments(env, name),
        actions=draw_actions(env.spec, (chunks, env.num_envs, steps), name),
        following=[draw_assignments(env, name, "next", chunk) for chunk in range(chunks)],
    )


def advance(env: VectorEnv, actions: torch.Tensor, following: Assignments) -> list[StepResult]:
    """One chunk in every slot, all under way at once; copies of the results."""
    for slot in range(env.slots):
        env.send(actions[env.rows(slot)], slot, following[env.rows(slot)])
    return [copy(env.recv(slot)) for slot in range(env.slots)]


def run(env: VectorEnv, script: Script, begin: int = 0) -> list[list[StepResult]]:
    return [
        advance(env, a, f) for a, f in zip(script.actions[begin:], script.following[begin:], strict=True)
    ]  # fmt: skip


def copy(value: Any) -> Any:
    """The same records with tensors of their own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if dataclasses.is_dataclass(value):
        return type(value)(**{f.name: copy(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value


def difference(left: Any, right: Any, path: str = "") -> str | None:
    """Where two nested records differ first, None if they are equal to the bit."""
    if isinstance(left, torch.Tensor):
        same = left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right)
        return None if same else path
    if dataclasses.is_dataclass(left) and not isinstance(left, type) and type(left) is type(right):
        pairs = [(getattr(left, f.name), getattr(right, f.name), f"{path}.{f.name}") for f in dataclasses.fields(left)]
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(left, right, strict=True))]
    else:
        return None if left == right else path
    return next((found for a, b, p in pairs if (found := difference(a, b, p))), None)


class ConformanceError(CorrectnessAlarm):
    """An environment violates a rule of the contract.

    rule: its name, e.g. "exact_reset".
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"Rule {rule!r} is violated: {message}")
        self.rule = rule


def require(condition: bool, rule: str, message: str) -> None:
    if not condition:
        raise ConformanceError(rule, message)


def require_equal(left: Any, right: Any, rule: str, message: str) -> None:
    where = difference(left, right)
    require(where is None, rule, f"{message}; the first difference is in {where}.")
