"""The Panda arm of a compiled scene: where its parts are in the model, and the two controllers that drive it.

Both are robosuite's operational-space controller for end-effector deltas (OSC_POSE at 20 Hz over 25 substeps of 2 ms).
`ExactController` does its arithmetic with robosuite's own compiled functions in robosuite's order, so that every bit of
the trajectory is the stock simulator's; it is faster because one dynamics evaluation a substep is enough (a second one
gives the same bits). `FastController` computes the same torques in one compiled function with other rounding.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import mujoco
import numpy as np

from envs.libero.osc import osc_torques, rotate
from envs.libero.simulator import Simulator

SUBSTEPS = 25

# robosuite samples observations on a clock of its own, which every forced look (one in a reset, one when an initial
# state is set) moves on by a substep. So a control step is looked at after its substep 24 or 23, never at its end, and
# what policies see lags accordingly.
LOOK_AFTER_RESET = 24
LOOK_AFTER_INITIAL_STATE = 23

_GRIPPER_SPEED = 0.01  # of its range, a substep
_GRIPPER_DIRECTION = np.array([-1.0, 1.0])
_SCALE = np.array([0.05, 0.05, 0.05, 0.5, 0.5, 0.5])  # metres and radians of an action of 1


@dataclasses.dataclass(frozen=True)
class ArmIndices:
    """Where the arm and its gripper are in a compiled model."""

    site: int  # between the fingers; what is controlled and what `state` calls the end effector
    hand: int  # the body whose orientation `state` shows
    qpos: np.ndarray
    dofs: np.ndarray
    actuators: np.ndarray
    finger_qpos: np.ndarray
    finger_actuators: np.ndarray
    torque_low: np.ndarray
    torque_high: np.ndarray
    finger_middle: np.ndarray
    finger_half: np.ndarray

    @classmethod
    def of(cls, robot: Any, model: mujoco.MjModel) -> ArmIndices:
        """Read from a robosuite robot that was built on `model`."""
        fingers = np.array(robot._ref_joint_gripper_actuator_indexes)
        control_range = model.actuator_ctrlrange[fingers]
        low, high = robot.torque_limits
        return cls(
            site=int(robot.eef_site_id),
            hand=int(model.body(robot.robot_model.eef_name).id),
            qpos=np.array(robot._ref_joint_pos_indexes),
            dofs=np.array(robot._ref_joint_vel_indexes),
            actuators=np.array(robot._ref_joint_actuator_indexes),
            finger_qpos=np.array(robot._ref_gripper_joint_pos_indexes),
            finger_actuators=fingers,
            torque_low=np.array(low, dtype=np.float64),
            torque_high=np.array(high, dtype=np.float64),
            finger_middle=0.5 * (control_range[:, 1] + control_range[:, 0]),
            finger_half=0.5 * (control_range[:, 1] - control_range[:, 0]),
        )


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a controller measures before it acts; joint-space quantities of the seven arm joints, poses of the hand.

    position [3], rotation [3, 3], linear_velocity [3], angular_velocity [3], joints [7], joint_velocity [7],
    linear [3, 7] and angular [3, 7] Jacobians, mass [7, 7].
    """

    position: np.ndarray
    rotation: np.ndarray
    linear_velocity: np.ndarray
    angular_velocity: np.ndarray
    joints: np.ndarray
    joint_velocity: np.ndarray
    linear: np.ndarray
    angular: np.ndarray
    mass: np.ndarray

    @classmethod
    def by(cls, controller: Any) -> Measured:
        """The latest measurement of a robosuite controller."""
        return cls(
            position=controller.ee_pos,
            rotation=controller.ee_ori_mat,
            linear_velocity=controller.ee_pos_vel,
            angular_velocity=controller.ee_ori_vel,
            joints=controller.joint_pos,
            joint_velocity=controller.joint_vel,
            linear=controller.J_pos,
            angular=controller.J_ori,
            mass=controller.mass_matrix,
        )


