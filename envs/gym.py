"""Gymnasium environments by id (`gym/CartPole-v1`) as a BatchEnv of n single environments.

Single ones, because every episode needs a seed of its own. The time limit of the registration is taken off: the
stepper applies it. Source of the semantics: gymnasium 1.4, `Env.step` and `Env.reset`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pydantic
import torch
from gymnasium import spaces

from embodied.config import config as config_record
from embodied.errors import ConfigurationError, SimulatorError, suggest
from envs.api import ActionSpec, Assignments, Bounds, CameraSpec, EnvConfig, EnvSpec, Observation
from envs.batch import BatchEnv, BatchStep
from envs.rendering import egl

logger = logging.getLogger("envs.gym")

PREFIX = "gym/"
_SUCCESS_KEYS = ("success", "is_success")
_IDLE = (None, 0.0, False, False, {})  # what a step of an environment that is not active comes to


@config_record
class GymConfig(EnvConfig):
    """Options of `gym/<id>`; the id may be `gym/my_package:MyEnv-v0`, which imports the package that registers it.

    options: keyword arguments for the environment's constructor, e.g. `{g: 9.8}` of Pendulum-v1.
    """

    options: dict[str, bool | int | float | str] = pydantic.Field(default_factory=dict)

    def __post_init__(self) -> None:
        _registration(self.id)


Config = GymConfig
describes_at_once = True  # one environment is made, stepped once and closed


def make_batch(config: GymConfig, num_envs: int) -> BatchEnv:
    """`num_envs` environments of the configured id in this process."""
    return GymBatchEnv(config, num_envs)


def describe(config: GymConfig) -> EnvSpec:
    """The spec of the configured id."""
    batch = GymBatchEnv(config, 1)
    batch.close()
    return batch.spec


class GymBatchEnv(BatchEnv):
    """n gymnasium environments.

    Observations: an RGB uint8 image becomes the picture of a camera named "observation"; everything else is flattened
    into `state`. Actions: Discrete or Box, the latter flattened.
    Success is what `info["success"]` or `info["is_success"]` says, if a first step shows that the environment has one.
    """

    def __init__(self, config: GymConfig, num_envs: int) -> None:
        registered = _registration(config.id)
        self.num_envs = num_envs
        self._envs = [_make(config) for _ in range(num_envs)]
        # the wrapper that refuses steps before a reset costs a call, and the stepper never takes such steps
        self._inner = [e.env if type(e) is gymnasium.wrappers.OrderEnforcing else e for e in self._envs]
        self._step_calls = [env.step for env in self._inner]
        for env in self._envs:
            _look_actions_up(env.unwrapped.action_space)
        env = self._envs[0]
        action, self._decode = _action_codec(config.id, env.action_space)
        space = env.observation_space
        self._is_image = _is_rgb(space)
        shape = space.shape if self._is_image else ()
        self._state = np.zeros((num_envs, 0 if self._is_image else _flat_size(config.id, space)), dtype=np.float32)
        self._images = np.zeros((num_envs, 1, *shape), dtype=np.uint8) if self._is_image else None
        is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1
        self._flatten = None if is_vector else functools.partial(spaces.flatten, space)
        # the usual case, plain vectors, is stored in one go
        self._flat_state = self._state.reshape(-1) if self._flatten is None and not self._is_image else None
        self._instruction_ids = torch.zeros(num_envs, dtype=torch.int64)
        self._draws_with_mujoco = hasattr(env.unwrapped, "mujoco_renderer")
        self._success_key = _success_key(config.id, env)
        self._no_success = torch.zeros(num_envs, dtype=torch.bool)
        self.spec = EnvSpec(
            id=config.id,
            action=action,
            state_dim=self._state.shape[1],
            cameras=(CameraSpec("observation", shape[0], shape[1]),) if self._is_image else (),
            episode_steps=registered.max_episode_steps or 0,
            control_hz=float(env.metadata.get("render_fps") or 0),
            has_success=self._success_key is not None,
            versions=_versions(env),
        )

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        for row, seed in zip(rows.tolist(), assignments.seed.tolist(), strict=True):
            observation, _ = self._envs[row].reset(seed=seed)
            self._store(row, observation)

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        calls = zip(self._step_calls, self._decode(actions.numpy()), strict=True)
        flags = active.numpy()
        everyone = np.count_nonzero(flags) == self.num_envs
        if everyone:
            results = [step(action) for step, action in calls]
        else:
            chosen = zip(calls, flags.tolist(), strict=True)
            results = [step(action) if is_active else _IDLE for (step, action), is_active in chosen]
        observations, rewards, terminations, truncations, infos = zip(*results, strict=True)
        if everyone and self._flat_state is not None:
            np.concatenate(observations, out=self._flat_state, casting="unsafe")
        else:
            for row in np.flatnonzero(flags).tolist():
                self._store(row, observations[row])
        success = self._no_success
        if self._success_key is not None:
            found = [bool(info.get(self._success_key, False)) for info in infos]
            success = torch.from_numpy(np.array(found, dtype=np.bool_))
        return BatchStep(
            reward=torch.from_numpy(np.array(rewards, dtype=np.float32)),
            terminated=torch.from_numpy(np.array(terminations, dtype=np.bool_)),
            truncated=torch.from_numpy(np.array(truncations, dtype=np.bool_)),
            success=success,
        )

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        state, images = self._state, self._images
        if rows is None:
            state, images = state.copy(), None if images is None else images.copy()
        else:
            index = rows.numpy()
            state, images = state[index], None if images is None else images[index]
        return Observation(
            state=torch.from_numpy(state),
            instruction_ids=self._instruction_ids[: len(state)],
            instruction=[""] * len(state),
            images=None if images is None else torch.from_numpy(images),
        )

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        pictures = []
        if self._draws_with_mujoco:
            # MuJoCo looks for a screen unless told otherwise, and without one takes the process down
            egl.prepare_mujoco()
        for row in rows.tolist():
            env = self._envs[row]
            if env.render_mode != "rgb_array":
                raise SimulatorError(f"{self.spec.id} cannot be rendered: it has no render mode 'rgb_array'.")
            try:
                with _without_screen():
                    picture = env.render()
            except (gymnasium.error.Error, ImportError) as error:
                raise SimulatorError(f"{self.spec.id} cannot be rendered here: {error}") from None
            except Exception as error:  # foreign code, and drivers below it
                raise SimulatorError(
                    f"{self.spec.id} cannot be rendered here: {type(error).__name__}: {error}"
                ) from error
            pictures.append(torch.from_numpy(np.array(picture, dtype=np.uint8)))
        if self._draws_with_mujoco:
            egl.silence_exit()  # its contexts exist from the first picture on
            self._draws_with_mujoco = False
        return torch.stack(pictures)

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs = []

    def _store(self, row: int, observation: Any) -> None:
        if self._is_image:
            self._images[row, 0] = observation
        else:
            self._state[row] = observation if self._flatten is None else self._flatten(observation)


def _registration(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    """Gymnasium's record of `gym/<id>`. Raises ConfigurationError for an id that is not registered."""
    name = env_id.removeprefix(PREFIX)
    if ":" in name:
        module, name = name.split(":", 1)
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigurationError(
                f"Environment {env_id!r} asks for the module {module!r}, which cannot be imported: {error}."
            ) from error
    if name not in gymnasium.registry:
        known = sorted(PREFIX + registered for registered in gymnasium.registry)
        raise ConfigurationError(
            f"Unknown environment {env_id!r}. {suggest(PREFIX + name, known, noun='environments')}"
        )
    return gymnasium.registry[name]


