"""Inverse kinematics for a batch of scenes, row by row with the solver that stock CPU environments use.

ManiSkill's GPU path takes one damped step of its own instead, so end-effector control there differs from the CPU; this
keeps batched stepping equal to the stock environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.agents.controllers.base_controller import BaseController, DictController
from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController
from mani_skill.agents.controllers.utils.kinematics import Kinematics
from mani_skill.agents.multi_agent import MultiAgent
from mani_skill.utils.structs import Pose


class RowwiseKinematics:
    """Stock CPU kinematics applied to each row of a batch; a row without solution keeps its joint positions."""

    def __init__(self, stock: Kinematics) -> None:
        self._stock = stock
        self.end_link = stock.end_link

    def compute_ik(self, pose: Pose, q0: torch.Tensor, **_: Any) -> torch.Tensor:
        """Joint positions float32 [N, controlled joints] that bring the end link to `pose` in the robot's base frame.

        Args:
            pose: N target poses. q0: float32 [N, joints] of the articulation, where the search starts.
        """
        stock = self._stock
        starts = q0[:, stock.pmodel_active_joint_indices].numpy()
        out = q0[:, stock.active_joint_indices].clone()
        for row, (target, start) in enumerate(zip(pose.raw_pose, starts, strict=True)):
            result, success, _ = stock.pmodel.compute_inverse_kinematics(
                stock.end_link_idx,
                Pose.create(target[None]).sp,
                initial_qpos=start,
                active_qmask=stock.qmask,
                max_iterations=100,
            )
            if success:
                out[row] = torch.as_tensor(result[stock.pmodel_controlled_joint_indices], dtype=torch.float32)
        return out


class _TargetPoseScene:
    """A scene as end-effector controllers should see it: they then compute a target pose, as on a stock CPU scene."""

    gpu_sim_enabled = False

    def __init__(self, scene: Any) -> None:
        self._scene = scene

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scene, name)


def controllers_of(agent: BaseAgent | None) -> Iterator[BaseController]:
    """Every leaf controller in use of a robot, of several robots, or of none."""
    if agent is None:
        return
    agents = agent.agents if isinstance(agent, MultiAgent) else [agent]
    pending = [a.controller for a in agents]
    while pending:
        controller = pending.pop()
        if isinstance(controller, DictController):
            pending += controller.controllers.values()
        else:
            yield controller


def solve_like_stock(agent: BaseAgent | None) -> None:
    """Make the end-effector controllers of `agent` solve as they do in a stock CPU environment."""
    for controller in controllers_of(agent):
        if isinstance(controller, PDEEPosController):
            controller.kinematics = RowwiseKinematics(controller.kinematics)
            controller.scene = _TargetPoseScene(controller.scene)
