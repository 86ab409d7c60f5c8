"""Statistics that can be merged: over micro-batches, over minibatches and over ranks, always of the valid entries.

A statistic is a short float64 vector of parts with a rule that combines many of them into one, so that an average is
never an average of averages. Moments are kept centred (Chan, Golub, LeVeque: "Updating formulae and a pairwise
algorithm for computing sample variances", 1979), because sums of squares lose the variance of large returns.
"""

from __future__ import annotations

import abc
import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from embodied.algorithms.masked import fill
from embodied.errors import CorrectnessAlarm


class Deviation(enum.StrEnum):
    """Which standard deviation: of a sample (n - 1), of the population (n), or none at all (do not divide)."""

    SAMPLE = "sample"
    POPULATION = "population"
    NONE = "none"


@dataclass(frozen=True)
class Statistic(abc.ABC):
    """Parts float64 [K] of one statistic; build with the subclass's `of`, read with `value`."""

    parts: torch.Tensor

    @staticmethod
    @abc.abstractmethod
    def combine(parts: torch.Tensor) -> torch.Tensor:
        """The parts [K] of the union of W disjoint sets of entries, from their parts [W, K]."""

    @abc.abstractmethod
    def value(self) -> torch.Tensor:
        """The number that is reported, float64, 0-dim."""

    def merge(self, *others: Statistic) -> Statistic:
        """The statistic of all entries of this one and the others."""
        return type(self)(self.combine(torch.stack([self.parts, *(o.parts for o in others)])))

    def all_reduce(self, ranks: dist.ProcessGroup | None = None) -> Statistic:
        """The statistic of all ranks' entries; see `all_reduce`."""
        return type(self)(self.combine(_gather_equal(self.parts, ranks)))


class Mean(Statistic):
    """Mean of entries; parts are total and count. 0 where there is no entry."""

    @classmethod
    @torch.no_grad()
    def of(cls, values: torch.Tensor, mask: torch.Tensor) -> Mean:
        """Of the entries of `values` where `mask` (broadcast to it); booleans give a fraction."""
        mask = mask.expand_as(values)
        return cls(torch.stack([fill(values.double(), mask).sum(), mask.sum().double()]))

    @staticmethod
    def combine(parts: torch.Tensor) -> torch.Tensor:
        return parts.sum(0)

    def value(self) -> torch.Tensor:
        return self.parts[0] / self.parts[1].clamp(min=1)


class Maximum(Statistic):
    """Largest entry. 0 where there is no entry."""

    @classmethod
    @torch.no_grad()
    def of(cls, values: torch.Tensor, mask: torch.Tensor) -> Maximum:
        """Of the entries of `values` where `mask` (broadcast to it)."""
        nothing = torch.full((1,), -torch.inf, dtype=torch.float64, device=values.device)
        entries = torch.where(mask.expand_as(values), values.double(), -torch.inf)
        return cls(torch.cat([nothing, entries.flatten()]).max().reshape(1))

    @staticmethod
    def combine(parts: torch.Tensor) -> torch.Tensor:
        return parts.max(0).values

    def value(self) -> torch.Tensor:
        return torch.where(self.parts[0] == -torch.inf, 0.0, self.parts[0])


class Moments(Statistic):
    """Count, mean and sum of squared deviations from the mean. `value` is the mean."""

    @classmethod
    @torch.no_grad()
    def of(cls, values: torch.Tensor, mask: torch.Tensor) -> Moments:
        """Of the entries of `values` where `mask` (broadcast to it)."""
        mask = mask.expand_as(values)
        values, count = fill(values.double(), mask), mask.sum().double()
        mean = values.sum() / count.clamp(min=1)
        return cls(torch.stack([count, mean, fill(values - mean, mask).square().sum()]))

    @staticmethod
    def combine(parts: torch.Tensor) -> torch.Tensor:
        return _combine_moments(parts)

    @property
    def count(self) -> torch.Tensor:
        return self.parts[0]

    @property
    def mean(self) -> torch.Tensor:
        return self.parts[1]

    def value(self) -> torch.Tensor:
        return self.mean

    def std(self, deviation: Deviation | str = Deviation.SAMPLE) -> torch.Tensor:
        """Standard deviation, 0 for fewer than two entries; 1 for Deviation.NONE."""
        kind = Deviation(deviation)
        if kind is Deviation.NONE:
            return torch.ones_like(self.count)
        degrees = self.count - 1 if kind is Deviation.SAMPLE else self.count
        return (self.parts[2] / degrees.clamp(min=1)).sqrt()


