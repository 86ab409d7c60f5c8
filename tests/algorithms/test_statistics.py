"""Statistics over valid entries, micro-batches and ranks; ranks are two real processes over gloo."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import groups, losses, statistics
from embodied.algorithms.aggregation import Aggregation, aggregate, loss_denominator, trajectory_lengths
from embodied.algorithms.alarms import require_change
from embodied.algorithms.losses import Clip
from embodied.algorithms.statistics import ExplainedVariance, Maximum, Mean, Moments, merge, report, whiten
from embodied.errors import CorrectnessAlarm

NAN = float("nan")


def everything(values: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> dict[str, statistics.Statistic]:
    return {
        "mean": Mean.of(values, mask),
        "max": Maximum.of(values, mask),
        "moments": Moments.of(values, mask),
        "explained": ExplainedVariance.of(values, targets, mask),
    }


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(11, 5, generator=source, dtype=torch.float64)
    targets = values + 0.5 * torch.randn(11, 5, generator=source, dtype=torch.float64)
    return values, targets, torch.rand(11, 5, generator=source) < 0.6


def test_against_plain_formulas() -> None:
    values, targets, mask = data()
    chosen, wanted = values[mask], targets[mask]
    numbers = report(everything(values, targets, mask))
    assert numbers["mean"] == pytest.approx(chosen.mean().item())
    assert numbers["max"] == chosen.max().item()
    assert numbers["explained"] == pytest.approx((1 - (wanted - chosen).var() / wanted.var()).item())
    moments = Moments.of(values, mask)
    assert moments.std("sample").item() == pytest.approx(chosen.std().item())
    assert moments.std("population").item() == pytest.approx(chosen.std(correction=0).item())


def test_mask_is_broadcast_before_it_is_counted() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert Mean.of(values, torch.tensor([[True], [False]])).value().item() == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 10), max_size=3), st.sampled_from([0.0, 1e6]))
def test_pieces_merge_to_the_whole(seed: int, cuts: list[int], offset: float) -> None:
    values, targets, mask = data(seed)
    values, targets = values + offset, targets + offset
    edges = sorted({0, *cuts, 11})
    pieces = [everything(values[a:b], targets[a:b], mask[a:b]) for a, b in itertools.pairwise(edges)]
    whole = everything(values, targets, mask)
    assert report(merge(*pieces)) == pytest.approx(report(whole), rel=1e-9)
    merged = merge(*pieces)["moments"]
    assert merged.std().item() == pytest.approx(whole["moments"].std().item(), rel=1e-6)


def test_large_common_offset_does_not_cost_the_variance() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64) + 1e9
    merged = merge(*({"x": Moments.of(v, torch.ones(1).bool())} for v in values.split(1)))["x"]
    assert merged.std().item() == pytest.approx(1.2909944487358056, rel=1e-6)


@pytest.mark.parametrize("garbage", [NAN, float("inf"), 1e300])
def test_what_the_mask_hides_is_never_read(garbage: float) -> None:
    values, targets, mask = data()
    dirty = torch.where(mask, values, torch.full_like(values, garbage))
    hidden = torch.where(mask, targets, torch.full_like(values, garbage))
    assert report(everything(dirty, hidden, mask)) == report(everything(values, targets, mask))
    assert torch.equal(whiten(dirty, mask), whiten(values, mask))


def test_nothing_valid_gives_zero() -> None:
    values, targets, mask = data()
    assert set(report(everything(values, targets, torch.zeros_like(mask))).values()) == {0.0}
    empty = torch.zeros(0, 3)
    assert set(report(everything(empty, empty, empty.bool())).values()) == {0.0}


def test_a_name_that_only_some_micro_batches_have_is_kept() -> None:
    one = torch.ones(1)
    merged = merge(
        {"a": Mean.of(one, one.bool())}, {"b": Mean.of(3 * one, one.bool())}, {"a": Mean.of(5 * one, one.bool())}
    )
    assert report(merged) == {"a": 3.0, "b": 3.0}


def test_explained_variance_extremes() -> None:
    returns, mask = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3).bool()
    assert ExplainedVariance.of(returns + 7, returns, mask).value() == 1.0  # an offset is not variance
    assert ExplainedVariance.of(torch.zeros(3), returns, mask).value() == 0.0
    assert ExplainedVariance.of(-returns, returns, mask).value() == -3.0
    assert ExplainedVariance.of(returns, torch.ones(3), mask).value() == 0.0  # constant returns


def test_whitening_by_hand() -> None:
    values, mask = torch.tensor([1.0, 3.0, 100.0], dtype=torch.float64), torch.tensor([1, 1, 0]).bool()
    # mean 2, sample deviation sqrt(2), population deviation 1
    root = 2**0.5
    torch.testing.assert_close(
        whiten(values, mask, epsilon=0.5), torch.tensor([-1 / (root + 0.5), 1 / (root + 0.5), 0.0], dtype=torch.float64)
    )
    assert whiten(values, mask, epsilon=0.0, deviation="population").tolist() == [-1.0, 1.0, 0.0]
    assert whiten(values, mask, deviation="none").tolist() == [-1.0, 1.0, 0.0]


def test_whitening_nothing_one_entry_or_equal_entries_gives_zero() -> None:
    values = torch.tensor([0.1, 0.1, 0.1])
    for valid in ([0, 0, 0], [0, 1, 0], [1, 1, 1]):
        whitened = whiten(values, torch.tensor(valid).bool(), epsilon=1e-5)
        assert whitened.abs().max() < 1e-6
        assert whitened.dtype == torch.float32


def test_without_processes_nothing_is_communicated() -> None:
    values, targets, mask = data()
    record = everything(values, targets, mask)
    assert report(statistics.all_reduce(record)) == pytest.approx({k: report(record)[k] for k in record}, rel=0)
    rows, mine = statistics.gather_rows(values)
    assert torch.equal(rows[mine], values)
    assert statistics.all_reduce({}) == {}


def _ranks(rank: int, port: int, folder: str) -> None:
    """What each of two processes does; results go to files that the test compares with a single process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    values, targets, mask = data()
    mine = slice(0, 4) if rank == 0 else slice(4, 11)  # ranks hold different amounts
    result: dict[str, object] = {}
    record = everything(values[mine], targets[mine], mask[mine])
    result["report"] = report(statistics.all_reduce(record))
    result["whitened"] = whiten(values[mine], mask[mine])
    result["whitened_alone"] = whiten(values[mine], mask[mine] & (rank == 0))

    scores, ids = values[:, 0].contiguous(), torch.arange(11) % 3  # every group has members on both ranks
    all_scores, own = statistics.gather_rows(scores[mine])
    all_ids, _ = statistics.gather_rows(ids[mine])
    result["grpo"] = groups.grpo(all_scores, all_ids)[own]
    result["reinforce_pp"] = groups.reinforce_pp(scores[mine], mask[mine].T)

    for mode in Aggregation:
        lengths = trajectory_lengths(mask, torch.arange(11) // 2)
        extra = {"lengths": lengths[mine]} if mode is Aggregation.TRAJECTORY_LENGTH else {}
        logprobs = values[mine].clone().requires_grad_()
        loss = losses.ppo(logprobs, values[mine] - 0.1, targets[mine], mask[mine], clip=Clip())
        denominator = loss_denominator(mask[mine], mode, **extra)
        total = aggregate(loss.policy.terms, mask[mine], mode, denominator, **extra)
        total.backward()
        result[f"loss {mode}"] = statistics.sum_over_ranks(total.detach())
        result[f"gradient {mode}"] = logprobs.grad

    # one rank's change is enough
    require_change({"w": (1, 1.0)}, {"w": (1 + rank, 1.0)})
    try:
        require_change({"w": (1, 1.0)}, {"w": (1, 1.0)})
    except CorrectnessAlarm as alarm:
        result["no change"] = str(alarm)
    try:
        statistics.all_reduce({"a" if rank else "b": record["mean"]})
    except CorrectnessAlarm as alarm:
        result["different"] = str(alarm)
    torch.save(result, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_ranks, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_statistics_are_those_of_all_ranks_on_every_rank(ranks: list[dict]) -> None:
    expected = report(everything(*data()))
    for result in ranks:
        assert result["report"] == pytest.approx(expected, rel=1e-12)


def test_whitening_spans_ranks(ranks: list[dict]) -> None:
    values, _, mask = data()
    whole = torch.cat([r["whitened"] for r in ranks])
    torch.testing.assert_close(whole, whiten(values, mask), rtol=0, atol=1e-12)
    # a rank without a valid entry takes part and gets zeros
    assert not ranks[1]["whitened_alone"].any()
    torch.testing.assert_close(ranks[0]["whitened_alone"], whiten(values[:4], mask[:4]), rtol=0, atol=1e-12)


def test_groups_split_over_ranks_keep_their_statistics(ranks: list[dict]) -> None:
    values, _, mask = data()
    expected = groups.grpo(values[:, 0], torch.arange(11) % 3)
    torch.testing.assert_close(torch.cat([r["grpo"] for r in ranks]), expected, rtol=0, atol=1e-12)
    expected = groups.reinforce_pp(values[:, 0], mask.T)
    torch.testing.assert_close(torch.cat([r["reinforce_pp"] for r in ranks], dim=1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", list(Aggregation))
def test_loss_and_gradient_do_not_depend_on_how_rows_are_split_over_ranks(ranks: list[dict], mode: str) -> None:
    values, targets, mask = data()
    lengths = trajectory_lengths(mask, torch.arange(11) // 2)
    extra = {"lengths": lengths} if mode == "trajectory-length" else {}
    logprobs = values.clone().requires_grad_()
    loss = losses.ppo(logprobs, values - 0.1, targets, mask, clip=Clip())
    total = aggregate(loss.policy.terms, mask, mode, loss_denominator(mask, mode, **extra), **extra)
    total.backward()
    for result in ranks:
        torch.testing.assert_close(result[f"loss {mode}"], total.detach(), rtol=1e-6, atol=1e-12)
    gradient = torch.cat([r[f"gradient {mode}"] for r in ranks])
    torch.testing.assert_close(gradient, logprobs.grad, rtol=1e-6, atol=1e-12)


def test_ranks_that_hold_different_statistics_are_told_so(ranks: list[dict]) -> None:
    assert "b:Mean" in ranks[0]["different"]
    assert "a:Mean" in ranks[1]["different"]


def test_no_change_is_judged_over_all_ranks(ranks: list[dict]) -> None:
    assert all("none of 1 trainable parameters changed" in r["no change"] for r in ranks)
