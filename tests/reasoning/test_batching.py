"""Balancing and packing reorder and restore; they change no value, no gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reasoning.batching import Counts, balance, pack, pack_sequences, restore
from reasoning.models.tiny import tiny_model, tiny_tokenizer

lengths_of = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(lengths_of, st.integers(1, 9), st.sampled_from(Counts))
def test_balance_places_every_index_once_and_restores(lengths, parts, counts):
    chosen = balance(lengths, parts, counts)
    assert len(chosen) == parts
    assert sorted(itertools.chain(*chosen)) == list(range(len(lengths)))
    assert restore(chosen, [[lengths[i] for i in part] for part in chosen]) == lengths
    if counts is Counts.EQUAL:
        sizes = [len(part) for part in chosen]
        assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(1, 20), min_size=2, max_size=8))
def test_balance_of_two_is_within_its_bound_of_the_best_split(lengths):
    total = sum(lengths)
    subsets = itertools.chain.from_iterable(itertools.combinations(lengths, n) for n in range(len(lengths) + 1))
    best = min(max(sum(s), total - sum(s)) for s in subsets)
    largest = max(sum(lengths[i] for i in part) for part in balance(lengths, 2))
    assert largest <= 4 / 3 * best


def test_balance_by_hand():
    sums = sorted(sum([9, 1, 8, 2, 7, 3][i] for i in part) for part in balance([9, 1, 8, 2, 7, 3], 2))
    assert sums == [15, 15]
    with pytest.raises(ValueError, match="0 parts"):
        balance([1], 0)


@given(lengths_of, st.integers(50, 120))
def test_packed_rows_hold_everything_once_within_capacity(lengths, capacity):
    rows = pack(lengths, capacity)
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= capacity for row in rows)
    # no two rows could have been one
    sums = sorted(sum(lengths[i] for i in row) for row in rows)
    assert len(sums) < 2 or sums[0] + sums[1] > capacity


def test_a_sequence_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="9 tokens"):
        pack([3, 9], 8)


def test_layout_by_hand():
    packed = pack_sequences([torch.tensor([5, 6]), torch.tensor([7, 8, 9]), torch.tensor([4])], 4, padding=0)
    assert packed.rows == [[1, 2], [0]]
    assert packed.tokens.tolist() == [[7, 8, 9, 4], [5, 6, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert packed.segments.tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    assert packed.mask()[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]


def test_packing_changes_no_logit_and_no_gradient():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, seed=0)
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(3, 200, (n,), generator=generator) for n in (5, 17, 30, 9, 22, 1)]
    alone = [model(input_ids=s[None]).logits[0] for s in sequences]
    torch.cat(alone).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    packed = pack_sequences(sequences, 40, padding=0)
    assert len(packed.rows) < len(sequences)
    logits = model(input_ids=packed.tokens, position_ids=packed.positions, attention_mask=packed.mask()).logits
    together = packed.gather(logits)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.cat(together).square().sum().backward()
    for name, parameter in model.named_parameters():
        scale = expected[name].abs().max()
        torch.testing.assert_close(parameter.grad / scale, expected[name] / scale, atol=1e-5, rtol=1e-4)


def test_spread_and_gather_are_inverse():
    sequences = [torch.arange(n) for n in (3, 7, 2)]
    packed = pack_sequences(sequences, 8, padding=0)
    values = [torch.rand(len(s)) for s in sequences]
    for a, b in zip(packed.gather(packed.spread(values)), values, strict=True):
        assert torch.equal(a, b)
