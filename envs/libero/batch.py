"""`BatchEnv` over LIBERO: n environments in one process, each its own MuJoCo state on a shared compiled scene.

A reset to an assignment (task, initial state, seed) draws the fixtures from the seed, restores the stored initial
state and lets it settle; the outcome is remembered, so that the next reset to it is a copy. Pictures are drawn when
`observe` is called and at no other time.
"""

from __future__ import annotations

import collections
import dataclasses
import logging

import mujoco
import numpy as np
import torch

from embodied.errors import ConfigurationError, SimulatorError
from embodied.random import derive_seed
from envs.api import Assignments, Observation
from envs.batch import BatchEnv, BatchStep
from envs.libero.arm import ArmState
from envs.libero.config import LiberoConfig
from envs.libero.perturbations import UNCHANGED, World, draw_shift, draw_world, with_distractor_bodies
from envs.libero.pictures import camera_id
from envs.libero.scene import SceneCache
from envs.libero.simulator import load
from envs.libero.spec import MAX_FIXTURES, STATE_DIM, chosen_tasks, describe_tasks, wordings
from envs.libero.task import Draw, Task

logger = logging.getLogger("envs.libero")

NO_OP = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
_PEOPLE_CAMERA, _PEOPLE_SIZE = "agentview", 256
_OBJECT_RADIUS, _FIXTURE_RADIUS = 0.05, 0.17  # metres that distractors leave free around their middles
_SEED_RANGE = 2**32  # of numpy's global generator
_REMEMBERED_STARTS = 2048
_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
_UNSTABLE = tuple(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}") for name in ("QPOS", "QVEL", "QACC", "CTRL"))


@dataclasses.dataclass(frozen=True)
class _Start:
    """An environment after settling: physics state, what the controller remembers, whether burners are lit."""

    physics: np.ndarray
    arm: ArmState
    world: World
    burning: tuple[bool, ...]
    shown_burning: tuple[bool, ...]


@dataclasses.dataclass
class _Row:
    """One environment.

    steps: control steps since the settling. shown_burning: the flames as of the latest look, which precedes a step's
    end.
    """

    task: Task | None = None
    task_id: int = 0
    data: mujoco.MjData | None = None
    draw: Draw | None = None
    arm: ArmState | None = None
    world: World = UNCHANGED
    instruction: int = 0
    steps: int = 0
    burning: tuple[bool, ...] = ()
    shown_burning: tuple[bool, ...] = ()


