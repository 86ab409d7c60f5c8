"""The conformance suite passes on sound environments and names the rule that an unsound one violates."""

from __future__ import annotations

import dataclasses
import functools
import logging

import pytest
import scripted_env as world
import torch

import envs
from embodied.errors import EmbodiedError, RefusedInput
from envs.api import Assignments
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


def stepping(**changes):
    """The scripted world with fields of what `step` returns changed."""

    def step(self, actions, active):
        result = world.ScriptedBatch.step(self, actions, active)
        return dataclasses.replace(result, **{name: change(getattr(result, name)) for name, change in changes.items()})

    return {"step": step}


def observing(**changes):
    """The same of what `observe` returns."""

    def observe(self, rows=None):
        shown = world.ScriptedBatch.observe(self, rows)
        return dataclasses.replace(shown, **{name: change(getattr(shown, name)) for name, change in changes.items()})

    return {"observe": observe}


def saying(**changes):
    """The same of its spec, or of its number of environments."""

    def __init__(self, habits, num_envs):
        world.ScriptedBatch.__init__(self, habits, num_envs)
        self.num_envs = changes.get("num_envs", num_envs)
        spec = dataclasses.replace(self.spec, **{k: v for k, v in changes.items() if k not in ("num_envs", "spec")})
        self.spec = changes.get("spec", spec)

    return {"__init__": __init__}


def rendering(change):
    return {"render": lambda self, rows: change(world.ScriptedBatch.render(self, rows))}


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (stepping(reward=lambda x: x[:, None]), r"reward as float32 \[4, 1\].* float32 tensor \[4\]"),
        (stepping(reward=lambda x: x[:1]), r"reward as float32 \[1\]"),
        (stepping(reward=lambda x: x.tolist()), "reward as list"),
        (stepping(terminated=lambda x: x.long()), r"terminated as int64.* bool tensor \[4\]"),
        (stepping(truncated=lambda x: x.numpy()), "truncated as ndarray"),
        (stepping(success=lambda x: None), "success as NoneType"),
        ({"step": lambda self, actions, active: (0, False)}, r"step\(\) returned a tuple"),
        (observing(images=lambda x: x.float() / 255), r"images as torch.float32; they must be uint8"),
        (observing(images=lambda x: x.permute(0, 1, 4, 2, 3)), r"'images' of shape \[4, 2, 4, 6, 3\]"),
        (observing(state=lambda x: x.numpy()), "state as ndarray"),
        (observing(state=lambda x: x.clone().requires_grad_()), "requires gradients"),
        (observing(instruction_ids=lambda x: x + 7), r"instruction_ids \[7, 8, 7, 8\], but its spec has 2"),
        ({"observe": lambda self, rows=None: torch.zeros(4)}, r"observe\(\) returned a Tensor"),
        (saying(spec=None), "spec is None"),
        (saying(num_envs=1), "asked for 4 environments, but its num_envs is 1"),
        (saying(instructions=()), "instructions is empty"),
        (rendering(lambda x: x.permute(0, 3, 1, 2)), r"'render'.*\[2, 3, 8, 8\]"),
        (rendering(lambda x: x.float()), "'render'.*float32"),
    ],
)
def test_a_typical_mistake_of_an_adapter_is_named(mistake: dict[str, object], said: str):
    adapter = type("Mistaken", (world.ScriptedBatch,), mistake)
    make = functools.partial(adapter, world.Habits(images=True))
    with pytest.raises(EmbodiedError, match=said):
        envs.check(lambda: LocalVectorEnv(make, world.config()))


@pytest.mark.parametrize("listens", [True, False])
def test_an_environment_in_which_seeds_change_nothing_is_warned_of(listens: bool, caplog: pytest.LogCaptureFixture):
    def reset(self, rows, assignments):
        world.ScriptedBatch.reset(self, rows, assignments)
        if not listens:
            self.seed[rows] = 33

    make = functools.partial(type("World", (world.ScriptedBatch,), {"reset": reset}), world.Habits())
    with caplog.at_level(logging.WARNING):
        envs.check(lambda: LocalVectorEnv(make, world.config()))
    assert ("other seeds gave the same episodes" in caplog.text) is not listens


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda env: env.send(torch.zeros(4, 1, 2).numpy(), 0, Assignments.from_seeds(range(4))), "not a ndarray"),
        (lambda env: env.send(torch.zeros(4, 1, 2), 0, half_seeds()), "seed is float32"),
        (lambda env: env.reset(half_seeds()), "seed is float32"),
    ],
)
def test_what_would_be_cut_to_fit_is_refused(change, said: str):
    with factory(LocalVectorEnv, world.Habits())() as env:
        env.reset(Assignments.from_seeds(range(4)))
        with pytest.raises(RefusedInput, match=said):
            change(env)


def half_seeds() -> Assignments:
    whole = Assignments.from_seeds(range(4))
    return dataclasses.replace(whole, seed=whole.seed + 0.5)


@pytest.mark.parametrize("kind", [LocalVectorEnv, PoolVectorEnv])
def test_closed_environments_say_so(kind: type):
    """Their descriptors may belong to another file by now."""
    env = factory(kind, world.Habits(), num_envs=1, auto_reset="disabled")()
    assignments = Assignments.from_seeds([0])
    env.reset(assignments)
    env.close()
    env.close()
    for use in (
        lambda: env.reset(assignments),
        lambda: env.send(torch.zeros(1, 1, 2)),
        lambda: env.recv(),
        lambda: env.ready(),
        lambda: env.render([0]),
        lambda: env.state_dict(),
    ):
        with pytest.raises(RefusedInput, match="are closed"):
            use()
