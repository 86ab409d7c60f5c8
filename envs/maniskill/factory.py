"""Makes ManiSkill environments: chooses between batched and single stepping and says so when it must fall back."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

import torch

from embodied.errors import EmbodiedError, RefusedInput, SimulatorError
from envs.api import Assignments, EnvSpec
from envs.batch import BatchEnv
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.gpu import gpu_physics_missing

if TYPE_CHECKING:
    from envs.maniskill.batched import BatchedManiSkill

logger = logging.getLogger("envs.maniskill")


def make_batch(config: ManiSkillConfig, num_envs: int) -> BatchEnv:
    """`num_envs` environments of `config` in this process.

    Raises ConfigurationError for an unknown task, robot, control mode, reward or camera, AssetError for missing files
    and SimulatorError where the simulator cannot be built.
    """
    # imported here: the simulator takes seconds to import, and only the process that steps it needs it
    from envs.maniskill.build import registered_task
    from envs.maniskill.single import StockManiSkill

    registered_task(config)
    if in_process(config):
        from envs.maniskill.cuda import CudaManiSkill

        return CudaManiSkill(config, num_envs)
    if config.stepping == "single":
        return StockManiSkill(config, num_envs)
    env, reason = _try_batched(config, num_envs)
    if env is not None:
        return env
    if config.stepping == "batched":
        raise SimulatorError(
            f"{config.id} cannot be stepped as a batch ({reason}). Set env.stepping=single, or auto to have it chosen."
        )
    logger.warning("%s: stepping stock environments one after the other, because %s.", config.id, reason)
    return StockManiSkill(config, num_envs)


def in_process(config: ManiSkillConfig) -> bool:
    """Whether the simulator runs on a GPU, all environments in one process."""
    if config.sim_backend == "cpu" or config.stepping == "single":
        return False
    return config.sim_backend == "cuda" or not gpu_physics_missing()


def _try_batched(config: ManiSkillConfig, num_envs: int) -> tuple[BatchedManiSkill | None, str]:
    """The batched environment, or None and the reason why this task cannot be stepped that way."""
    from envs.maniskill.batched import BatchedManiSkill
    from envs.maniskill.build import registered_task

    env = None
    try:
        env = BatchedManiSkill(config, num_envs)
        _probe(env)
        if num_envs == 1:
            # with one scene a task that mixes up batch sizes goes unnoticed, and the choice must not depend on the size
            pair = BatchedManiSkill(config, 2)
            _probe(pair)
            pair.close()
    except RefusedInput:
        raise
    except Exception as error:  # task code is foreign, and fails in any way it likes on a path it was not tried on
        if env is not None:
            env.close()
        text = str(error) if isinstance(error, EmbodiedError) else f"{type(error).__name__}: {error}"
        return None, f"its code does not support a partial reset of a batch ({text})"
    redraws = "reconfiguration_freq" in inspect.signature(registered_task(config).cls.__init__).parameters
    if env.scene_is_drawn and redraws:
        if config.stepping == "auto":
            env.close()
            return None, "each of its episodes has geometry of its own, for which the scene is built anew"
        logger.warning(
            "%s: stepped as a batch, all episodes share the one geometry drawn from env.scene_seed=%d.",
            config.id,
            config.scene_seed,
        )
    return env, ""


def _probe(env: BatchedManiSkill) -> None:
    """Reset one environment and take one step, which is where a task's code can prove unfit for batches."""
    last = torch.tensor([env.num_envs - 1])
    env.reset(last, Assignments.from_seeds([0]))
    env.observe(last)
    env.step(torch.zeros(env.num_envs, env.spec.action.dim), torch.ones(env.num_envs, dtype=torch.bool))


def describe(config: ManiSkillConfig) -> EnvSpec:
    """The spec of `config`, from a single environment that is built and closed again (under a second for state)."""
    env = make_batch(config, 1)
    try:
        return env.spec
    finally:
        env.close()
