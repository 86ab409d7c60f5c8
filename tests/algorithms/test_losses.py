"""Losses against numbers worked out by hand and properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import divergence, losses
from embodied.algorithms.aggregation import Aggregation, aggregate, loss_denominator, trajectory_lengths
from embodied.algorithms.losses import Clip, Loss
from embodied.algorithms.statistics import merge, report
from embodied.config import parse
from embodied.errors import ConfigurationError, CorrectnessAlarm

NAN = float("nan")


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def full(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def expect(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual.detach(), numbers(*expected), rtol=0, atol=1e-12)


def surrogate(ratios: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Terms, gradient by log-probability, statistics; old log-probabilities are 0."""
    logprobs = ratios.log().requires_grad_()
    loss = losses.ppo(logprobs, torch.zeros_like(ratios), advantages, full(ratios), clip=clip)
    loss.policy.terms.sum().backward()
    return loss.policy.terms, logprobs.grad, report(loss.statistics)


def test_ppo_clips_where_moving_on_would_profit_and_nowhere_else() -> None:
    ratios = numbers(0.5, 1.0, 1.5, 0.5, 1.0, 1.5)
    advantages = numbers(2, 2, 2, -2, -2, -2)
    terms, gradient, statistics = surrogate(ratios, advantages, Clip(low=0.2, high=0.3))
    expect(terms, -1.0, -2.0, -2.6, 1.6, 2.0, 3.0)
    expect(gradient, -1.0, -2.0, 0.0, 0.0, 2.0, 3.0)  # -A * ratio where not clipped
    assert statistics["policy/clip_fraction"] == pytest.approx(2 / 6)
    assert statistics["policy/ratio"] == pytest.approx(1.0)
    assert statistics["policy/ratio_max"] == pytest.approx(1.5)
    # ratio - 1 - log ratio
    expected = sum(r - 1 - math.log(r) for r in ratios.tolist()) / 6
    assert statistics["policy/approx_kl"] == pytest.approx(expected)


def test_dual_clip_bounds_the_loss_of_bad_actions_only() -> None:
    terms, gradient, statistics = surrogate(numbers(5, 5, 2), numbers(-1, 1, -1), Clip(dual=3.0))
    expect(terms, 3.0, -1.2, 2.0)
    expect(gradient, 0.0, 0.0, 2.0)
    assert statistics["policy/dual_clip_fraction"] == pytest.approx(1 / 3)


def test_log_ratio_clamp_is_reported_when_it_acts() -> None:
    ratios = numbers(math.exp(3), math.exp(-3), 1.0)
    terms, gradient, statistics = surrogate(ratios, numbers(-1, 1, 1), Clip(log_ratio=(-2.0, 1.0)))
    expect(terms, math.e, -math.exp(-2), -1.0)
    expect(gradient, 0.0, 0.0, -1.0)
    assert statistics["policy/log_ratio_clamp_fraction"] == pytest.approx(2 / 3)


def test_huge_log_ratio_stays_finite_with_the_clamp() -> None:
    terms, gradient, _ = surrogate(numbers(1.0).mul(math.exp(700)), numbers(-1), Clip(log_ratio=(-20.0, 20.0)))
    assert terms.isfinite().all()
    assert gradient.isfinite().all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([None, 3.0]), st.sampled_from([None, (-1.0, 1.0)]))
def test_ratio_one_gives_the_plain_policy_gradient(seed: int, dual, clamp) -> None:
    source = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(4, 3, generator=source, dtype=torch.float64).requires_grad_()
    advantages = torch.randn(4, 3, generator=source, dtype=torch.float64)
    loss = losses.ppo(logprobs, logprobs.detach(), advantages, full(advantages), clip=Clip(dual=dual, log_ratio=clamp))
    loss.policy.terms.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"low": -0.1}, {"low": 1.1}, {"high": -1.0}, {"dual": 1.0}, {"dual": NAN}, {"log_ratio": (0.5, 1.0)}],
)
def test_impossible_clip_options_are_refused(options: dict) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        Clip(**options)
    with pytest.raises(ConfigurationError, match="expected"):
        parse(Clip, options)


