"""OpenVLA and OpenVLA-OFT as policies: the contract, adapters, saving and loading, refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_vla import GREEDY, INSTRUCTIONS, KINDS, TINY, VARIANTS, Shown, build, noise, shown
from vla_golden import STATISTICS, checkpoint_folder, interface

from embodied.config import parse
from embodied.errors import AssetError, CheckpointError, ConfigurationError, CorrectnessAlarm
from policies import conformance, openvla, openvla_oft
from policies.api import Sampling
from policies.vla import checkpoint, memory, statistics
from policies.vla.attention import causal_plan
from policies.vla.gripper import demonstrated
from policies.vla.options import LoraOptions


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_conforms_to_the_contract(kind, options, monkeypatch):
    monkeypatch.setitem(conformance.registry._KINDS, kind, f"policies.{kind}")
    conformance.check(build(kind, **options), shown())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(temperature=1.6), Sampling(top_k=5), Sampling(top_p=0.3, top_k=40)])
def test_drawn_tokens_are_inside_the_filter_and_evaluate_to_their_probability(kind, sampling):
    policy = build(kind)
    inputs = policy.prepare(shown(8))
    with torch.no_grad():
        output = policy.act(inputs, sampling, noise(8))
        found = policy.evaluate(inputs, output.tokens, sampling)
    assert torch.isfinite(output.logprobs).all()
    torch.testing.assert_close(found.logprobs, output.logprobs, atol=1e-5, rtol=0)
    assert (output.tokens >= policy.tokens.first).all()
    assert (output.tokens < policy.tokens.vocab_end).all()


def test_first_openvla_token_is_drawn_with_its_stated_probability():
    """The frequencies of 512 draws lie within five standard errors of the distribution."""
    policy = build("openvla")
    one = policy.prepare(Shown(shown(1).state, shown(1).images, [INSTRUCTIONS[0]]))
    sampling = Sampling(top_k=4)
    with torch.no_grad():
        probability = policy.log_probabilities(policy._teacher_forced(one, torch.full((1, 1, 4), 800)), sampling)[
            0, 0
        ].exp()
        many = one.expand(128).contiguous()
        draws = torch.cat([policy.act(many, sampling, noise(128, 128 * i)).tokens[:, 0, 0] for i in range(4)])
    frequency = torch.bincount(draws - policy.tokens.first, minlength=256) / len(draws)
    error = (probability * (1 - probability) / len(draws)).sqrt()
    assert (probability > 0).sum() == 4
    assert ((frequency - probability).abs() <= 5 * error + 1e-9).all()


def test_same_seed_same_weights_other_seed_other_weights():
    first, again, other = (build("openvla_oft", seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.language_model.lm_head.weight"], other["model.language_model.lm_head.weight"])


def test_first_values_are_near_zero_and_first_film_is_the_plain_network():
    policy, film = build("openvla_oft"), build("openvla_oft", film="language")
    inputs = policy.prepare(shown())
    with torch.no_grad():
        assert policy.value(inputs).abs().max() < 0.1
        torch.testing.assert_close(film.hidden_states(inputs), policy.hidden_states(inputs), atol=1e-5, rtol=0)


def test_state_reaches_the_action_only_where_it_is_a_token():
    moved = shown()
    moved.state = moved.state + 1
    for state, differs in (("none", False), ("token", True)):
        policy = build("openvla_oft", state=state)
        with torch.no_grad():
            a, b = (policy.hidden_states(policy.prepare(o)) for o in (shown(), moved))
        assert (not torch.equal(a, b)) == differs


def test_openvla_looks_at_the_first_camera_and_openvla_oft_at_all():
    two = dataclasses.replace(TINY, cameras=2)
    changed = shown(cameras=2)
    changed.images = changed.images.clone()
    changed.images[:, 1] = 255 - changed.images[:, 1]
    for kind, options, differs in (
        ("openvla", {}, False),
        ("openvla_oft", {}, True),
        ("openvla_oft", {"views": 1}, False),
    ):
        policy = build(kind, two, **options)
        a, b = (policy.prepare(o)["pixels"] for o in (shown(cameras=2), changed))
        assert (not torch.equal(a, b)) == differs
        assert a.shape[1] == policy.views
    with pytest.raises(ConfigurationError, match="has 2 cameras"):
        build("openvla_oft", two, views=3)


def test_causal_decoder_is_refused_by_openvla_oft(monkeypatch):
    monkeypatch.setattr("policies.openvla_oft.model.bidirectional_plan", causal_plan)
    with pytest.raises(CorrectnessAlarm, match="bidirectional"):
        build("openvla_oft")


def test_l1_head_acts_greedily_and_refuses_to_be_sampled_or_evaluated():
    policy = build("openvla_oft", head="l1")
    inputs = policy.prepare(shown())
    with torch.no_grad():
        output = policy.act(inputs, GREEDY, None)
    assert output.actions.shape == (4, 8, 4)
    assert not output.logprobs.any()
    with pytest.raises(ConfigurationError, match="greedy"):
        policy.act(inputs, Sampling(), noise())
    with pytest.raises(ConfigurationError, match="head: tokens"):
        policy.evaluate(inputs, output.tokens, GREEDY)


@pytest.mark.parametrize(
    ("gripper", "expected"), [("open_is_positive", [-1.0, 1.0]), ("open_is_negative", [1.0, -1.0])]
)
def test_gripper_becomes_the_sign_the_environment_takes(gripper, expected):
    policy = build("openvla", gripper=gripper)
    policy.action_scale.mask[-1] = False
    actions = policy.executed(torch.tensor([[[0.0, 0.0, 0.0, 0.1]], [[0.0, 0.0, 0.0, 0.9]]]))
    assert actions[:, 0, -1].tolist() == expected


@pytest.mark.parametrize("gripper", ["as_is", "open_is_positive", "open_is_negative"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_demonstrated_is_what_is_executed_whatever_the_gripper_is_called(kind, gripper):
    taken = torch.tensor([[[0.5, -0.5, 0.25, 1.0]], [[-0.5, 0.5, 0.0, -1.0]], [[0.1, 0.2, 0.3, -1.0]]])
    numbers = demonstrated(taken.flatten(0, 1), gripper).repeat(100, 1)  # so that percentiles are extremes
    known = {"mine": statistics.compute(numbers, 1)}
    module = KINDS[kind]
    policy = module.build(module.Config(name=f"{kind}/tiny", gripper=gripper), TINY, 0, known)
    bins = policy.tokens.decode(policy.tokens.encode(policy.wanted(taken)))
    found = policy.executed(bins)
    torch.testing.assert_close(found[..., :-1], taken[..., :-1], atol=0.01, rtol=0)
    torch.testing.assert_close(found[..., -1], taken[..., -1], atol=0.01 if gripper == "as_is" else 0, rtol=0)


def test_a_fit_brings_its_own_statistics_whatever_the_checkpoint_has(tmp_path):
    policy = build("openvla_oft")
    policy.bundle.statistics = {"one": policy.bundle.statistics["environment"], "two": {"action": {}}}
    openvla_oft.save(policy, tmp_path)
    known = {"mine": statistics.compute(torch.rand(9, 2), 1, torch.rand(9, 3))}
    two_numbers = dataclasses.replace(TINY, action_dim=2, state_dim=3, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    module = KINDS["openvla_oft"]
    config = module.Config(name="openvla_oft/tiny", checkpoint=str(tmp_path))
    with pytest.raises(ConfigurationError, match="must name one"):
        module.build(config, two_numbers, 0)
    fitted = module.build(config, two_numbers, 0, known)
    assert (fitted.statistics_key, len(fitted.action_scale), len(fitted.state_scale)) == ("mine", 2, 3)


# -- learning -------------------------------------------------------------------------------------------------------


def step(policy, loss):
    optimiser = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.1)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    loss.backward()
    optimiser.step()
    return {name for name, p in policy.named_parameters() if not torch.equal(before[name], p)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", ["language", "language_and_vision"])
def test_adapters_and_heads_are_all_that_changes(kind, targets):
    film = {"film": "language", "state": "token"} if kind == "openvla_oft" else {}
    policy = build(kind, lora=LoraOptions(rank=4, targets=targets), **film)
    inputs = policy.prepare(shown())
    tokens = policy.act(inputs, Sampling(), noise()).tokens
    policy.train()
    found = policy.evaluate(inputs, tokens, Sampling())
    changed = step(policy, -found.logprobs.mean() + found.value.square().mean())
    heads = ("value_head.", "state_projector.")
    assert all(".lora_" in n or n.startswith(heads) or ".scale." in n or ".shift." in n for n in changed)
    for layer in range(4):
        for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"):
            assert f"model.language_model.model.layers.{layer}.{part}.lora_B.default.weight" in changed
    vision = {name for name in changed if "vision_backbone" in name and ".lora_B" in name}
    assert bool(vision) == (targets == "language_and_vision")
    assert {name for name in changed if name.startswith("value_head.")} == {
        f"value_head.{name}" for name, _ in policy.value_head.named_parameters()
    }
    if film:
        assert "model.vision_backbone.featurizer.blocks.0.shift.weight" in changed


def test_ratio_is_one_in_train_mode_with_adapters():
    policy = build("openvla_oft", lora=LoraOptions(rank=4))
    inputs = policy.prepare(shown())
    with torch.no_grad():
        output = policy.act(inputs, Sampling(), noise())
        found = policy.train().evaluate(inputs, output.tokens, Sampling())
    torch.testing.assert_close(found.logprobs, output.logprobs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_imitation_learns_two_actions_by_heart_and_ignores_invalid_ones(kind):
    policy = build(kind, chunk=2).train()
    inputs = policy.prepare(shown(2))
    actions = torch.tensor([[[0.5, -0.5, 0.1, 0.2]] * 2, [[-0.5, 0.5, -0.1, 0.4]] * 2])
    valid = torch.tensor([[True, True], [True, False]])
    spoilt = actions.clone()
    spoilt[1, 1] = 0.9
    if kind == "openvla_oft":  # the placeholders do not see the actions
        same = policy.imitation(inputs, actions, valid).loss, policy.imitation(inputs, spoilt, valid).loss
        assert torch.equal(*same)
    optimiser = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=2e-3)
    first = policy.imitation(inputs, actions)
    for _ in range(80):
        optimiser.zero_grad()
        policy.imitation(inputs, actions).loss.backward()
        optimiser.step()
    last = policy.imitation(inputs, actions)
    assert last.loss < 0.2 * first.loss
    assert last.accuracy == 1
    with torch.no_grad():
        acted = policy.eval().act(inputs, GREEDY, None).actions
    torch.testing.assert_close(acted, actions, atol=0.005, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_weights_that_act_in_bfloat16_agree_with_a_learner_that_does(kind):
    plain, chosen = build(kind), build(kind, compute="bfloat16")
    inputs = plain.prepare(shown())
    with torch.no_grad():
        output = chosen.act(inputs, Sampling(), noise())
        found = chosen.evaluate(inputs, output.tokens, Sampling())
        with torch.autocast("cpu", torch.bfloat16):
            learnt = plain.evaluate(inputs, output.tokens, Sampling())
        torch.testing.assert_close(chosen.value(inputs), output.value)
    gap = (found.logprobs - output.logprobs).abs().max()
    assert gap < (1e-4 if kind == "openvla_oft" else 0.05)  # openvla's acting goes token by token
    assert torch.equal(found.logprobs, learnt.logprobs)
    exact = plain.evaluate(inputs, output.tokens, Sampling()).logprobs
    assert (found.logprobs - exact).abs().max() > 1e-4
    step(chosen, chosen.evaluate(inputs, output.tokens, Sampling()).logprobs.sum())
    assert chosen.metadata()["options"]["compute"] == "bfloat16"


@pytest.mark.parametrize(("kind", "options"), [("openvla", {}), ("openvla_oft", {"film": "language"})])
def test_bfloat16_weights_act_and_learn(kind, options):
    policy = build(kind, precision="bfloat16", lora=LoraOptions(rank=4), **options)
    inputs = policy.prepare(shown())
    with torch.no_grad():
        output = policy.act(inputs, Sampling(), noise())
    found = policy.evaluate(inputs, output.tokens, Sampling())
    assert (found.logprobs - output.logprobs).abs().max() < 0.1
    assert any(".lora_B" in name for name in step(policy, found.logprobs.sum()))


@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_evaluating_agree_under_autocast(kind):
    policy = build(kind)
    inputs = policy.prepare(shown())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output = policy.act(inputs, Sampling(), noise())
        found = policy.evaluate(inputs, output.tokens, Sampling())
    assert output.logprobs.dtype == torch.float32
    assert (found.logprobs - output.logprobs).abs().max() < 0.05
    with torch.no_grad():
        exact = policy.evaluate(inputs, output.tokens, Sampling())
    assert (found.logprobs - exact.logprobs).abs().max() < 0.1


# -- refusals -------------------------------------------------------------------------------------------------------


def test_misfits_are_refused_with_the_reason(tmp_path):
    source = checkpoint_folder(tmp_path / "published")
    config = openvla.OpenVLAConfig(checkpoint=str(source), statistics=STATISTICS)
    with pytest.raises(ConfigurationError, match="7 action dimensions"):
        openvla.build(config, dataclasses.replace(interface(), action_dim=4))
    with pytest.raises(ConfigurationError, match="must name one"):
        openvla.build(openvla.OpenVLAConfig(checkpoint=str(source)), interface())
    with pytest.raises(CheckpointError, match="proprio_projector"):
        openvla_oft.build(
            openvla_oft.OpenVLAOFTConfig(checkpoint=str(source), statistics=STATISTICS, state="token"), interface()
        )
    with pytest.raises(ConfigurationError, match="camera"):
        build("openvla", dataclasses.replace(TINY, cameras=0))
    with pytest.raises(ConfigurationError, match="unbounded"):
        build("openvla", dataclasses.replace(TINY, action_low=(-float("inf"),) * 4))
    with pytest.raises(ConfigurationError, match="Did you mean 'openvla/tiny'"):
        parse(openvla.OpenVLAConfig, {"name": "openvla/tny"})
    with pytest.raises(AssetError, match="neither an existing folder, nor a hub id"):
        openvla.build(openvla.OpenVLAConfig(checkpoint="/no/such/folder"), interface())
    (source / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="expected 'openvla'"):
        openvla.load(source, statistics=STATISTICS)


def test_wrong_weights_are_named(tmp_path):
    openvla.save(build("openvla"), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["projector.fc1.weight"] = state["projector.fc1.weight"][:, :3].contiguous()
    state["extra"] = state.pop("projector.fc1.bias")
    checkpoint.write_weights(state.items(), tmp_path)
    with pytest.raises(CheckpointError, match=r"unexpected extra.*\[512, 3\], expected.*missing projector.fc1.bias"):
        openvla.load(tmp_path)


# -- memory ---------------------------------------------------------------------------------------------------------


def test_estimate_counts_weights_gradients_and_optimiser_state():
    options = openvla.OpenVLAConfig(name="openvla/tiny")
    weights = 4 * sum(p.numel() for p in build("openvla").parameters())
    acting = memory.acting(openvla.OpenVLAPolicy, options, TINY, batch=1)
    assert weights < acting < 1.4 * weights
    learning = memory.learning(openvla.OpenVLAPolicy, options, TINY, batch=2, autocast=None)
    assert 3.5 * weights < learning < 6 * weights


@pytest.mark.slow
def test_estimate_agrees_with_what_a_mid_size_policy_really_takes():
    """Resident memory of a process that acts and learns with 56 M parameters, against the estimate for it."""
    script = Path(__file__).with_name("vla_memory_probe.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment, timeout=280
    )
    for name, (estimated, measured) in json.loads(done.stdout.splitlines()[-1]).items():
        assert abs(estimated - measured) < 0.1 * measured, (name, estimated, measured)
