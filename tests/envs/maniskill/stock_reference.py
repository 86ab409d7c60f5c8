"""Stock ManiSkill environments as the reference that ours are compared with, and small helpers for both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import gymnasium
import mani_skill.envs  # noqa: F401 (registers the tasks)
import sapien
import torch
from mani_skill.envs.sapien_env import BaseEnv

from envs.api import Assignments
from envs.batch import BatchEnv
from envs.maniskill.quiet import without_graphics, without_noise


@contextlib.contextmanager
def stock(task: str, **options) -> Iterator[BaseEnv]:
    """A stock single environment made by gymnasium, without graphics where nothing is rendered."""
    drawn = "render_backend" in options
    with contextlib.ExitStack() as scope:
        scope.enter_context(without_noise())
        if not drawn:
            scope.enter_context(without_graphics())
            options["render_backend"] = "none"
        env = gymnasium.make(task, sim_backend="physx_cpu", **{"obs_mode": "state", **options}).unwrapped
        yield env
        env.close()


def can_render() -> bool:
    """Whether this machine has a Vulkan device that SAPIEN can use."""
    try:
        sapien.render.RenderSystem(sapien.Device("cpu"))
    except RuntimeError:
        return False
    return True


def random_actions(env: BatchEnv, steps: int, seed: int = 0, dim: int | None = None) -> torch.Tensor:
    """float32 [steps, n, A] within the action limits."""
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    noise = torch.rand(steps, env.num_envs, env.spec.action.dim, generator=torch.Generator().manual_seed(seed))
    return low + noise * (high - low)


def everyone(env: BatchEnv) -> torch.Tensor:
    return torch.ones(env.num_envs, dtype=torch.bool)


def start(env: BatchEnv, seeds: list[int]) -> None:
    """Reset all environments to `seeds`."""
    env.reset(torch.arange(env.num_envs), Assignments.from_seeds(seeds))


def trajectory(env: BatchEnv, row: int, seed: int, actions: torch.Tensor) -> torch.Tensor:
    """float32 [steps + 1, S + 1]: states and rewards of one environment of the batch, the others standing still."""
    only = torch.zeros(env.num_envs, dtype=torch.bool)
    only[row] = True
    index = torch.tensor([row])
    env.reset(index, Assignments.from_seeds([seed]))
    rows = [torch.cat([env.observe(index).state[0], torch.zeros(1)])]
    for action in actions:
        step = env.step(action.expand(env.num_envs, -1), only)
        rows.append(torch.cat([env.observe(index).state[0], step.reward[row : row + 1]]))
    return torch.stack(rows)