def test_value_loss_is_half_the_squared_error() -> None:
    terms, _ = losses.value_terms(numbers(1, 2), numbers(0, 0), numbers(3, 2), full(numbers(0, 0)))
    expect(terms.terms, 2.0, 0.0)


def test_value_clip_takes_the_worse_of_both_errors() -> None:
    # old 0, clip .5: value 2 is seen as .5. Target 3: errors 1 and 2.5; target 0: errors -2 and -.5
    values = numbers(2, 2, 0.4).requires_grad_()
    terms, statistics = losses.value_terms(values, numbers(0, 0, 0), numbers(3, 0, 1), full(values), value_clip=0.5)
    expect(terms.terms, 0.5 * 2.5**2, 0.5 * 4, 0.5 * 0.36)
    terms.terms.sum().backward()
    expect(values.grad, 0.0, 2.0, -0.6)
    assert report(statistics)["value/clip_fraction"] == pytest.approx(2 / 3)


def test_huber_is_quadratic_up_to_delta_and_linear_beyond() -> None:
    values = numbers(0, 0, 0).requires_grad_()
    terms, _ = losses.value_terms(values, numbers(0, 0, 0), numbers(1, 2, -4), full(values), huber_delta=2.0)
    expect(terms.terms, 0.5, 2.0, 2 * (4 - 1))
    terms.terms.sum().backward()
    expect(values.grad, -1.0, -2.0, 2.0)


@pytest.mark.parametrize("options", [{"value_clip": 0.0}, {"value_clip": -1.0}, {"huber_delta": 0.0}])
def test_impossible_value_options_are_refused(options: dict) -> None:
    one = numbers(1)
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        losses.value_terms(one, one, one, full(one), **options)


def test_actor_and_critic_keep_their_own_levels_and_masks() -> None:
    logprobs, values = numbers(0, 0, 0, 0).reshape(1, 2, 2), numbers(1, NAN).reshape(1, 2)
    mask = torch.tensor([[[1, 1], [0, 0]]]).bool()
    loss = losses.ppo_actor_critic(
        logprobs, logprobs, 2 + logprobs, mask, values, values, 2 * values, mask[..., 0], clip=Clip()
    )
    assert loss.policy.terms.tolist() == [[[-2.0, -2.0], [0.0, 0.0]]]
    assert loss.value is not None
    assert loss.value.terms.tolist() == [[0.5, 0.0]]
    assert loss.value.mask.shape == (1, 2)
    assert {"policy/loss", "value/loss"} <= set(loss.statistics)


def test_decoupled_ppo_clips_around_the_proximal_policy_and_weights_by_the_behaviour() -> None:
    logprobs, proximal, behaviour = numbers(math.log(1.5), 0.0), numbers(0, 0), numbers(-math.log(2), math.log(4))
    logprobs.requires_grad_()
    loss = losses.decoupled_ppo(
        logprobs, behaviour, proximal, numbers(1, 1), full(proximal), clip=Clip(low=0.2, high=0.2)
    )
    # weights exp(proximal - behaviour) = 2 and 1/4; ratios 1.5 (clipped to 1.2) and 1
    expect(loss.policy.terms, -2.4, -0.25)
    loss.policy.terms.sum().backward()
    expect(logprobs.grad, 0.0, -0.25)
    statistics = report(loss.statistics)
    assert statistics["policy/behaviour_weight"] == pytest.approx(1.125)
    assert statistics["policy/behaviour_weight_max"] == pytest.approx(2.0)
    assert statistics["policy/behaviour_capped_fraction"] == 0


