"""Checks a configuration against ManiSkill's registries and constructs the task, batched or stock."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import logging
import math
from typing import Any

import mani_skill
import mani_skill.envs  # registers the tasks
import numpy as np
import sapien
import torch
from gymnasium import spaces
from mani_skill.agents import REGISTERED_AGENTS
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils import assets
from mani_skill.utils.registration import REGISTERED_ENVS
from mani_skill.utils.registration import EnvSpec as RegisteredTask

from embodied.errors import AssetError, ConfigurationError, RefusedInput, SimulatorError, suggest
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.episodes import cuda_task
from envs.maniskill.instructions import instruction
from envs.maniskill.lowpoly import lowpoly_task
from envs.maniskill.put_on_plate import task as _put_on_plate  # noqa: F401 (registers the task)
from envs.maniskill.quiet import without_graphics, without_noise, without_questions
from envs.maniskill.rl4vla import task as rl4vla
from envs.maniskill.rl4vla.variants import VARIANTS
from envs.maniskill.scene import batched_task
from envs.maniskill.splits import splits_of
from envs.maniskill.stock import stock_task
from envs.maniskill.variation import VARIATIONS, smooth_reward, spread_task
from sim_assets import locate, needed_by
from sim_assets.resolve import how_to_get

logger = logging.getLogger("envs.maniskill")
ENTRY_POINT_GROUP = "embodied.maniskill_tasks"
"""Entry points of other packages whose modules register tasks with ManiSkill when they are imported."""

_process_device: str | None = None


def registered_task(config: ManiSkillConfig) -> RegisteredTask:
    """The registry entry of the configured task. Raises ConfigurationError or AssetError before anything is built."""
    _import_plugins()
    if config.task in VARIANTS:
        _check_rl4vla(config)
    if config.task not in REGISTERED_ENVS:
        near = difflib.get_close_matches(config.task, REGISTERED_ENVS, n=5, cutoff=0.5)
        meant = ", ".join(f"maniskill/{name}" for name in near)
        hint = f"Did you mean {meant}?" if near else f"Valid tasks: {', '.join(sorted(REGISTERED_ENVS))}."
        raise ConfigurationError(f"ManiSkill has no task {config.task!r} among {len(REGISTERED_ENVS)}. {hint}")
    task = REGISTERED_ENVS[config.task]
    varied = config.task in VARIATIONS
    smooth = ["smooth"] if varied or hasattr(task.cls, "potential") else []
    rewards = {"sparse", *task.cls.SUPPORTED_REWARD_MODES, *smooth} - {"none"}
    if config.reward not in rewards:
        raise ConfigurationError(
            f"Task {config.task} has no reward {config.reward!r} (env.reward). "
            + suggest(config.reward, sorted(rewards), noun="rewards")
        )
    if config.robot is not None and config.robot not in REGISTERED_AGENTS:
        raise ConfigurationError(
            f"Robot {config.robot!r} (env.robot) is unknown. " + suggest(config.robot, REGISTERED_AGENTS, noun="robots")
        )
    if config.spread != (1.0, 1.0) and not varied:
        raise ConfigurationError(
            f"Task {config.task} cannot be spread (env.spread); tasks that can: {', '.join(sorted(VARIATIONS))}."
        )
    splits = splits_of(config.task)
    if config.split not in (splits or ("in",)):
        raise ConfigurationError(
            f"Task {config.task} has no split {config.split!r} (env.split). "
            + (suggest(config.split, splits, noun="splits") if splits else "PutOnPlate-v1 has splits.")
        )
    _check_assets(task)
    return task


def _check_rl4vla(config: ManiSkillConfig) -> None:
    missing = [asset for asset in needed_by(config.id) if locate(asset) is None]
    if missing:
        raise AssetError(
            f"{config.id} is RL4VLA's, and {len(missing)} of the assets it needs are not on this machine. "
            + " ".join(f"{asset.title}: {how_to_get(asset)}" for asset in missing)
            + " maniskill/PutOnPlate-v1 has the same kinds of variation and needs none."
        )
    for value, key in ((config.robot, "robot"), (config.field_of_view, "field_of_view")):
        if value is not None:
            raise ConfigurationError(f"{config.id} has its own {key.replace('_', ' ')}; unset env.{key}={value}.")


@functools.cache
def _import_plugins() -> None:
    """Import the modules of other packages that register tasks with ManiSkill, then register those of RL4VLA's that
    none of them has."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    rl4vla.register()