@dataclasses.dataclass
class ArmState:
    """What a controller remembers of one environment, and what was seen at its latest look.

    goal_position [3] in metres, goal_rotation [3, 3], fingers [2] in [-1, 1] (robosuite's current action).
    rest [7]: joint angles that the null space is drawn to. look: the substep after which an observation is taken.
    outdated: a measurement to use in the first substep instead of a new one. robosuite's controller measures when a
        reset makes it and does not measure again before the first substep, although the stored initial state has moved
        the arm in between; the pull towards the reset's pose that follows is part of every stock episode.
    seen_qpos [nq]: positions that a picture shows; seen_fingers [2], seen_position [3], seen_quaternion [4] (w first).
    """

    goal_position: np.ndarray
    goal_rotation: np.ndarray
    rest: np.ndarray
    look: int
    outdated: Measured | None = None
    fingers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))
    seen_qpos: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    seen_fingers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))
    seen_position: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(3))
    seen_quaternion: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(4))

    def copy(self) -> ArmState:
        """An independent copy."""
        arrays = {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return dataclasses.replace(self, **arrays)


class Controller(abc.ABC):
    """Drives the arm of one compiled model; the environments that share the model take turns."""

    def __init__(self, model: mujoco.MjModel, arm: ArmIndices) -> None:
        self.model = model
        self.arm = arm
        self._mass = np.zeros((model.nv, model.nv))

    def look(self, data: mujoco.MjData, state: ArmState) -> None:
        """Take the observation now, as after a reset (positions must be up to date)."""
        arm = self.arm
        state.seen_qpos = data.qpos.copy()
        self._see_hand(data, state)
        state.seen_fingers = data.qpos[arm.finger_qpos]

    def displace(self, data: mujoco.MjData, state: ArmState, offset: np.ndarray) -> None:
        """Move the joints by `offset` [7] (radians) and hold the arm there."""
        data.qpos[self.arm.qpos] += offset
        mujoco.mj_forward(self.model, data)
        state.outdated = None
        state.goal_rotation = data.site_xmat[self.arm.site].reshape(3, 3).copy()
        self.look(data, state)

    def step(self, data: mujoco.MjData, state: ArmState, action: np.ndarray) -> None:
        """One control step. action: float64 [7], six deltas within [-1, 1] and the gripper (-1 opens, +1 closes)."""
        model, arm = self.model, self.arm
        closing = _GRIPPER_DIRECTION * _GRIPPER_SPEED * np.sign(action[6])
        for substep in range(SUBSTEPS):
            mujoco.mj_step1(model, data)
            torques = self._torques(data, state, action if substep == 0 else None)
            state.outdated = None
            state.fingers = np.clip(state.fingers + closing, -1.0, 1.0)
            data.ctrl[arm.actuators] = torques
            data.ctrl[arm.finger_actuators] = arm.finger_middle + arm.finger_half * state.fingers
            if substep == state.look:
                state.seen_qpos = data.qpos.copy()
                mujoco.mj_step2(model, data)
                self._see_hand(data, state)
                state.seen_fingers = data.qpos[arm.finger_qpos]
            else:
                mujoco.mj_step2(model, data)

    def _see_hand(self, data: mujoco.MjData, state: ArmState) -> None:
        state.seen_position = data.site_xpos[self.arm.site].copy()
        state.seen_quaternion = data.xquat[self.arm.hand].copy()

    @abc.abstractmethod
    def _torques(self, data: mujoco.MjData, state: ArmState, action: np.ndarray | None) -> np.ndarray:
        """Joint torques [7] within the limits; an `action` sets a new goal first. `mj_step1` was just called."""


class ExactController(Controller):
    """robosuite's arithmetic to the bit."""

    def __init__(self, model: mujoco.MjModel, arm: ArmIndices, simulator: Simulator) -> None:
        super().__init__(model, arm)
        self._osc = simulator.osc
        self._transforms = simulator.transforms
        self._stiffness = np.ones(6) * 150
        self._damping = 2 * np.sqrt(self._stiffness) * 1
        self._linear = np.zeros((3, model.nv))
        self._angular = np.zeros((3, model.nv))

    def _measure(self, data: mujoco.MjData) -> Measured:
        arm = self.arm
        mujoco.mj_jacSite(self.model, data, self._linear, self._angular, arm.site)
        mujoco.mj_fullM(self.model, data, self._mass)
        return Measured(
            position=data.site_xpos[arm.site].copy(),
            rotation=data.site_xmat[arm.site].reshape(3, 3).copy(),
            # products over all joints and not the arm's alone, as robosuite has it: rounding depends on it
            linear_velocity=np.dot(self._linear, data.qvel),
            angular_velocity=np.dot(self._angular, data.qvel),
            joints=data.qpos[arm.qpos],
            joint_velocity=data.qvel[arm.dofs],
            linear=self._linear[:, arm.dofs],
            angular=self._angular[:, arm.dofs],
            mass=self._mass[arm.dofs, :][:, arm.dofs],
        )

    def _torques(self, data: mujoco.MjData, state: ArmState, action: np.ndarray | None) -> np.ndarray:
        arm, osc = self.arm, self._osc
        now = self._measure(data) if state.outdated is None else state.outdated
        if action is not None:
            self._set_goal(state, action, now.position, now.rotation)
        turn = osc.orientation_error(state.goal_rotation, now.rotation)
        force = (state.goal_position - now.position) * self._stiffness[:3] + -now.linear_velocity * self._damping[:3]
        torque = turn * self._stiffness[3:] + -now.angular_velocity * self._damping[3:]
        jacobian = np.vstack([now.linear, now.angular])
        _, inertia_linear, inertia_angular, null_space = osc.opspace_matrices(
            now.mass, jacobian, now.linear, now.angular
        )
        wrench = np.concatenate([np.dot(inertia_linear, force), np.dot(inertia_angular, torque)])
        torques = np.dot(jacobian.T, wrench) + data.qfrc_bias[arm.dofs]
        torques += osc.nullspace_torques(now.mass, null_space, state.rest, now.joints, now.joint_velocity)
        return np.clip(torques, arm.torque_low, arm.torque_high)

    def _set_goal(self, state: ArmState, action: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> None:
        delta = np.clip(action[:6], -1.0, 1.0) * _SCALE
        if np.any(delta[3:] != 0.0):
            turn = self._transforms.quat2mat(self._transforms.axisangle2quat(delta[3:]))
            state.goal_rotation = np.dot(turn, rotation)
        state.goal_position = position + delta[:3]


class FastController(Controller):
    """The same torques up to rounding, in one compiled function."""

    def __init__(self, model: mujoco.MjModel, arm: ArmIndices) -> None:
        super().__init__(model, arm)
        self._jacobian = np.zeros((6, model.nv))
        self._linear, self._angular = self._jacobian[:3], self._jacobian[3:]

    def _torques(self, data: mujoco.MjData, state: ArmState, action: np.ndarray | None) -> np.ndarray:
        arm = self.arm
        position, rotation = data.site_xpos[arm.site], data.site_xmat[arm.site].reshape(3, 3)
        joints, velocity = data.qpos[arm.qpos], data.qvel[arm.dofs]
        if state.outdated is None:
            mujoco.mj_jacSite(self.model, data, self._linear, self._angular, arm.site)
            mujoco.mj_fullM(self.model, data, self._mass)
        else:
            then = state.outdated
            position, rotation, joints, velocity = then.position, then.rotation, then.joints, then.joint_velocity
            self._linear[:, arm.dofs], self._angular[:, arm.dofs] = then.linear, then.angular
            self._mass[np.ix_(arm.dofs, arm.dofs)] = then.mass
        if action is not None:
            delta = np.clip(action[:6], -1.0, 1.0) * _SCALE
            if np.any(delta[3:] != 0.0):
                state.goal_rotation = rotate(delta[3:], rotation)
            state.goal_position = position + delta[:3]
        return osc_torques(
            self._mass,
            self._jacobian,
            joints,
            velocity,
            data.qfrc_bias,
            arm.dofs,
            position,
            rotation,
            state.goal_position,
            state.goal_rotation,
            state.rest,
            arm.torque_low,
            arm.torque_high,
        )