def test_behaviour_weight_cap_drops_the_term_but_keeps_the_denominator() -> None:
    behaviour = numbers(-math.log(2), 0.0)
    zeros = numbers(0, 0)
    loss = losses.decoupled_ppo(
        zeros, behaviour, zeros, numbers(1, 1), full(zeros), clip=Clip(), behaviour_weight_cap=1.5
    )
    expect(loss.policy.terms, 0.0, -1.0)
    assert loss.policy.mask.all()
    assert report(loss.statistics)["policy/behaviour_capped_fraction"] == 0.5
    with pytest.raises(ConfigurationError, match="behaviour_weight_cap"):
        losses.decoupled_ppo(zeros, zeros, zeros, zeros, full(zeros), clip=Clip(), behaviour_weight_cap=0.5)


def test_behaviour_weight_may_be_truncated_instead_of_dropped() -> None:
    behaviour, zeros = numbers(-math.log(2), math.log(2)), numbers(0, 0)
    loss = losses.decoupled_ppo(
        zeros,
        behaviour,
        zeros,
        numbers(1, 1),
        full(zeros),
        clip=Clip(),
        behaviour_weight_cap=1.5,
        beyond_cap="truncate",
    )
    # weights 2, truncated to 1.5, and 1/2
    expect(loss.policy.terms, -1.5, -0.5)
    assert report(loss.statistics)["policy/behaviour_capped_fraction"] == 0.5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_decoupled_ppo_on_policy_is_ppo(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    logprobs, old, advantages = torch.randn(3, 4, 5, generator=source, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=source) < 0.7
    plain = losses.ppo(logprobs, old, advantages, mask, clip=Clip(dual=3.0))
    decoupled = losses.decoupled_ppo(
        logprobs, old, old, advantages, mask, clip=Clip(dual=3.0), behaviour_weight_cap=1.0
    )
    torch.testing.assert_close(decoupled.policy.terms, plain.policy.terms, rtol=0, atol=0)


def test_cloning_is_cross_entropy_or_absolute_error() -> None:
    mask = torch.tensor([1, 0, 1]).bool()
    loss = losses.bc(numbers(-1, NAN, -3), mask)
    expect(loss.policy.terms, 1.0, 0.0, 3.0)
    assert report(loss.statistics)["bc/loss"] == 2.0
    loss = losses.bc_l1(numbers(1, NAN, -3), numbers(0.5, 0, 1), mask)
    expect(loss.policy.terms, 0.5, 0.0, 4.0)
    assert report(loss.statistics)["bc/l1"] == 2.25


def test_entropy_and_divergence_are_terms_with_masks_of_their_own() -> None:
    mask = torch.tensor([1, 0, 1]).bool()
    entropy = numbers(0.5, NAN, 1.5).requires_grad_()
    terms, statistics = losses.entropy_terms(entropy, mask)
    expect(terms.terms, -0.5, 0.0, -1.5)
    assert report(statistics) == {"policy/entropy": 1.0}
    logprobs = numbers(-1, NAN, -3).requires_grad_()
    terms, statistics = losses.kl_terms(logprobs, numbers(-2, 0, -3), mask, estimator=divergence.kl_k2)
    expect(terms.terms, 0.5, 0.0, 0.0)
    assert report(statistics) == {"policy/reference_kl": 0.25}
    terms.terms.sum().backward()
    expect(logprobs.grad, 1.0, 0.0, 0.0)


def test_kl_estimators_take_current_then_reference() -> None:
    current, reference = numbers(-1.0), numbers(-2.0)
    expect(divergence.kl_k1(current, reference), 1.0)
    expect(divergence.kl_k2(current, reference), 0.5)
    expect(divergence.kl_k3(current, reference), math.exp(-1) + 1 - 1)
    expect(divergence.kl_abs(reference, current), 1.0)
    expect(divergence.kl_k3(reference, current), math.e - 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=8))
def test_k2_k3_and_abs_are_never_negative_and_zero_for_equal_policies(pairs) -> None:
    current, reference = numbers(*(p[0] for p in pairs)), numbers(*(p[1] for p in pairs))
    for estimator in (divergence.kl_k2, divergence.kl_k3, divergence.kl_abs):
        assert (estimator(current, reference) >= 0).all()
        assert not estimator(current, current).any()


