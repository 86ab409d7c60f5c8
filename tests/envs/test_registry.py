"""Ids, prefixes, sizes: what is found, what is refused, and how."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys

import pytest
import scripted_env as world
import torch

import envs
from embodied.config import config as config_record
from embodied.errors import ConfigurationError
from envs import registry
from envs.api import Assignments, EnvConfig, EnvSpec
from envs.batch import BatchEnv
from envs.gym import GymConfig
from envs.local import LocalVectorEnv
from envs.pool.shared import process_count
from envs.slots import check_sizes


@config_record
class CountingConfig(EnvConfig):
    """Configuration of the adapter that this module stands for."""

    images: bool = False


class counting:
    """An adapter as another package would provide it."""

    Config = CountingConfig

    @staticmethod
    def make_batch(config: CountingConfig, num_envs: int) -> BatchEnv:
        return world.make_batch(world.Habits(images=config.images), num_envs)

    @staticmethod
    def describe(config: CountingConfig) -> EnvSpec:
        return counting.make_batch(config, 1).spec

    @staticmethod
    def in_process(config: CountingConfig) -> bool:
        return True


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package had the entry point `counting`."""
    entry = importlib.metadata.EntryPoint("counting", "test_registry:counting", registry.ENTRY_POINT_GROUP)
    real = importlib.metadata.entry_points

    def entry_points(**wanted: str):
        return [entry] if wanted == {"group": registry.ENTRY_POINT_GROUP} else real(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_gymnasium_ids_have_their_own_record():
    assert registry.config_class("gym/CartPole-v1") is GymConfig


@pytest.mark.parametrize("env_id", ["gmy/CartPole-v1", "CartPole-v1", "gym/", "gym"])
def test_unknown_prefix_is_refused_with_the_valid_ones(env_id: str):
    with pytest.raises(ConfigurationError, match=r"PREFIX/NAME.*gym/\.\.\., .*maniskill/\.\.\."):
        registry.config_class(env_id)


def test_unknown_option_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="Did you mean 'episode_steps'"):
        envs.make("gym/CartPole-v1", num_envs=2, episode_step=3)


def test_configuration_of_another_adapter_is_refused():
    with pytest.raises(ConfigurationError, match="GymConfig"):
        registry.make(EnvConfig(id="gym/CartPole-v1"))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_envs": 7, "slots": 2}, "Nearest valid num_envs: 6, 8"),
        ({"num_envs": 1, "slots": 2}, r"Nearest valid num_envs: 2\."),
        ({"num_envs": 0}, "at least 1"),
        ({"num_envs": 4, "slots": 2, "processes": 3}, "between 0 .* and 2"),
        ({"num_envs": 4, "episode_steps": 0}, "at least 1"),
        ({"num_envs": 4, "straggler_seconds": 500.0}, "below step_seconds=120"),
        ({"num_envs": 4, "step_seconds": 0.0}, "step_seconds=0 must be"),
        ({"num_envs": 4, "start_seconds": -1.0}, "start_seconds=-1 must be"),
        ({"num_envs": 4, "straggler_seconds": 1.0, "processes": 1}, "no other to go on with"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_valid_ones(sizes: dict[str, int], message: str):
    with pytest.raises(ConfigurationError, match=message):
        check_sizes(world.config(**sizes))


def test_processes_default_to_the_cores_but_no_more_than_environments_of_a_slot():
    cores = len(os.sched_getaffinity(0))
    assert process_count(world.config(1000)) == cores
    assert process_count(world.config(4, slots=4)) == 1
    assert process_count(world.config(4, processes=3)) == 3


def test_description_needs_no_running_environment_and_knows_the_configured_length():
    spec = registry.describe(GymConfig(id="gym/CartPole-v1", episode_steps=9))
    assert (spec.id, spec.state_dim, spec.episode_steps) == ("gym/CartPole-v1", 4, 9)


@pytest.mark.usefixtures("provided")
def test_adapter_of_another_package_is_found_by_its_entry_point():
    env = envs.make("counting/anything", num_envs=4, slots=2, images=True)
    assert isinstance(env, LocalVectorEnv)  # since the adapter says in_process
    assert env.reset(Assignments.from_seeds([1, 2, 3, 4])).images.shape == (4, 2, 4, 6, 3)
    assert registry.describe(CountingConfig(id="counting/anything")).tasks == 2
    envs.check(env)
    with pytest.raises(ConfigurationError, match=r"counting/\.\.\."):
        registry.config_class("countin/anything")


def test_import_of_envs_is_light():
    code = "import sys, envs; assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_local_environments_are_closed_with_their_vector_environment():
    env = LocalVectorEnv(functools.partial(world.make_batch, world.Habits()), world.config(4, slots=2))
    batches = [stepper.batch for stepper in env._steppers]
    env.reset(Assignments.from_seeds([1] * 4))
    env.close()
    env.close()
    assert [batch.closed for batch in batches] == [True, True]
    assert isinstance(batches[0].observe().state, torch.Tensor)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:adapter", "are to come from no_such_module:adapter, but No module named"),
        ("test_registry:nothing", "has no attribute 'nothing'"),
        ("test_registry:world", "has no Config"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str):
    entry = importlib.metadata.EntryPoint("counting", value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigurationError, match=said):
        registry.config_class("counting/x")


def test_what_starts_no_simulator_is_described_at_once(provided: None):
    assert registry.describe_at_once(GymConfig(id="gym/CartPole-v1", episode_steps=7)).episode_steps == 7
    assert registry.describe_at_once(CountingConfig(id="counting/x")) is None
