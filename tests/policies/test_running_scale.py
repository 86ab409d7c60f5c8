"""Inputs are scaled by the mean and deviation of all that was trained on."""

import dataclasses

import pytest
import torch
from tensordict import TensorDict

from embodied.errors import ConfigurationError
from policies import conformance, mlp
from policies.api import Interface, Sampling
from policies.running_scale import RunningScale

INTERFACE = Interface(state_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
SIZES = torch.tensor([0.05, 1.0, 300.0])


@dataclasses.dataclass
class Shown:
    state: torch.Tensor
    images: None = None
    privileged: None = None

    @property
    def instruction(self):
        return [""] * len(self.state)


def states(rows=50, seed=0):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) * SIZES + torch.tensor([1e3, 0.0, -5.0])


def inputs(rows=50, seed=0):
    return TensorDict({"state": states(rows, seed)}, batch_size=[rows])


def test_absorbed_in_parts_it_is_the_mean_and_deviation_of_everything():
    scale = RunningScale(3)
    parts = [states(rows, seed) for seed, rows in enumerate((7, 1, 0, 60))]
    scale.absorb(torch.cat([scale.summary(part) for part in parts[:2]]))
    for part in parts[2:]:
        scale.absorb(scale.summary(part))
    everything = torch.cat(parts).double()
    torch.testing.assert_close(scale.mean, everything.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scale.deviation, everything.std(0, correction=0), rtol=1e-9, atol=0)
    scaled = scale(torch.cat(parts))
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), rtol=0, atol=2e-3)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3), rtol=2e-3, atol=0)


def test_rows_pass_as_they_are_at_first_and_are_cut_where_nothing_like_them_was_seen():
    scale = RunningScale(3)
    assert torch.equal(scale(states()), states())
    scale.absorb(scale.summary(torch.tensor([[0.0, 2.0, 5.0], [0.0, 4.0, 5.0]])))
    found = scale(torch.tensor([[0.0, 4.0, 5.0], [1.0, -90.0, 5.005]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0], [5.0, -5.0, 0.5]]), rtol=0, atol=1e-3)


def build(**options):
    return mlp.build(mlp.Config(name="mlp", hidden=(8,), scale="running", **options), INTERFACE, 0)


def test_a_scaled_policy_conforms_and_is_saved_with_what_it_absorbed(tmp_path):
    policy = build()
    policy.absorb(policy.summary(inputs(), torch.arange(50)))
    conformance.check(policy, Shown(states(4)))
    loaded = conformance.registry.save(policy, tmp_path) or conformance.registry.load(tmp_path)
    assert torch.equal(loaded.scale.deviation, policy.scale.deviation)
    greedy = Sampling(decode="greedy")
    assert torch.equal(loaded.act(inputs(4), greedy, None).actions, policy.act(inputs(4), greedy, None).actions)


def test_what_it_does_depends_on_the_scale_and_an_unscaled_one_has_nothing_to_absorb():
    policy, plain = build(), mlp.build(mlp.Config(name="mlp", hidden=(8,)), INTERFACE, 0)
    assert torch.equal(policy.scores(inputs()), plain.scores(inputs()))
    policy.absorb(policy.summary(inputs(), torch.arange(50)))
    assert not torch.allclose(policy.scores(inputs()), plain.scores(inputs()))
    assert plain.summary(inputs(), torch.arange(50)).shape == (1, 0)
    assert "scale.mean" in policy.state_dict()
    assert not any(name.startswith("scale") for name in plain.state_dict())


def test_only_the_rows_that_count_are_absorbed():
    policy = build()
    policy.absorb(policy.summary(inputs(), torch.tensor([4, 2, 9])))
    assert policy.scale.count == 3
    torch.testing.assert_close(policy.scale.mean, states()[[2, 4, 9]].double().mean(0))


def test_without_a_state_it_is_refused():
    with pytest.raises(ConfigurationError, match="state"):
        mlp.build(mlp.Config(name="mlp", scale="running"), dataclasses.replace(INTERFACE, state_dim=0), 0)