def test_k1_and_k3_estimate_the_true_divergence() -> None:
    current, reference = numbers(0.7, 0.2, 0.1), numbers(0.3, 0.3, 0.4)
    truth = (current * (current / reference).log()).sum()
    for estimator in (divergence.kl_k1, divergence.kl_k3):
        mean = (current * estimator(current.log(), reference.log())).sum()
        torch.testing.assert_close(mean, truth, rtol=0, atol=1e-12)


def test_gradient_of_k2_as_a_loss_is_that_of_the_divergence_and_of_k1_is_zero() -> None:
    logits, reference = numbers(0.3, -0.2, 0.9).requires_grad_(), numbers(0.3, 0.3, 0.4).log()

    def gradient(expression: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(expression, logits, retain_graph=True)[0]

    logprobs = torch.log_softmax(logits, 0)
    weights = logprobs.exp().detach()  # draws carry no gradient
    true = gradient((logprobs.exp() * (logprobs - reference)).sum())
    torch.testing.assert_close(gradient((weights * divergence.kl_k2(logprobs, reference)).sum()), true)
    assert gradient((weights * divergence.kl_k1(logprobs, reference)).sum()).abs().max() < 1e-12


def test_entropy_of_logits() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf, 0.0], [5.0, -math.inf, -math.inf, -math.inf]], dtype=torch.float64)
    logits.requires_grad_()
    entropy = divergence.entropy_from_logits(logits)
    expect(entropy, math.log(3), 0.0)
    entropy.sum().backward()
    assert logits.grad.isfinite().all()


LOSSES: dict[str, Callable[..., Loss]] = {
    "ppo": lambda x, m: losses.ppo(x[0], x[1], x[2], m, clip=Clip(low=0.2, high=0.28, dual=3.0)),
    "ppo_actor_critic": lambda x, m: losses.ppo_actor_critic(
        x[0], x[1], x[2], m, x[3], x[4], x[5], m, clip=Clip(), value_clip=0.2, huber_delta=1.0
    ),
    "decoupled_ppo": lambda x, m: losses.decoupled_ppo(
        x[0], x[1], x[3], x[2], m, clip=Clip(), behaviour_weight_cap=2.0
    ),
    "bc": lambda x, m: losses.bc(x[0], m),
    "bc_l1": lambda x, m: losses.bc_l1(x[0], x[1], m),
}