def _check_assets(task: RegisteredTask) -> None:
    missing = []
    for name in task.asset_download_ids or ():
        group = name in assets.DATA_GROUPS
        sources = assets.expand_data_group_into_individual_data_source_ids(name) if group else [name]
        missing += [source for source in sources if not assets.is_data_source_downloaded(source)]
    if missing:
        raise AssetError(
            f"Task {task.uid} needs assets that are not on this machine: {', '.join(missing)}. "
            f"Fetch them with `embodied assets fetch maniskill/{task.uid}`, "
            "or set MS_ASSET_DIR to the folder that holds them."
        )


@contextlib.contextmanager
def construction(config: ManiSkillConfig) -> Any:
    """The scope in which scenes are built or rebuilt."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_noise())
        stack.enter_context(without_questions(config.task))
        if not config.needs_renderer:
            stack.enter_context(without_graphics())
        yield


def build_task(config: ManiSkillConfig, *, batch: int | None, device: str = "cpu") -> BaseEnv:
    """The task as `batch` scenes stepped together, or as one stock CPU environment where `batch` is None."""
    task = registered_task(config)
    try:
        return _build(config, task, batch, device)
    except RefusedInput:
        raise
    except Exception as error:
        # ManiSkill takes any robot for any task, and fails in any way with those that a task was not made for
        supported = task.cls.SUPPORTED_ROBOTS
        if config.robot is None or not supported or config.robot in supported:
            raise
        names = ", ".join(name if isinstance(name, str) else " and ".join(name) for name in supported)
        raise ConfigurationError(
            f"Robot {config.robot!r} (env.robot) does not work in {config.task}, which is made for: {names}. "
            f"Building it failed with {type(error).__name__}: {error}"
        ) from error


def _build(config: ManiSkillConfig, task: RegisteredTask, batch: int | None, device: str) -> BaseEnv:
    _claim_process(device)
    options: dict[str, Any] = {
        **task.default_kwargs,
        "obs_mode": "state",
        "reward_mode": config.reward if config.reward in task.cls.SUPPORTED_REWARD_MODES else "none",
        "control_mode": config.control_mode,
        "sim_backend": f"physx_{device}",
        "render_backend": device if config.needs_renderer else "none",
        "render_mode": "rgb_array" if config.rendering == "on_demand" else None,
        "sensor_configs": _camera_options(config),
        "human_render_camera_configs": {},
        "viewer_camera_configs": {},
    }
    if config.robot is not None:
        options["robot_uids"] = config.robot
    if splits_of(config.task):
        options["split"] = config.split
    drawn = task.cls if config.spread == (1.0, 1.0) else spread_task(task.cls, config.task, config.spread)
    drawn = drawn if config.robot_visual == "stock" else lowpoly_task(drawn)
    if batch is None:
        cls = stock_task(drawn)
    elif device == "cuda":
        cls = cuda_task(drawn)
        options["num_envs"] = batch
    else:
        cls = batched_task(drawn)
        options |= {"num_envs": batch, "scene_seed": config.scene_seed}
    try:
        with construction(config):
            return cls(**options)
    except AssertionError as error:
        if "not in supported modes" in str(error):
            _refuse_control_mode(config, task)
        raise SimulatorError(f"ManiSkill failed to build {config.task}: {error}") from error
    except RuntimeError as error:
        if config.needs_renderer and ("vk::" in str(error) or "enderer" in str(error) or "Vulkan" in str(error)):
            raise SimulatorError(
                f"{config.task} needs a Vulkan device to render and none works: {error}. Run `embodied doctor` for "
                "what to install, or use env.obs=state with env.rendering=never."
            ) from error
        if "download_asset" in str(error):
            raise AssetError(f"Task {config.task} needs assets that are not on this machine: {error}") from error
        raise SimulatorError(f"ManiSkill failed to build {config.task}: {error}") from error
    except ImportError as error:
        raise SimulatorError(f"{config.task} needs a package that is not installed: {error}") from error
    except AttributeError as error:
        if not config.needs_renderer:
            raise SimulatorError(
                f"{config.task} reads its visuals while it is built ({error}); set env.rendering=on_demand."
            ) from error
        raise


def _camera_options(config: ManiSkillConfig) -> dict[str, Any]:
    """What differs from the task's own policy cameras."""
    options: dict[str, Any] = {}
    if config.picture_size is not None:
        height, width = config.picture_size
        options |= {"width": width, "height": height}
        if config.task in VARIANTS:
            options["intrinsic"] = rl4vla.intrinsic(height, width)
    if config.field_of_view is not None:
        options["fov"] = math.radians(config.field_of_view)
    return options


