"""One LIBERO task on its compiled scene: what it draws from a seed, when it is solved, where its objects are.

LIBERO's own problem class builds the scene's XML and samples placements; it never steps, observes or renders here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np

from embodied.errors import AssetError, SimulatorError
from envs.libero.arm import LOOK_AFTER_INITIAL_STATE, LOOK_AFTER_RESET, ArmState, Measured
from envs.libero.goals import compile_goal
from envs.libero.scene import Scene, SceneCache
from envs.libero.simulator import Simulator, quiet
from envs.libero.spec import MAX_FIXTURES
from envs.libero.suites import TaskFiles, load_initial_states

_PLACEMENT_TRIES = 100
_PLACEMENT_SECONDS = 30.0
_REMEMBERED_DRAWS = 1024


@dataclasses.dataclass(frozen=True)
class Draw:
    """What one seed decides: poses of the fixtures [F, 3] and [F, 4], and the state [1 + nq + nv] of all joints.

    shift [2]: metres that loose objects start from there, or from a stored state, moved by; fixtures are moved already.
    """

    fixture_pos: np.ndarray
    fixture_quat: np.ndarray
    state: np.ndarray
    shift: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))

    def moved(self, shift: np.ndarray) -> Draw:
        """The same arrangement, all of it moved by `shift` [2] metres in x and y."""
        return dataclasses.replace(self, fixture_pos=self.fixture_pos + np.append(shift, 0.0), shift=shift)


@dataclasses.dataclass(frozen=True)
class Burner:
    """A stove whose flame is shown while its knob is turned on."""

    site: int
    joint: int  # address in qpos
    fixture: Any

    def is_on(self, data: mujoco.MjData) -> bool:
        return bool(self.fixture.turn_on(data.qpos[self.joint]))


class Task:
    """Raises AssetError for files that do not fit the scene, SimulatorError for what LIBERO cannot build."""

    def __init__(self, files: TaskFiles, simulator: Simulator, scenes: SceneCache) -> None:
        self.files = files
        self._simulator = simulator
        self.initial_states = load_initial_states(files)
        with quiet(), _kept_randomness():
            np.random.seed(0)  # building places the objects once, for nothing
            self._env = _build(files, simulator, scenes)
            # a stock environment loads its model twice before the first episode, which lists these samplers twice
            self._env.object_property_initializers *= 2
        self.scene: Scene = self._env.shared_scene
        model = self.scene.model
        self.controller = self.scene.controller(self._env.robots[0], simulator)
        self.is_solved = compile_goal(self._env, model)
        self.objects = {name: int(self._env.obj_body_id[name]) for name in self._env.objects_dict}
        self.fixtures = {name: int(self._env.obj_body_id[name]) for name in self._env.fixtures_dict}
        self._loose = model.jnt_qposadr[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
        self.fixture_ids = np.array(list(self.fixtures.values()), dtype=np.int64)
        self.goal: list[list[str]] = self._env.parsed_problem["goal_state"]
        self.burners = [_burner(state, model) for state in self._env.tracking_object_states_change]
        self._draws: collections.OrderedDict[int, Draw] = collections.OrderedDict()
        expected = 1 + model.nq + model.nv
        if self.initial_states.shape[1] != expected:
            raise AssetError(
                f"The initial states of {files.name} have {self.initial_states.shape[1]} numbers, but its scene needs "
                f"{expected}: {files.initial_states} belongs to another version of {files.bddl}."
            )
        if len(self.fixtures) > MAX_FIXTURES:
            raise SimulatorError(
                f"{files.name} has {len(self.fixtures)} fixtures; at most {MAX_FIXTURES} are supported."
            )

    def draw(self, seed: int) -> Draw:
        """What `seed` decides, as in a stock environment that was built, seeded and reset once.

        Raises SimulatorError where no placement is found in time.
        """
        if seed in self._draws:
            self._draws.move_to_end(seed)
            return self._draws[seed]
        env, model = self._env, self.scene.model
        self.scene.bound = None
        with quiet(), _kept_randomness():
            np.random.seed(seed)  # LIBERO's samplers draw from numpy's global generator
            self._place(seed)
            env.sim.forward()
            env.visualize(vis_settings=dict.fromkeys(env._visualizations, False))
        data = env.sim.data._data
        draw = Draw(
            fixture_pos=model.body_pos[self.fixture_ids].copy(),
            fixture_quat=model.body_quat[self.fixture_ids].copy(),
            state=np.concatenate([[data.time], data.qpos, data.qvel]),
        )
        self._draws[seed] = draw
        if len(self._draws) > _REMEMBERED_DRAWS:
            self._draws.popitem(last=False)
        return draw

    def start(self, data: mujoco.MjData, initial_state: int, draw: Draw) -> ArmState:
        """Put `data` at a stored initial state, or at the drawn one for -1, and the arm's controller at rest."""
        model = self.scene.model
        state = draw.state if initial_state < 0 else self.initial_states[initial_state]
        self.bind(draw)
        mujoco.mj_resetData(model, data)
        data.time = state[0]
        data.qpos[:] = state[1 : 1 + model.nq]
        for axis in range(2):
            data.qpos[self._loose + axis] += draw.shift[axis]
        data.qvel[:] = state[1 + model.nq :]
        mujoco.mj_forward(model, data)
        stock = self._env.robots[0].controller
        arm = ArmState(
            goal_position=np.array(stock.goal_pos),
            goal_rotation=np.array(stock.goal_ori),
            rest=np.array(stock.initial_joint),
            look=LOOK_AFTER_RESET if initial_state < 0 else LOOK_AFTER_INITIAL_STATE,
            outdated=Measured.by(stock),
        )
        self.controller.look(data, arm)
        return arm

    def bind(self, draw: Draw) -> None:
        """Move the scene's fixtures to where this episode has them."""
        if self.scene.bound is not draw:
            model = self.scene.model
            model.body_pos[self.fixture_ids] = draw.fixture_pos
            model.body_quat[self.fixture_ids] = draw.fixture_quat
            self.scene.bound = draw

    def _place(self, seed: int) -> None:
        """robosuite's reset without its endless repetition: a bounded number of tries in bounded time."""
        env, scene = self._env, self.scene
        began = time.monotonic()
        for attempt in range(1, _PLACEMENT_TRIES + 1):
            scene.model.body_pos[self.fixture_ids] = scene.body_pos[self.fixture_ids]
            scene.model.body_quat[self.fixture_ids] = scene.body_quat[self.fixture_ids]
            try:
                env.sim.reset()
                env._reset_internal()
                return
            except self._simulator.RandomizationError as error:
                if attempt == _PLACEMENT_TRIES or time.monotonic() - began > _PLACEMENT_SECONDS:
                    raise SimulatorError(
                        f"{self.files.name}: no placement of the objects was found for seed {seed} in {attempt} tries "
                        f"and {time.monotonic() - began:.0f} s. Use another seed or a stored initial state."
                    ) from error

    def close(self) -> None:
        """Give the scene up."""
        self._env.close()