def _make(config: GymConfig) -> gymnasium.Env:
    registered = _registration(config.id)
    options = dict(config.options)
    try:
        entry = registered.entry_point
        creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        # a creator that is no class says nothing of render modes; pass `render_mode` as an option then
        modes = (getattr(creator, "metadata", None) or {}).get("render_modes", ())
        if "rgb_array" in modes and _takes_render_mode(creator):
            options.setdefault("render_mode", "rgb_array")
        # -1 takes the time limit off
        return gymnasium.make(registered.id, max_episode_steps=-1, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigurationError(
            f"Environment {config.id!r} with options {config.options} cannot be made: {error}"
        ) from None
    except Exception as error:  # a constructor is foreign code, and fails in any way it likes
        raise ConfigurationError(
            f"Environment {config.id!r} with options {config.options} cannot be made: {type(error).__name__}: {error}"
        ) from error


def _takes_render_mode(creator: Callable[..., Any]) -> bool:
    parameters = inspect.signature(creator).parameters.values()
    return any(p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


@contextlib.contextmanager
def _without_screen() -> Iterator[None]:
    """pygame's library looks for a screen when it is first used, and complains on stderr where there is none; pictures
    in memory need none. What the user has chosen stays."""
    if "SDL_VIDEODRIVER" in os.environ:
        yield
        return
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        os.environ.pop("SDL_VIDEODRIVER", None)


def _action_codec(
    env_id: str, space: gymnasium.Space
) -> tuple[ActionSpec, Callable[[np.ndarray], list[np.integer] | np.ndarray]]:
    """The action spec, and what turns float32 [n, A] into n actions for `Env.step`."""
    if isinstance(space, spaces.Discrete):
        start, kind = int(space.start), space.dtype

        def choose(actions: np.ndarray) -> list[np.integer]:
            # numpy's integers pass `Discrete.contains`, which environments assert, faster than Python's
            return list(actions[:, 0].astype(kind) + start)

        return ActionSpec(Bounds.DISCRETE, dim=1, choices=int(space.n)), choose
    if isinstance(space, spaces.Box):
        shape, dtype = space.shape, space.dtype
        spec = ActionSpec(
            Bounds.CONTINUOUS,
            dim=int(np.prod(shape)),
            low=tuple(space.low.reshape(-1).astype(float).tolist()),
            high=tuple(space.high.reshape(-1).astype(float).tolist()),
        )

        def reshape(actions: np.ndarray) -> np.ndarray:
            return actions.astype(dtype).reshape(-1, *shape)

        return spec, reshape
    raise ConfigurationError(
        f"Environment {env_id!r} has actions {space}; only Discrete and Box actions are supported. Wrap it."
    )


def _look_actions_up(space: gymnasium.Space) -> None:
    """Environments assert that their space contains an action; for one of a few integers that takes longer than
    CartPole's physics. Here the integers are kept in a set, where a look finds them."""
    if type(space) is spaces.Discrete:
        first = int(space.start)
        space.contains = frozenset(range(first, first + int(space.n))).__contains__


def _is_rgb(space: gymnasium.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3


def _flat_size(env_id: str, space: gymnasium.Space) -> int:
    try:
        size = spaces.flatdim(space)
        if any(
            isinstance(part, spaces.Box) and part.dtype == np.uint8 and len(part.shape) > 1 for part in _parts(space)
        ):
            logger.warning(
                "%s shows pictures that are not plain RGB, uint8 [H, W, 3]: they become %d numbers of `state`, "
                "which no policy looks at as pictures. Wrap the environment to show RGB.",
                env_id,
                size,
            )
        return size
    except (ValueError, NotImplementedError) as error:
        raise ConfigurationError(
            f"Environment {env_id!r} has observations {space}, which cannot be flattened: {error}. Wrap it."
        ) from error


def _parts(space: gymnasium.Space) -> list[gymnasium.Space]:
    """The spaces that a space of several is made of, or itself."""
    inside = space.spaces if isinstance(space, spaces.Dict | spaces.Tuple) else ()
    inside = list(inside.values()) if isinstance(inside, dict) else list(inside)
    return [part for one in inside for part in _parts(one)] if inside else [space]


def _success_key(env_id: str, env: gymnasium.Env) -> str | None:
    """Which entry of `info` says success, if a first step's has one. Raises SimulatorError where there is no such
    step."""
    try:
        _, _ = env.reset(seed=0)
        env.action_space.seed(0)
        info = env.step(env.action_space.sample())[4]
    except Exception as error:  # foreign code, which fails in any way it likes
        raise SimulatorError(
            f"{env_id}: its first reset and step fail: {type(error).__name__}: {error}. Gymnasium's env_checker says "
            "what an environment must do."
        ) from error
    return next((key for key in _SUCCESS_KEYS if key in info), None)


def _versions(env: gymnasium.Env) -> dict[str, str]:
    versions = {"gymnasium": gymnasium.__version__, "numpy": np.__version__}
    if hasattr(env.unwrapped, "mujoco_renderer"):
        versions["mujoco"] = importlib.import_module("mujoco").__version__
    return versions
