import math

import numpy as np
import pytest
import torch
from scipy import stats

import policies
import policies.conformance
from embodied.errors import AssetError, CheckpointError, ConfigurationError
from embodied.random import RowNoise
from envs.api import Observation
from policies import distributions
from policies.api import Interface, Sampling
from policies.registry import check_interface

CONTINUOUS = Interface(state_dim=5, action_dim=3, action_low=(-1.0, -2.0, 0.0), action_high=(1.0, 2.0, 4.0))
DISCRETE = Interface(state_dim=5, action_dim=1, action_kind="discrete", choices=4)


def observation(rows=6):
    state = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0))
    return Observation(state, torch.zeros(rows, dtype=torch.int64), [""] * rows)


@pytest.mark.parametrize("interface", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
@pytest.mark.parametrize("options", [{}, {"chunk": 4}, {"chunk": 4, "value": "action"}, {"value": "none"}])
def test_mlp_keeps_the_contract(interface, options):
    policies.check(policies.build("mlp", interface, seed=1, hidden=(16, 16), **options), observation())


def test_a_policy_whose_evaluation_forgets_the_limits_is_found_out_and_its_mode_left_alone():
    many = Interface(state_dim=5, action_dim=1, action_kind="discrete", choices=9)
    policy = policies.build("mlp", many, seed=1, hidden=(16,)).train()
    policies.check(policy, observation())
    assert policy.training
    evaluate = policy.evaluate
    policy.evaluate = lambda inputs, tokens, sampling: evaluate(
        inputs, tokens, Sampling(temperature=sampling.temperature)
    )
    with pytest.raises(policies.conformance.PolicyContractError, match=r"top_k 5, top_p 0\.9.*ratio must be 1"):
        policies.check(policy, observation())


@pytest.mark.parametrize("name", ["mlp", "openvla/tiny"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/policy could not be written"):
        policies.save(policies.build(name), tmp_path / "file/policy")


def test_same_seed_same_weights_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first, second, other = (policies.build("mlp", CONTINUOUS, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [p.actor[0].weight for p in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_actions_stay_within_bounds_and_the_draw_is_what_is_logged():
    policy = policies.build("mlp", CONTINUOUS, seed=0, log_std=2.0)
    inputs = policy.prepare(observation(200))
    with torch.no_grad():
        output = policy.act(inputs, Sampling(), RowNoise(0, np.arange(200), np.zeros(200)))
    low, high = torch.tensor(CONTINUOUS.action_low), torch.tensor(CONTINUOUS.action_high)
    assert bool(((output.actions >= low) & (output.actions <= high)).all())
    assert bool((output.tokens.abs() > 1).any())
    middle, half = (low + high) / 2, (high - low) / 2
    assert torch.allclose(output.actions, middle + half * output.tokens.clamp(-1, 1), atol=1e-6)


def test_first_values_are_near_zero_and_the_critic_is_a_group_of_its_own():
    policy = policies.build("mlp", CONTINUOUS, seed=0)
    groups = policy.parameter_groups()
    assert {id(p) for p in groups["critic"]} == {id(p) for p in policy.value_head.parameters()}
    assert any(p is policy.log_std for p in groups["actor"])


def test_gaussian_log_density_and_entropy_match_scipy():
    mean, log_std = torch.tensor([[[0.3, -1.0]]]), torch.tensor([0.2, -0.7])
    draws = torch.tensor([[[1.1, -1.4]]])
    sampling = Sampling(temperature=1.5)
    scale = log_std.exp().numpy() * 1.5
    logprob = distributions.gaussian_logprob(draws, mean, log_std, sampling)
    expected = stats.norm.logpdf(draws.numpy(), mean.numpy(), scale)
    assert np.allclose(logprob.numpy(), expected, atol=1e-6)
    entropy = distributions.gaussian_entropy(mean, log_std, sampling)
    assert np.allclose(entropy.numpy()[0, 0], stats.norm.entropy(scale=scale), atol=1e-6)


def test_categorical_draws_follow_their_distribution():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    log_probabilities = distributions.filter_logits(logits, Sampling(temperature=2.0))
    uniform = RowNoise(3, np.arange(1), np.zeros(1)).uniform(20_000)[0]
    index = distributions.draw_categorical(log_probabilities.expand(20_000, 4), uniform, Sampling())
    frequency = torch.bincount(index, minlength=4) / 20_000
    assert torch.allclose(frequency, (logits / 2).softmax(0), atol=0.012)


def test_top_k_and_top_p_keep_what_they_say_in_their_fixed_order():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    kept = distributions.filter_logits(logits, Sampling(top_k=2)).exp()
    assert torch.allclose(kept, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=1e-6)
    kept = distributions.filter_logits(logits, Sampling(top_p=0.79)).exp()
    assert torch.allclose(kept, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=1e-6)
    kept = distributions.filter_logits(logits, Sampling(top_p=0.01)).exp()
    assert torch.allclose(kept, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert distributions.categorical_entropy(distributions.filter_logits(logits, Sampling(top_k=2))) == pytest.approx(
        -(0.625 * math.log(0.625) + 0.375 * math.log(0.375)), abs=1e-6
    )


def test_an_excluded_choice_is_never_drawn_even_at_the_edges():
    log_probabilities = distributions.filter_logits(torch.tensor([3.0, 1.0, 2.0, 0.0]), Sampling(top_k=2))
    uniform = torch.tensor([2.0**-24, 0.5, 1 - 2.0**-24])
    index = distributions.draw_categorical(log_probabilities.expand(3, 4), uniform, Sampling())
    assert set(index.tolist()) <= {0, 2}


def test_a_choice_that_left_the_limits_after_an_update_keeps_a_finite_falling_probability_with_gradient():
    drawn, sampling = torch.tensor(1), Sampling(top_k=2)
    kept = distributions.filter_logits(torch.tensor([3.0, 2.0, 1.0, 0.0]), sampling, drawn)
    assert torch.equal(kept, distributions.filter_logits(torch.tensor([3.0, 2.0, 1.0, 0.0]), sampling))  # not widened
    before = None
    for score in (1.02, 1.01, 0.99, 0.5, -3.0):  # crosses choice 2's score of 1: among the best two, then not
        logits = torch.tensor([3.0, score, 1.0, 0.0], requires_grad=True)
        found = distributions.filter_logits(logits, sampling, drawn)[1]
        others = 3.0 if score > 1 else float(torch.tensor([3.0, 1.0]).logsumexp(0))
        assert found.item() == pytest.approx(score - float(torch.tensor([others, score]).logsumexp(0)), abs=1e-6)
        assert before is None or found.item() < before
        before = found.item()
        found.backward()
        assert bool(torch.isfinite(logits.grad).all())
        assert float(logits.grad[1]) > 0
    nucleus = distributions.filter_logits(
        torch.tensor([0.6, 0.25, 0.1, 0.05]).log(), Sampling(top_p=0.5), torch.tensor(3)
    )
    assert torch.allclose(nucleus.exp(), torch.tensor([0.6 / 0.65, 0.0, 0.0, 0.05 / 0.65]), atol=1e-6)


@pytest.mark.parametrize("limits", [{"top_k": 2}, {"top_p": 0.4}], ids=str)
def test_log_ratios_stay_finite_over_many_updates_under_limits(limits):
    """Probability is pushed away from what was drawn until every draw has left the limits."""
    policy = policies.build("mlp", DISCRETE, seed=3, hidden=(16,), chunk=2)
    inputs, sampling = policy.prepare(observation(32)), Sampling(**limits)
    with torch.no_grad():
        output = policy.act(inputs, sampling, RowNoise(0, np.arange(32), np.zeros(32)))
    first = policy.evaluate(inputs, output.tokens, sampling)
    assert torch.equal(first.logprobs, output.logprobs)
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.02)
    for _ in range(20):
        evaluation = policy.evaluate(inputs, output.tokens, sampling)
        assert bool(torch.isfinite(evaluation.logprobs).all())
        assert bool(torch.isfinite(evaluation.entropy).all())
        optimiser.zero_grad()
        evaluation.logprobs.mean().backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in policy.parameters() if p.grad is not None)
        optimiser.step()
    scores = policy._log_probabilities(policy.scores(inputs), sampling)
    outside = distributions.categorical_logprob(scores, output.tokens) == -math.inf
    assert outside.float().mean() > 0.3


def test_what_cannot_be_built_or_loaded_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'mlpp'.*mlp"):
        policies.build("mlpp", CONTINUOUS)
    with pytest.raises(ConfigurationError, match="hiden"):
        policies.build("mlp", CONTINUOUS, hiden=(3,))
    with pytest.raises(ConfigurationError, match="state_dim 0"):
        policies.build("mlp", Interface(state_dim=0, action_dim=3))
    with pytest.raises(AssetError, match="no saved policy"):
        policies.load(tmp_path)
    policy = policies.build("mlp", CONTINUOUS, hidden=(8,))
    policies.save(policy, tmp_path)
    description = tmp_path / "policy.json"
    description.write_text(description.read_text().replace("8", "9"))
    with pytest.raises(AssetError, match="do not fit"):
        policies.load(tmp_path)
    with pytest.raises(ConfigurationError, match=r"action_kind continuous \(policy\) against discrete"):
        check_interface(policy, DISCRETE)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-40, math.nan, math.inf])
def test_a_temperature_that_leaves_no_distribution_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        Sampling(temperature=temperature)


@pytest.mark.parametrize("limits", [{"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-12}], ids=str)
def test_the_tightest_limits_leave_the_most_probable_choice_alone(limits):
    logits = torch.tensor([[700.0, -700.0, 699.0, 0.0]])
    found = distributions.filter_logits(logits, Sampling(**limits))
    assert torch.equal(found.exp(), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    uniform = torch.tensor([1 - 2.0**-24])
    assert distributions.draw_categorical(found, uniform, Sampling(**limits)).tolist() == [0]
    assert distributions.categorical_entropy(found).tolist() == [0.0]