def _build(files: TaskFiles, simulator: Simulator, scenes: SceneCache) -> Any:
    """LIBERO's problem object, made on the shared scene of its XML."""
    problem_name = simulator.parse(str(files.bddl))["problem_name"]
    stock = simulator.problems.get(problem_name)
    if stock is None:
        raise AssetError(f"{files.bddl} is a problem {problem_name!r}, which LIBERO does not have.")

    def initialize_sim(env: Any, xml_string: str | None = None) -> None:
        scene = scenes.get(env.model.get_xml())
        env.shared_scene = scene
        env.sim = simulator.sim_class(scene.model)
        env.sim.forward()
        env.initialize_time(env.control_freq)

    # the class keeps its name, which LIBERO compares with the file's
    shared = type(stock.__name__, (stock,), {"_initialize_sim": initialize_sim})
    try:
        return shared(
            str(files.bddl),
            robots=["Panda"],
            controller_configs=simulator.controller_config(),
            initialization_noise=None,
            use_camera_obs=False,
            has_offscreen_renderer=False,
            hard_reset=False,
        )
    except FileNotFoundError as error:
        raise AssetError(f"{files.name} needs a file that is not there: {error}") from error
    except simulator.RandomizationError as error:
        raise SimulatorError(f"{files.name}: the objects could not be placed while the scene was built.") from error


def _burner(state: Any, model: mujoco.MjModel) -> Burner:
    fixture = state.env.get_object(state.object_name)
    site, _ = fixture.object_properties["vis_site_names"]["burner"]
    return Burner(int(model.site(site).id), int(model.joint(fixture.joints[0]).qposadr[0]), fixture)


@contextlib.contextmanager
def _kept_randomness() -> Iterator[None]:
    """Leave numpy's global generator as it was."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
