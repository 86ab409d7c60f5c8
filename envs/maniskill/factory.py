"""Makes ManiSkill environments: chooses between batched and single stepping and says so when it must fall back."""

from __future__ import annotations

import logging

from envs.api import EnvSpec
from envs.batch import BatchEnv
from envs.maniskill.config import ManiSkillConfig

logger = logging.getLogger("envs.maniskill")


def make_batch(config: ManiSkillConfig, num_envs: int) -> BatchEnv:
    """`num_envs` environments of `config` in this process.

    Raises ConfigurationError for an unknown task, robot, control mode, reward or camera, AssetError for missing files
    and SimulatorError where the simulator cannot be built.
    """
    from envs.maniskill.batched import BatchedManiSkill

    return BatchedManiSkill(config, num_envs)


def describe(config: ManiSkillConfig) -> EnvSpec:
    """The spec of `config`, from a single environment that is built and closed again (under a second for state)."""
    env = make_batch(config, 1)
    try:
        return env.spec
    finally:
        env.close()