class ExplainedVariance(Statistic):
    """1 - Var(returns - values) / Var(returns): 1 perfect, 0 no better than a constant, below 0 worse than one.

    Parts are the moments of the returns and of the errors. 0 where the returns do not vary: nothing to explain.
    """

    @classmethod
    def of(cls, values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> ExplainedVariance:
        """Of predictions `values` against `returns` where `mask`; all of one shape."""
        errors = Moments.of(returns.detach() - values.detach(), mask)
        return cls(torch.cat([Moments.of(returns, mask).parts, errors.parts[1:]]))

    @staticmethod
    def combine(parts: torch.Tensor) -> torch.Tensor:
        returns = _combine_moments(parts[:, :3])
        errors = _combine_moments(torch.cat([parts[:, :1], parts[:, 3:]], dim=1))
        return torch.cat([returns, errors[1:]])

    def value(self) -> torch.Tensor:
        variance, unexplained = self.parts[2], self.parts[4]
        return torch.where(variance > 0, 1 - unexplained / torch.where(variance > 0, variance, 1.0), 0.0)


def _combine_moments(parts: torch.Tensor) -> torch.Tensor:
    """[W, 3] of (count, mean, squared deviations) -> [3]."""
    counts, means, squares = parts.unbind(1)
    count = counts.sum()
    mean = (counts * means).sum() / count.clamp(min=1)
    return torch.stack([count, mean, (squares + counts * (means - mean).square()).sum()])


def merge(*records: Mapping[str, Statistic]) -> dict[str, Statistic]:
    """One record of statistics from several, e.g. of micro-batches; a name that only some have is kept."""
    merged: dict[str, Statistic] = {}
    for record in records:
        for name, statistic in record.items():
            merged[name] = merged[name].merge(statistic) if name in merged else statistic
    return merged


def all_reduce(record: Mapping[str, Statistic], ranks: dist.ProcessGroup | None = None) -> dict[str, Statistic]:
    """The record over all ranks, in two small messages whatever its size; its parts are on the CPU then.

    Args:
        record: the same names on every rank. Some may have been computed on the CPU and others on an accelerator.
        ranks: the process group; None is the default group. Without an initialised torch.distributed nothing is sent.

    Raises:
        CorrectnessAlarm: the ranks hold different statistics; the numbers would be mixed up.
    """
    names = sorted(record)
    if not names:
        return {}
    packed = torch.cat(_on_host([record[name].parts for name in names]))
    described = ",".join(f"{name}:{type(record[name]).__name__}" for name in names)
    digest = int.from_bytes(hashlib.sha256(described.encode()).digest()[:6], "little")
    digests = _gather_equal(torch.tensor([digest], dtype=torch.int64), ranks)
    if not bool((digests == digest).all()):
        raise CorrectnessAlarm(
            f"Ranks hold different statistics; this one has: {described}. "
            "Compute the same metrics on every rank, of an empty mask where a rank has no data."
        )
    gathered, reduced, start = _gather_equal(packed, ranks), {}, 0
    for name in names:
        kind, size = type(record[name]), len(record[name].parts)
        reduced[name] = kind(kind.combine(gathered[:, start : start + size]))
        start += size
    return reduced


def report(record: Mapping[str, Statistic]) -> dict[str, float]:
    """Plain numbers, with one device synchronisation for all of them."""
    if not record:
        return {}
    values = _on_host([s.value().reshape(1) for s in record.values()])
    return dict(zip(record, torch.cat(values).tolist(), strict=True))


def _on_host(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The vectors [K_i], of one dtype, on the CPU, with one copy from each device that they are on."""
    found: dict[int, torch.Tensor] = {}
    for device in {vector.device for vector in vectors}:
        there = [index for index, vector in enumerate(vectors) if vector.device == device]
        copied = torch.cat([vectors[index] for index in there]).cpu()
        found |= dict(zip(there, copied.split([len(vectors[index]) for index in there]), strict=True))
    return [found[index] for index in range(len(vectors))]


@torch.no_grad()
def whiten(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    deviation: Deviation | str = Deviation.SAMPLE,
    ranks: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """(values - mean) / (std + epsilon) with mean and std over all valid entries of all ranks; 0 where not valid.

    Call it once, on everything a rank has of the iteration: whitening pieces would give each its own scale. Fewer than
    two valid entries, or entries that do not vary, give 0. Every rank must call it.
    """
    mask = mask.expand_as(values)
    moments = Moments.of(values, mask).all_reduce(ranks)
    scale = moments.std(deviation) + (0.0 if Deviation(deviation) is Deviation.NONE else epsilon)
    whitened = (values.double() - moments.mean) / torch.where(scale > 0, scale, 1.0)
    return fill(whitened, mask).to(values.dtype)


def gather_rows(rows: torch.Tensor, ranks: dist.ProcessGroup | None = None) -> tuple[torch.Tensor, slice]:
    """All ranks' rows [N_total, ...] in rank order, and the slice of them that are this rank's.

    For statistics that need whole groups when a group's members live on several ranks; ranks may hold different numbers
    of rows. Without an initialised torch.distributed: the rows themselves.
    """
    counts = _gather_equal(torch.tensor([len(rows)], dtype=torch.int64, device=rows.device), ranks).flatten().tolist()
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    pieces = _gather_equal(padded, ranks)
    rank = dist.get_rank(ranks) if dist.is_available() and dist.is_initialized() else 0
    start = sum(counts[:rank])
    return torch.cat([piece[:n] for piece, n in zip(pieces, counts, strict=True)]), slice(start, start + len(rows))


def sum_over_ranks(value: torch.Tensor, ranks: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Sum of one tensor over the ranks; the tensor itself without an initialised torch.distributed."""
    return _gather_equal(value, ranks).sum(0)


def _gather_equal(tensor: torch.Tensor, ranks: dist.ProcessGroup | None) -> torch.Tensor:
    """[W, ...]: the same-shaped tensor of each of W ranks, on this rank's device."""
    if not (dist.is_available() and dist.is_initialized()):
        return tensor.unsqueeze(0)
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(ranks))]
    dist.all_gather(pieces, tensor.contiguous(), group=ranks)
    return torch.stack(pieces)
