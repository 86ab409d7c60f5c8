"""Gymnasium environments behind the contract, against gymnasium itself."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

import envs
from embodied.config import parse
from embodied.errors import ConfigurationError, SimulatorError
from envs.api import Assignments, Bounds
from envs.gym import GymConfig, describe, make_batch
from envs.rendering import egl


class Picture(gymnasium.Env):
    """Shows a picture of its step count, and reports success at the third step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - gymnasium's convention
    observation_space = gymnasium.spaces.Box(0, 255, (5, 7, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.count = 0
        self.actions: list[int] = []

    def _show(self) -> np.ndarray:
        return np.full((5, 7, 3), self.count, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.count = 0
        return self._show(), {"is_success": False}

    def step(self, action: int):
        self.actions.append(int(action))
        self.count += 1
        return self._show(), 0.5, False, False, {"is_success": self.count == 3}

    def render(self) -> np.ndarray:
        return self._show()


class Nested(gymnasium.Env):
    """Dict observations and a two-dimensional action."""

    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-1, 1, (2,)), "choice": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Box(-2, 2, (2, 2), np.float64)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        return {"a": np.zeros(2, np.float32), "choice": 1}, {}

    def step(self, action: np.ndarray):
        assert self.action_space.contains(action)
        return {"a": action[1].astype(np.float32), "choice": 2}, float(action[0, 1]), False, False, {}


gymnasium.register("Picture-v0", Picture, max_episode_steps=7)
gymnasium.register("Nested-v0", Nested)


def local(name: str, num_envs: int = 2, **options: object):
    return envs.make(f"gym/{name}", num_envs=num_envs, processes=0, **options)


def test_cartpole_follows_gymnasium_to_the_bit():
    reference = gymnasium.make("CartPole-v1")
    env = local("CartPole-v1")
    observation = env.reset(Assignments.from_seeds([11, 12]))
    expected, _ = reference.reset(seed=12)
    assert observation.state[1].numpy().tobytes() == expected.tobytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions = rng.integers(0, 2, 2)
        expected, reward, terminated, truncated, _ = reference.step(int(actions[1]))
        result = env.step(
            torch.tensor(actions, dtype=torch.float32).reshape(2, 1, 1), 0, Assignments.from_seeds([1, 2])
        )
        assert result.reward[1].item() == reward
        assert (result.terminated[1].item(), result.truncated[1].item()) == (terminated, truncated)
        if terminated:
            row = result.final_rows.tolist().index(1)
            assert result.final_observation.state[row].numpy().tobytes() == expected.tobytes()
            break
        assert result.observation.state[1].numpy().tobytes() == expected.tobytes()
    else:
        pytest.fail("a random policy keeps the pole up for 200 steps?")


def test_spec_of_cartpole():
    spec = describe(GymConfig(id="gym/CartPole-v1"))
    assert (spec.action.kind, spec.action.dim, spec.action.choices) == (Bounds.DISCRETE, 1, 2)
    assert (spec.state_dim, spec.cameras, spec.episode_steps, spec.control_hz) == (4, (), 500, 50)
    assert not spec.has_success
    assert spec.versions["gymnasium"] == gymnasium.__version__


@pytest.mark.parametrize("name", ["Pendulum-v1", "Hopper-v5", "InvertedDoublePendulum-v5", "FrozenLake-v1"])
def test_conformance_of_other_gymnasium_environments(name: str):
    envs.check(lambda: local(name, num_envs=3))


def test_time_limit_of_the_registration_truncates():
    env = local("Pendulum-v1")
    env.reset(Assignments.from_seeds([1, 2]))
    for _ in range(2):
        result = env.step(torch.zeros(2, 100, 1), 0, Assignments.from_seeds([1, 2]))
    assert result.truncated[:, 99].all()
    assert result.truncated.sum() == 2
    assert not result.terminated.any()
    assert result.episodes.length.tolist() == [200, 200]


def test_rgb_observations_are_a_camera_and_success_comes_from_info():
    env = local("Picture-v0")
    assert [(c.name, c.height, c.width) for c in env.spec.cameras] == [("observation", 5, 7)]
    assert env.spec.state_dim == 0
    assert env.spec.has_success
    assert env.spec.episode_steps == 7
    observation = env.reset(Assignments.from_seeds([1, 2]))
    assert observation.images.shape == (2, 1, 5, 7, 3)
    result = env.step(torch.zeros(2, 4, 1), 0, Assignments.from_seeds([1, 2]))
    assert result.observation.images.unique().tolist() == [4]
    assert result.success.tolist() == [[False, False, True, False]] * 2
    assert result.episodes.success_once.all()
    assert not result.episodes.success_at_end.any()
    assert env.render([1]).unique().tolist() == [4]
    assert env.render([1]).shape == (1, 5, 7, 3)


def test_index_of_a_discrete_action_counts_from_the_spaces_start():
    batch = make_batch(GymConfig(id="gym/Picture-v0"), 1)
    single = batch._envs[0].unwrapped
    batch.reset(torch.tensor([0]), Assignments.from_seeds([1]))
    single.actions.clear()
    for index in range(3):
        batch.step(torch.tensor([[float(index)]]), torch.tensor([True]))
    assert single.actions == [-1, 0, 1]


def test_nested_observations_and_actions_are_flattened():
    env = local("Nested-v0", num_envs=1)
    assert env.spec.state_dim == 5
    assert env.spec.action.low == (-2.0,) * 4
    assert env.spec.episode_steps == 0
    assert env.reset(Assignments.from_seeds([1])).state.tolist() == [[0, 0, 0, 1, 0]]
    result = env.step(torch.tensor([[[0.0, 1.5, 0.25, 0.5]]]), 0, Assignments.from_seeds([1]))
    assert result.observation.state.tolist() == [[0.25, 0.5, 0, 0, 1]]
    assert result.reward.tolist() == [[1.5]]


def test_constructor_options_reach_the_environment():
    gravity = [local("Pendulum-v1", num_envs=1, options={"g": g}) for g in (10.0, 1.0)]
    rewards = []
    for env in gravity:
        env.reset(Assignments.from_seeds([3]))
        rewards.append(env.step(torch.zeros(1, 5, 1), 0, Assignments.from_seeds([3])).reward)
    assert not torch.equal(*rewards)
    with pytest.raises(ConfigurationError, match="nonsense"):
        local("Pendulum-v1", options={"nonsense": 1})


def test_unknown_id_suggests_the_nearest():
    with pytest.raises(ConfigurationError, match=r"Did you mean 'gym/CartPole-v1'\?"):
        parse(GymConfig, {"id": "gym/CartPol-v1"})
    with pytest.raises(ConfigurationError, match="no_such_package"):
        parse(GymConfig, {"id": "gym/no_such_package:Env-v0"})


def test_environment_without_pictures_says_so():
    env = local("Nested-v0", num_envs=1)
    env.reset(Assignments.from_seeds([1]))
    with pytest.raises(SimulatorError, match="no render mode"):
        env.render([0])


def test_actions_are_looked_up_and_those_that_are_none_still_refused():
    batch = make_batch(GymConfig(id="gym/CartPole-v1"), 1)
    batch.reset(torch.tensor([0]), Assignments.from_seeds([0]))
    batch.step(torch.tensor([[1.0]]), torch.tensor([True]))
    space = batch._envs[0].unwrapped.action_space
    assert space.contains(np.int64(1))
    assert not space.contains(2)
    with pytest.raises(AssertionError, match="2"):
        batch.step(torch.tensor([[2.0]]), torch.tensor([True]))
    batch.close()


@pytest.mark.parametrize(("name", "shape"), [("CartPole-v1", (1, 400, 600, 3)), ("Hopper-v5", (1, 480, 480, 3))])
def test_filming_needs_no_screen_and_says_nothing_of_it(name: str, shape: tuple[int, ...]):
    """In a process of its own: pygame and MuJoCo look for a screen once."""
    if name == "Hopper-v5":
        try:
            egl.choose_device(egl.egl_devices(), None, None)
        except SimulatorError as error:
            pytest.skip(str(error))
    program = (
        "import os, envs\n"
        "from envs.api import Assignments\n"
        f"env = envs.make('gym/{name}', num_envs=1, processes=0)\n"
        "env.reset(Assignments.from_seeds([1]))\n"
        "print(tuple(env.render([0]).shape), 'SDL_VIDEODRIVER' in os.environ)\n"
    )
    screens = ("XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")
    bare = {variable: value for variable, value in os.environ.items() if variable not in screens}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=bare, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith(f"{shape} False")


class Broken(Picture):
    """Fails where it is told to."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        if when == "made":
            raise ValueError("no such mesh")

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if self.when == "reset":
            raise KeyError("mesh")
        return super().reset(seed=seed)


class Grey(Picture):
    """Pictures without colours."""

    observation_space = gymnasium.spaces.Box(0, 255, (5, 7, 1), np.uint8)

    def _show(self) -> np.ndarray:
        return np.full((5, 7, 1), self.count, np.uint8)


gymnasium.register("Broken-v0", Broken)
gymnasium.register("Grey-v0", Grey)


@pytest.mark.parametrize(
    ("when", "kind", "said"),
    [
        ("made", ConfigurationError, "cannot be made: ValueError: no such mesh"),
        ("reset", SimulatorError, "first reset and step fail: KeyError: 'mesh'"),
    ],
)
def test_an_environment_that_fails_at_once_is_named_with_its_own_words(when: str, kind: type, said: str):
    with pytest.raises(kind, match=said):
        local("Broken-v0", options={"when": when})


def test_pictures_that_are_not_rgb_become_state_with_a_warning(caplog: pytest.LogCaptureFixture):
    assert describe(GymConfig(id="gym/Grey-v0")).state_dim == 35
    assert "35 numbers of `state`" in caplog.text
    caplog.clear()
    assert describe(GymConfig(id="gym/Picture-v0")).cameras
    assert not caplog.text