class LiberoBatch(BatchEnv):
    """State: end-effector position (m), its axis-angle (rad), the two finger positions (m), as OpenVLA-OFT has it.

    Privileged: positions and velocities of all joints of the scene (arm, fingers, then objects as position and
    quaternion), padded with zeros to the largest scene of the suite, then position and quaternion of up to four
    fixtures. Pictures are rotated by 180 degrees, as LIBERO's policies see them.
    """

    def __init__(self, config: LiberoConfig, num_envs: int) -> None:
        self.num_envs = num_envs
        self.spec = describe_tasks(config)
        self._config = config
        self._files = chosen_tasks(config)
        # tasks of one suite share a limit, which the stepper applies; libero_130 has tasks with shorter ones
        own = config.step_limits if config.episode_steps is None else ()
        self._limits = own if len(set(own)) > 1 else None
        self._simulator = load(config.asset_folder)
        prepare = with_distractor_bodies if "distractors" in config.perturb else str
        largest = max(config.image_size, _PEOPLE_SIZE)
        self._scenes = SceneCache(fast=config.mode == "fast", picture_size=largest, prepare=prepare)
        self._tasks: dict[int, Task] = {}
        self._rows = [_Row() for _ in range(num_envs)]
        self._starts: collections.OrderedDict[tuple[int, int, int], _Start] = collections.OrderedDict()
        self._wordings = [
            [self.spec.instructions.index(text) for text in wordings(config, files)] for files in self._files
        ]

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        for row, assigned in zip(rows.tolist(), assignments.stack().tolist(), strict=True):
            self._reset_row(self._rows[row], *self._check(*assigned))

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        n = self.num_envs
        success, cut = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        commands = actions.numpy().astype(np.float64)
        for index in np.flatnonzero(active.numpy()):
            row = self._rows[index]
            self._advance(row, commands[index])
            row.steps += 1
            if any(row.data.warning[kind].number for kind in _UNSTABLE):
                # MuJoCo has put the scene back to its defaults, so this episode has no meaningful continuation
                logger.warning(
                    "%s: the physics of environment %d became unstable; its episode ends.", self.spec.id, index
                )
                cut[index] = True
            else:
                success[index] = row.task.is_solved(row.data)
                cut[index] = self._limits is not None and row.steps >= self._limits[row.task_id]
        solved = torch.from_numpy(success)
        return BatchStep(
            reward=solved.float(), terminated=solved, truncated=torch.from_numpy(cut), success=solved.clone()
        )

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        chosen = self._rows if rows is None else [self._rows[i] for i in rows.tolist()]
        ids = [row.instruction for row in chosen]
        state = np.zeros((len(chosen), STATE_DIM), dtype=np.float32)
        privileged = np.zeros((len(chosen), self.spec.privileged_dim), dtype=np.float32)
        for i, row in enumerate(chosen):
            state[i, :3] = row.arm.seen_position
            state[i, 3:6] = axis_angle(row.arm.seen_quaternion)
            state[i, 6:] = row.arm.seen_fingers
            self._fill_privileged(row, privileged[i])
        return Observation(
            state=torch.from_numpy(state),
            instruction_ids=torch.tensor(ids, dtype=torch.int64),
            instruction=[self.spec.instructions[i] for i in ids],
            images=torch.from_numpy(self._images(chosen)) if self.spec.cameras else None,
            privileged=torch.from_numpy(privileged),
        )

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        pictures = np.empty((len(rows), 1, _PEOPLE_SIZE, _PEOPLE_SIZE, 3), dtype=np.uint8)
        for picture, index in zip(pictures, rows.tolist(), strict=True):
            row = self._rows[index]
            if row.task is None:
                raise SimulatorError(f"{self.spec.id}: environment {index} cannot be rendered before its first reset.")
            self._draw(row, [camera_id(row.task.scene.model, _PEOPLE_CAMERA)], picture)
        return torch.from_numpy(pictures[:, 0])

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks = {}
        self._rows = [_Row() for _ in range(self.num_envs)]
        self._starts.clear()
        self._scenes.close()

    # ---------------------------------------------------------------- for scripted experts

    def task_of(self, row: int) -> Task:
        """The task that environment `row` runs."""
        return self._rows[row].task

    def data_of(self, row: int) -> mujoco.MjData:
        """The live physics of environment `row`; for reading."""
        self._bind(self._rows[row])
        return self._rows[row].data

    # ---------------------------------------------------------------- one environment

    def _check(self, task: int, initial_state: int, seed: int) -> tuple[int, int, int]:
        if not 0 <= task < len(self._files):
            raise ConfigurationError(f"{self.spec.id} has tasks 0 to {len(self._files) - 1}; got task {task}.")
        count = self.spec.initial_states[task]
        if not -1 <= initial_state < count:
            raise ConfigurationError(
                f"{self._files[task].name} has initial states 0 to {count - 1} (-1 draws one from the seed); "
                f"got {initial_state}."
            )
        return task, initial_state, seed % _SEED_RANGE

    def _reset_row(self, row: _Row, task_id: int, initial_state: int, seed: int) -> None:
        task = self._task(task_id)
        if row.data is None or row.task.scene is not task.scene:
            if row.task is not None:
                row.task.scene.users -= 1
            task.scene.users += 1
            row.data = mujoco.MjData(task.scene.model)
            row.task = task
            self._drop_idle_scenes()
        shift = draw_shift(self._config.perturb, seed)
        row.draw = task.draw(seed).moved(shift) if shift.any() else task.draw(seed)
        row.task, row.task_id, row.steps = task, task_id, 0
        texts = self._wordings[task_id]
        row.instruction = texts[derive_seed(seed, "perturb", "instruction") % len(texts)]
        model = task.scene.model
        key = (task_id, initial_state, seed)
        start = self._starts.get(key)
        if start is None:
            start = self._starts[key] = self._settle(row, initial_state, seed)
            if len(self._starts) > _REMEMBERED_STARTS:
                self._starts.popitem(last=False)
        else:
            self._starts.move_to_end(key)
        self._bind(row)
        mujoco.mj_resetData(model, row.data)
        mujoco.mj_setState(model, row.data, start.physics, _PHYSICS)
        mujoco.mj_kinematics(model, row.data)
        row.arm = start.arm.copy()
        row.world, row.burning, row.shown_burning = start.world, start.burning, start.shown_burning

    def _settle(self, row: _Row, initial_state: int, seed: int) -> _Start:
        row.arm = row.task.start(row.data, initial_state, row.draw)
        world = self._world(row, seed)
        if world.joint_offset is not None:
            row.task.controller.displace(row.data, row.arm, world.joint_offset)
        row.burning = row.shown_burning = tuple(burner.is_on(row.data) for burner in row.task.burners)
        for _ in range(self._config.settling_steps):
            self._advance(row, NO_OP)
        model = row.task.scene.model
        physics = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
        mujoco.mj_getState(model, row.data, physics, _PHYSICS)
        return _Start(physics, row.arm.copy(), world, row.burning, row.shown_burning)

    def _world(self, row: _Row, seed: int) -> World:
        """What the episode's perturbations are; the row is at its initial state."""
        if not self._config.perturb:
            return UNCHANGED
        task, data = row.task, row.data
        things = dict.fromkeys(task.objects.values(), _OBJECT_RADIUS)
        things |= dict.fromkeys(task.fixtures.values(), _FIXTURE_RADIUS)
        occupied = np.array([[*data.xpos[body][:2], radius] for body, radius in things.items()])
        ground = min(float(data.xpos[body][2]) for body in task.objects.values())
        return draw_world(self._config.perturb, seed, task.scene.model, occupied, ground)

    def _advance(self, row: _Row, action: np.ndarray) -> None:
        self._bind(row)
        row.task.controller.step(row.data, row.arm, action)
        row.shown_burning = row.burning
        row.burning = tuple(burner.is_on(row.data) for burner in row.task.burners)

    def _bind(self, row: _Row) -> None:
        row.task.bind(row.draw)

    def _task(self, task_id: int) -> Task:
        if task_id not in self._tasks:
            self._tasks[task_id] = Task(self._files[task_id], self._simulator, self._scenes)
        return self._tasks[task_id]

    def _drop_idle_scenes(self) -> None:
        dropped = self._scenes.drop_idle()
        for task_id in [i for i, task in self._tasks.items() if task.scene in dropped]:
            self._tasks.pop(task_id).close()
            # what a remembered world changes are arrays of the model that is gone, and they would keep it alive
            for key in [key for key in self._starts if key[0] == task_id]:
                del self._starts[key]

    # ---------------------------------------------------------------- what it shows

    def _images(self, rows: list[_Row]) -> np.ndarray:
        size = self._config.image_size
        images = np.empty((len(rows), len(self.spec.cameras), size, size, 3), dtype=np.uint8)
        for row, pictures in zip(rows, images, strict=True):
            cameras = [camera_id(row.task.scene.model, camera.name) for camera in self.spec.cameras]
            # upright pictures with their columns reversed are the simulator's raw ones rotated by 180 degrees
            self._draw(row, cameras, pictures[:, :, ::-1])
            row.world.add_noise(pictures, row.steps)
        return images

    def _draw(self, row: _Row, cameras: list[int], out: np.ndarray) -> None:
        self._bind(row)
        scene = row.task.scene
        for burner, lit in zip(row.task.burners, row.shown_burning, strict=True):
            scene.model.site_rgba[burner.site, 3] = float(lit)
        with row.world.applied():
            scene.draw(row.arm.seen_qpos, cameras, out)

    def _fill_privileged(self, row: _Row, out: np.ndarray) -> None:
        model, data = row.task.scene.model, row.data
        out[: model.nq] = data.qpos
        out[model.nq : model.nq + model.nv] = data.qvel
        poses = np.concatenate([row.draw.fixture_pos, row.draw.fixture_quat], axis=1).reshape(-1)
        begin = self.spec.privileged_dim - 7 * MAX_FIXTURES
        out[begin : begin + len(poses)] = poses


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """float64 [3] of a unit quaternion [4], real part first; the angle is in [0, 2 pi], as in robosuite."""
    real = min(max(float(quaternion[0]), -1.0), 1.0)
    sine = np.sqrt(1.0 - real * real)
    if np.isclose(sine, 0.0):
        return np.zeros(3)
    return quaternion[1:] * (2.0 * np.arccos(real)) / sine
