"""The scripted simulator as an adapter that recipes can name: `test/scripted`, with pictures and privileged numbers."""

from envs.api import EnvConfig
from tests.envs.scripted_env import Habits, ScriptedBatch

Config = EnvConfig


def make_batch(config: EnvConfig, num_envs: int) -> ScriptedBatch:
    return ScriptedBatch(Habits(images=True, privileged=True), num_envs)