def batch(seed: int, rows: int = 12, columns: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Six float64 tensors [6, rows, columns] and a mask with an empty row."""
    source = torch.Generator().manual_seed(seed)
    tensors = torch.randn(6, rows, columns, generator=source, dtype=torch.float64)
    mask = torch.rand(rows, columns, generator=source) < 0.6
    mask[3] = False
    return tensors, mask


def share(loss: Loss, mode: str, denominator: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    total = aggregate(loss.policy.terms, loss.policy.mask, mode, denominator, lengths=lengths)
    if loss.value is not None:
        total = total + 0.5 * aggregate(loss.value.terms, loss.value.mask, mode, denominator, lengths=lengths)
    return total


@pytest.mark.parametrize("mode", list(Aggregation))
@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_and_ranks_give_the_loss_gradient_and_statistics_of_the_whole(name: str, mode: str) -> None:
    tensors, mask = batch(seed=5)
    lengths = trajectory_lengths(mask, torch.arange(12) % 5) if mode == "trajectory-length" else None
    denominator = loss_denominator(mask, mode, lengths=lengths)
    results = []
    for pieces in ([torch.arange(12)], [torch.arange(5), torch.arange(5, 6), torch.arange(6, 12)]):
        inputs = tensors.clone().requires_grad_()
        total, records = torch.zeros((), dtype=torch.float64), []
        for rows in pieces:
            loss = LOSSES[name](inputs[:, rows], mask[rows])
            piece = share(loss, mode, denominator, None if lengths is None else lengths[rows])
            piece.backward(retain_graph=True)
            total, records = total + piece.detach(), [*records, loss.statistics]
        results.append((total, inputs.grad, report(merge(*records))))
    (whole, whole_gradient, whole_numbers), (split, split_gradient, split_numbers) = results
    assert whole_gradient.abs().sum() > 0
    torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(split_gradient, whole_gradient, rtol=1e-6, atol=1e-9)
    assert split_numbers == pytest.approx(whole_numbers, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("name", LOSSES)
def test_what_the_mask_hides_changes_neither_loss_nor_gradient_nor_statistics(name: str, garbage: float) -> None:
    results = []
    for filler in (0.0, garbage):
        tensors, mask = batch(seed=6)
        inputs = torch.where(mask, tensors, torch.full_like(tensors, filler)).requires_grad_()
        loss = LOSSES[name](inputs, mask)
        total = share(loss, "token-mean", loss_denominator(mask, "token-mean"), None)
        total.backward()
        results.append((total.detach(), inputs.grad, report(loss.statistics)))
    (clean, clean_gradient, clean_numbers), (dirty, dirty_gradient, dirty_numbers) = results
    assert torch.equal(dirty, clean)
    assert torch.equal(dirty_gradient, clean_gradient)
    assert not dirty_gradient[:, ~mask].any()
    assert dirty_numbers == clean_numbers


@pytest.mark.parametrize("mode", list(Aggregation))
@pytest.mark.parametrize("name", LOSSES)
def test_empty_mask_gives_zero_loss_gradient_and_statistics(name: str, mode: str) -> None:
    tensors, _ = batch(seed=7)
    mask = torch.zeros(12, 4, dtype=torch.bool)
    lengths = trajectory_lengths(mask, torch.arange(12)) if mode == "trajectory-length" else None
    inputs = tensors.requires_grad_()
    loss = LOSSES[name](inputs, mask)
    total = share(loss, mode, loss_denominator(mask, mode, lengths=lengths), lengths)
    total.backward()
    assert total == 0
    assert not inputs.grad.any()
    assert set(report(loss.statistics).values()) == {0.0}


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_rows_does_not_matter(name: str) -> None:
    tensors, mask = batch(seed=8)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    denominator = loss_denominator(mask, "seq-mean-token-mean")
    straight = share(LOSSES[name](tensors, mask), "seq-mean-token-mean", denominator, None)
    moved = share(LOSSES[name](tensors[:, order], mask[order]), "seq-mean-token-mean", denominator, None)
    torch.testing.assert_close(moved, straight, rtol=1e-12, atol=1e-12)


def test_shapes_and_dtypes_that_would_broadcast_or_weight_are_refused() -> None:
    x, mask = torch.zeros(2, 3), torch.ones(2, 3).bool()
    with pytest.raises(CorrectnessAlarm, match=r"advantages has shape \[2, 1\], expected \[2, 3\]"):
        losses.ppo(x, x, x[:, :1], mask, clip=Clip())
    with pytest.raises(CorrectnessAlarm, match="mask has shape"):
        losses.bc(x, mask[:, :1])
    with pytest.raises(CorrectnessAlarm, match=r"torch\.float32, expected torch\.bool"):
        losses.bc(x, mask.float())


@pytest.mark.parametrize("name", ["ppo", "ppo_actor_critic", "decoupled_ppo"])
def test_gradient_flows_through_the_current_policy_and_values_only(name: str) -> None:
    tensors, mask = batch(seed=9)
    inputs = list(tensors.requires_grad_().unbind())
    for tensor in inputs:
        tensor.retain_grad()
    loss = LOSSES[name](inputs, mask)
    share(loss, "token-mean", loss_denominator(mask, "token-mean"), None).backward()
    moved = {0, 3} if name == "ppo_actor_critic" else {0}  # logprobs, values
    assert {i for i, tensor in enumerate(inputs) if tensor.grad is not None and tensor.grad.any()} == moved