def _claim_process(device: str) -> None:
    """GPU physics is a process-wide switch that breaks CPU physics. Raises SimulatorError where both are wanted."""
    global _process_device
    if _process_device not in (None, device):
        raise SimulatorError(
            f"This process already runs ManiSkill on {_process_device}; it cannot run it on {device} too. "
            "Set env.processes=1 or more, so that CPU environments live in processes of their own."
        )
    _process_device = device


def _refuse_control_mode(config: ManiSkillConfig, task: RegisteredTask) -> None:
    options = {**task.default_kwargs, "obs_mode": "state", "sim_backend": "physx_cpu", "render_backend": "none"}
    if config.robot is not None:
        options["robot_uids"] = config.robot
    with without_noise(), without_questions(config.task), without_graphics():
        env = task.cls(**options)
    agent = getattr(env.agent, "agents", [env.agent])[0]
    modes = list(agent.supported_control_modes)
    env.close()
    raise ConfigurationError(
        f"Control mode {config.control_mode!r} (env.control_mode) is unknown to the robot {agent.uid!r} of "
        f"{config.task}. " + suggest(config.control_mode, modes, noun="control modes")
    )


def action_parts(env: BaseEnv) -> dict[str, int]:
    """Robot name -> its number of action dimensions, in the order of the flat action; empty for a single robot."""
    space = env.single_action_space
    return {name: part.shape[0] for name, part in space.items()} if isinstance(space, spaces.Dict) else {}


def split_action(actions: torch.Tensor, parts: dict[str, int]) -> torch.Tensor | dict[str, torch.Tensor]:
    """Flat actions [n, A] as the task takes them: as they are for one robot, by robot name for several."""
    if not parts:
        return actions
    return dict(zip(parts, actions.split(list(parts.values()), dim=1), strict=True))


def task_reward(env: BaseEnv, config: ManiSkillConfig, reward: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """float32 [n]: the task's reward, or our smooth one; success itself where a sparse reward was asked of a task that
    has no reward."""
    if config.reward == "smooth":
        return smooth_reward(env, config.task, success)
    return success.float() if env.reward_mode == "none" else reward.float().clone()


def task_spec(
    env: BaseEnv, config: ManiSkillConfig, *, state_dim: int, privileged_dim: int, has_success: bool, exact_reset: bool
) -> EnvSpec:
    """The environment's description."""
    space = env.single_action_space
    boxes = list(space.values()) if isinstance(space, spaces.Dict) else [space]
    low = np.concatenate([np.broadcast_to(box.low, box.shape) for box in boxes])
    high = np.concatenate([np.broadcast_to(box.high, box.shape) for box in boxes])
    limit = REGISTERED_ENVS[config.task].max_episode_steps or 0
    return EnvSpec(
        id=config.id,
        action=ActionSpec(
            kind=Bounds.CONTINUOUS,
            dim=len(low),
            low=tuple(float(x) for x in low),
            high=tuple(float(x) for x in high),
        ),
        state_dim=state_dim,
        cameras=policy_cameras(env, config),
        privileged_dim=privileged_dim,
        instructions=getattr(env, "instructions", None) or (instruction(config.task),),
        episode_steps=limit if config.episode_steps is None else config.episode_steps,
        control_hz=float(env.control_freq),
        has_success=has_success,
        exact_reset=exact_reset,
        versions={
            "mani_skill": mani_skill.__version__,
            "sapien": sapien.__version__,
            "physics": f"physx {env.device.type}",
        },
    )


def policy_cameras(env: BaseEnv, config: ManiSkillConfig) -> tuple[CameraSpec, ...]:
    """The cameras of the observation, in order. Raises ConfigurationError for unknown names or differing sizes."""
    if not config.shows_images:
        return ()
    sensors = env.scene.sensors
    names = tuple(sensors) if config.cameras is None else config.cameras
    for name in names:
        if name not in sensors:
            raise ConfigurationError(
                f"Task {config.task} has no camera {name!r} (env.cameras). " + suggest(name, sensors, noun="cameras")
            )
    if not names:
        raise ConfigurationError(f"Task {config.task} has no camera; use env.obs=state.")
    cameras = tuple(CameraSpec(n, sensors[n].config.height, sensors[n].config.width) for n in names)
    if len({(camera.height, camera.width) for camera in cameras}) > 1:
        sizes = ", ".join(f"{c.name} {c.height}x{c.width}" for c in cameras)
        raise ConfigurationError(f"The cameras differ in size ({sizes}); set env.image_size, or choose env.cameras.")
    return cameras
