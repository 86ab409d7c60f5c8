"""The conformance suite passes on sound environments and names the rule that an unsound one violates."""

from __future__ import annotations

import functools

import pytest
import scripted_env as world
import torch

import envs
from envs.conformance import ConformanceError
from envs.gym import GymConfig
from envs.local import LocalVectorEnv
from envs.pool import PoolVectorEnv


def factory(kind: type, habits: world.Habits, **options: object):
    config = world.config(**options)
    return lambda: kind(functools.partial(world.make_batch, habits), config)


@pytest.mark.parametrize("auto_reset", ["same_step", "disabled"])
@pytest.mark.parametrize(("num_envs", "slots"), [(1, 1), (4, 1), (10, 2)])
def test_sound_local_environments_pass(auto_reset: str, num_envs: int, slots: int):
    habits = world.Habits(images=True, privileged=True)
    envs.check(factory(LocalVectorEnv, habits, num_envs=num_envs, slots=slots, auto_reset=auto_reset))


@pytest.mark.parametrize("auto_reset", ["same_step", "disabled"])
def test_sound_pooled_environments_pass_with_uneven_rows_per_process(auto_reset: str):
    habits = world.Habits(images=True, privileged=True)
    envs.check(factory(PoolVectorEnv, habits, num_envs=10, slots=2, processes=2, auto_reset=auto_reset))


@pytest.mark.parametrize("options", [{"ignore_terminations": True}, {"reward_form": "relative"}])
def test_episode_options_keep_the_contract(options: dict[str, object]):
    envs.check(factory(LocalVectorEnv, world.Habits(), **options))


def test_gymnasium_cartpole_passes_local_and_pooled_with_both_kinds_of_auto_reset():
    envs.check(GymConfig(id="gym/CartPole-v1", num_envs=6, slots=2))


@pytest.mark.parametrize(
    ("habits", "rule"),
    [
        (world.Habits(exact_reset=False), "exact_reset"),
        (world.Habits(touches_neighbours=True), "partial_reset"),
        (world.Habits(episode_steps=0), None),
    ],
)
def test_violated_rule_is_named(habits: world.Habits, rule: str | None):
    check = functools.partial(envs.check, factory(LocalVectorEnv, habits, auto_reset="disabled"))
    if rule is None:
        check()
        return
    with pytest.raises(ConformanceError) as caught:
        check()
    assert caught.value.rule == rule


class _Clipping(LocalVectorEnv):
    """Counts steps after the end as valid."""

    def recv(self, slot: int = 0):
        result = super().recv(slot)
        result.valid[:] = True
        return result


class _Forgetful(LocalVectorEnv):
    """Begins the saved episodes anew instead of continuing them."""

    def load_state_dict(self, state: dict[str, torch.Tensor]):
        zeros = {name: torch.zeros_like(state[name]) for name in ("length", "returns", "success_once")}
        return super().load_state_dict({**state, **zeros, "actions": state["actions"][:0]})


@pytest.mark.parametrize(("kind", "rule"), [(_Clipping, "chunk_validity"), (_Forgetful, "state")])
def test_unsound_vector_environments_are_caught(kind: type, rule: str):
    habits = world.Habits(episode_steps=5)
    with pytest.raises(ConformanceError) as caught:
        envs.check(factory(kind, habits))
    assert caught.value.rule == rule
