"""What we add to some tasks: starts that are spread wider, and a smooth reward. Physics and success stay the task's.

Wider starts make pictures necessary: where a cube always starts within reach of the same movement, a policy that sees
nothing succeeds often enough to look as if it saw. The smooth reward is a potential without gates, made for
`reward_form: relative`: what is earned is then the progress of each step, and 1 at success.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.structs import Pose

_PUSHED = 0.2  # metres between a pushed cube's start and its target
_BEHIND = 0.03  # metres between a cube's middle and the hand that pushes it


@dataclasses.dataclass(frozen=True)
class Variation:
    """measured: attribute of the object whose distance from `middle` (x, y) is spread. moved: attributes of all that
    move with it. potential: float [n] in [0, 1] of the task's present state."""

    measured: str
    moved: tuple[str, ...]
    potential: Callable[[BaseEnv], torch.Tensor]
    middle: tuple[float, float] = (0.0, 0.0)


def _reach(env: BaseEnv, target: torch.Tensor) -> torch.Tensor:
    """[n] from 0 far away to 1 where the hand is at `target` [n, 3]."""
    return 1 - torch.tanh(6 * (env.agent.tcp.pose.p - target).norm(dim=1))


def _shoved(env: BaseEnv, direction: float) -> torch.Tensor:
    """A hand comes to the cube's side that faces away from `direction` (of x); the cube comes to its target."""
    cube, goal = env.obj.pose.p, env.goal_region.pose.p
    side = torch.tensor([-direction * _BEHIND, 0.0, 0.0], device=cube.device)
    left = ((cube - goal)[:, :2].norm(dim=1) / _PUSHED).clamp(max=1.5)
    return (0.4 * _reach(env, cube + side) + 0.6 * (1 - left)).clamp(min=0)


def _picked(env: BaseEnv) -> torch.Tensor:
    """A hand comes to the cube, grasps it, and brings it to the goal."""
    cube, goal = env.cube.pose.p, env.goal_site.pose.p
    grasped = env.agent.is_grasping(env.cube).float()
    near = 1 - torch.tanh(5 * (cube - goal).norm(dim=1))
    return 0.3 * _reach(env, cube) + grasped * (0.3 + 0.4 * near)


VARIATIONS = {
    "PushCube-v1": Variation("obj", ("obj", "goal_region"), functools.partial(_shoved, direction=1.0)),
    "PullCube-v1": Variation("obj", ("obj", "goal_region"), functools.partial(_shoved, direction=-1.0)),
    "PickCube-v1": Variation("cube", ("cube",), _picked),
}
"""By task id: the tasks that know `env.spread` and the reward `smooth`."""


class _SpreadTask(BaseEnv):
    """Mixed in before a task class; see `spread_task`."""

    _variation: Variation
    _factors: tuple[float, float]

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        super()._initialize_episode(env_idx, options)
        middle = torch.tensor(self._variation.middle, device=self.device)
        factors = torch.tensor(self._factors, device=self.device)
        start = getattr(self, self._variation.measured).pose.p[env_idx, :2] - middle
        for name in self._variation.moved:
            item = getattr(self, name)
            place, turn = item.pose.p[env_idx].clone(), item.pose.q[env_idx]
            place[:, :2] += (factors - 1) * start
            item.set_pose(Pose.create_from_pq(place, turn))


@functools.cache
def spread_task(task: type[BaseEnv], task_id: str, factors: tuple[float, float]) -> type[BaseEnv]:
    """A subclass of `task` whose objects start `factors` times further from the middle of their area."""
    variation = {"__module__": __name__, "_variation": VARIATIONS[task_id], "_factors": factors}
    return type(f"Spread{task.__name__}", (_SpreadTask, task), variation)


def smooth_reward(env: BaseEnv, task_id: str, success: torch.Tensor) -> torch.Tensor:
    """float32 [n]: the task's potential, and 1 more where it has succeeded."""
    potential = env.potential() if hasattr(env, "potential") else VARIATIONS[task_id].potential(env)
    return potential.float() + success.float()
