"""From terms to a loss: every mode by hand, and what keeps denominators right."""

from __future__ import annotations

import pytest
import torch

from embodied.algorithms import levels
from embodied.algorithms.aggregation import aggregate, loss_denominator, trajectory_lengths
from embodied.errors import ConfigurationError, CorrectnessAlarm

TERMS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()


def total(mode: str, terms: torch.Tensor = TERMS, mask: torch.Tensor = MASK) -> float:
    return aggregate(terms, mask, mode, loss_denominator(mask, mode)).item()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 20) / 4),
        ("seq-mean-token-sum", (6 + 20) / 2),  # the empty sequence counts nowhere
        ("seq-mean-token-mean", (2 + 20) / 2),
    ],
)
def test_modes_by_hand(mode: str, expected: float) -> None:
    assert total(mode) == pytest.approx(expected)
    # a sequence may have any shape behind its first dimension
    assert total(mode, TERMS.reshape(3, 3, 1), MASK.reshape(3, 3, 1)) == pytest.approx(expected)


def test_trajectory_length_divides_by_a_length_whose_terms_are_elsewhere() -> None:
    trajectory = torch.tensor([4, 4, 9])
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 1, 0]]).bool()
    lengths = trajectory_lengths(mask, trajectory)
    assert lengths.tolist() == [[4, 4, 4], [4, 4, 4], [2, 2, 2]]
    denominator = loss_denominator(mask, "trajectory-length", lengths=lengths)
    assert denominator.item() == pytest.approx(2)  # trajectories
    expected = ((1 + 2 + 3 + 20) / 4 + (5 + 5) / 2) / 2
    assert aggregate(TERMS, mask, "trajectory-length", denominator, lengths=lengths).item() == pytest.approx(expected)


def test_trajectory_length_weighs_a_short_success_like_a_long_failure() -> None:
    # one step of trajectory 0, four of trajectory 1, shuffled into rows of one term each
    trajectory, mask = torch.tensor([1, 0, 1, 1, 1]), torch.ones(5, 1, dtype=torch.bool)
    terms = torch.tensor([[2.0], [8.0], [2.0], [2.0], [2.0]], dtype=torch.float64)
    lengths = trajectory_lengths(mask, trajectory)
    denominator = loss_denominator(mask, "trajectory-length", lengths=lengths)
    assert aggregate(terms, mask, "trajectory-length", denominator, lengths=lengths).item() == pytest.approx(5.0)


def test_denominator_counts_tokens_not_the_mask_entries_that_they_share() -> None:
    valid = torch.tensor([[1, 1, 0]]).bool()
    terms = torch.ones(1, 3, 7, dtype=torch.float64)
    mask = levels.mask_to(valid, "token", tokens=7)
    denominator = loss_denominator(mask, "token-mean")
    assert denominator.item() == 14
    assert aggregate(terms, mask, "token-mean", denominator).item() == pytest.approx(1.0)
    with pytest.raises(CorrectnessAlarm, match="mask has shape"):
        aggregate(terms, valid.unsqueeze(-1), "token-mean", denominator)


def test_denominators_of_several_tensors_add_up() -> None:
    pieces = [(TERMS[:1], MASK[:1]), (TERMS[1:], MASK[1:])]
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        denominator = torch.stack([loss_denominator(mask, mode) for _, mask in pieces]).sum()
        shares = [aggregate(terms, mask, mode, denominator) for terms, mask in pieces]
        assert torch.stack(shares).sum().item() == pytest.approx(total(mode))


def test_unknown_mode_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean 'token-mean'\?"):
        loss_denominator(MASK, "token_mean")


def test_lengths_are_demanded_and_checked() -> None:
    with pytest.raises(ConfigurationError, match="needs `lengths`"):
        loss_denominator(MASK, "trajectory-length")
    with pytest.raises(CorrectnessAlarm, match="length 0"):
        loss_denominator(MASK, "trajectory-length", lengths=torch.zeros(3, 3, dtype=torch.int64))


def test_gradient_of_a_term_is_its_weight() -> None:
    terms = TERMS.clone().requires_grad_()
    aggregate(terms, MASK, "seq-mean-token-mean", loss_denominator(MASK, "seq-mean-token-mean")).backward()
    expected = torch.tensor([[1 / 6, 1 / 6, 1 / 6], [0, 1 / 2, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(terms.grad, expected)
