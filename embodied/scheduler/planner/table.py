"""Tables of partial schedules, and the removal of those that another one beats in everything.

A row is one way to run a set of units: what it occupies, how long it takes, what memory it keeps. `unbeaten` is the
search's main pruning: everything a larger schedule is made of (sums, maxima, comparisons with limits) never falls
when a column of a part rises, so a row that is nowhere lower than another can be replaced by it in any schedule.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from embodied.scheduler.planner.costs import MEMORY_STEPS


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of partial schedules.

    resources: [rows, columns]. latency, period: [rows], seconds of one piece. idle, running: [rows, groups].
    missing: [rows, 2], 1 where the row has nothing in turn, nothing apart (compared only when both are asked for).
    origin: [rows, 3]: how a row was made, and the rows of its two parts.
    """

    resources: np.ndarray
    latency: np.ndarray
    period: np.ndarray
    idle: np.ndarray
    running: np.ndarray
    missing: np.ndarray
    origin: np.ndarray

    def __len__(self) -> int:
        return len(self.latency)

    def take(self, rows: np.ndarray) -> Table:
        """The rows of this index."""
        return Table(
            self.resources[rows],
            self.latency[rows],
            self.period[rows],
            self.idle[rows],
            self.running[rows],
            self.missing[rows],
            self.origin[rows],
        )

    def where(self, mask: np.ndarray) -> Table:
        """The rows of this mask."""
        rows = np.flatnonzero(mask)
        return self if len(rows) == len(mask) else self.take(rows)


def stack(tables: list[Table]) -> Table:
    """Rows of several tables."""
    if len(tables) == 1:
        return tables[0]
    return Table(*(np.concatenate([getattr(t, name) for t in tables]) for name in _FIELDS))


def whole(columns: np.ndarray, steps: int = MEMORY_STEPS) -> list[np.ndarray]:
    """Columns whose values are multiples of 1 / steps as whole numbers. Memory is compared up to twice a device: a
    limit above that (infinite: nothing else needs any) is never reached."""
    return [*np.rint(np.minimum(columns, 2.0 if steps > 1 else np.inf) * steps).astype(np.int64).T]


_FIELDS = tuple(field.name for field in dataclasses.fields(Table))
FEW, MANY = 64, 512


def unbeaten(times: list[np.ndarray], steps: list[np.ndarray]) -> np.ndarray:
    """Indices of rows that no other row is at most as high as in every column; one of equal rows stays.

    times: one or two columns of many different values. steps: columns of whole numbers (devices, steps of memory)."""
    if len(times[0]) <= FEW:
        return _few(np.stack([*times, *steps]))
    if len(times[0]) > MANY:
        # among rows of equal steps only the times decide: a sort instead of a comparison with every other row
        few = _within_groups(times, steps)
        return few[_unbeaten([*times, *steps], few)]
    return _unbeaten([*times, *steps], np.arange(len(times[0])))


def _few(columns: np.ndarray) -> np.ndarray:
    """Every row with every other one. columns: [columns, rows]."""
    beats = (columns[:, :, None] <= columns[:, None, :]).all(axis=0)
    # of rows that beat each other, which are equal, the first stays
    return np.flatnonzero(~(beats & ~(beats.T & np.tri(len(beats), dtype=bool))).any(axis=0))


def _within_groups(times: list[np.ndarray], steps: list[np.ndarray]) -> np.ndarray:
    group = np.zeros(len(times[0]), np.int64)
    span = 1
    for column in steps:
        low = column.min()
        width = int(column.max() - low) + 1
        if span * width > 2**62:
            group = np.unique(group, return_inverse=True)[1]  # small again: no overflow
            span = len(group)
        group = group * width + (column - low)
        span *= width
    order = np.lexsort((*times[::-1], group))
    group, last = group[order], times[-1][order]
    new = np.ones(len(order), bool)
    new[1:] = group[1:] != group[:-1]
    if len(times) == 1:
        return order[new]
    # the lowest of the last column so far in each group: numbers keep groups apart in one running minimum
    rank = np.empty(len(last), np.int64)
    rank[np.argsort(last, kind="stable")] = np.arange(len(last))
    rank -= np.cumsum(new) * (len(last) + 1)
    lowest = np.minimum.accumulate(rank)
    keep = new.copy()
    keep[1:] |= rank[1:] < lowest[:-1]
    return order[keep]


def _unbeaten(columns: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    columns = [column[rows] for column in columns]
    columns = [c for c in columns if len(c) and c.min() != c.max()]
    if not columns:
        return np.array([0])
    if len(columns) == 1:
        return np.array([int(np.argmin(columns[0]))])
    if len(columns) == 2:
        return _staircase(*columns)
    if len(columns) == 3:
        return _three(*columns)
    return _general(columns)


def _staircase(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    order = np.lexsort((b, a))
    sorted_b = b[order]
    lowest = np.minimum.accumulate(sorted_b)
    keep = np.ones(len(order), bool)
    keep[1:] = sorted_b[1:] < lowest[:-1]
    return order[keep]


BUCKETS = 24


def _three(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """First against coarse buckets of c, which removes most rows cheaply; then exactly."""
    if len(a) > 4 * BUCKETS:
        order = np.lexsort((b, a))
        a, b, c = a[order], b[order], c[order]
        alive = np.ones(len(a), bool)
        edges = np.quantile(c, np.linspace(0, 1, BUCKETS + 1)[1:-1])
        bucket = np.searchsorted(edges, c)
        lowest = np.full(len(a), np.inf)
        for index in range(BUCKETS):
            mine = bucket == index
            # rows of lower buckets that come before in (a, b) are at most as high in a and in c: their lowest b decides
            alive &= ~(mine & (lowest <= b))
            masked = np.where(mine & alive, b, np.inf)
            np.minimum.accumulate(masked, out=masked)
            np.minimum(lowest, masked, out=lowest)
        index = np.flatnonzero(alive)
        return order[index[_general([a[index], b[index], c[index]])]]
    return _general([a, b, c])


BLOCK = 256


def _general(columns: list[np.ndarray]) -> np.ndarray:
    """Rows by rising sum of their scaled columns, so that only an earlier one can beat a later one and the first ones
    beat most of the others; compared block by block with those that remain."""
    # small integers compare several times faster, and ranks in place of values compare alike
    numbers = [
        column - column.min()
        if column.dtype.kind == "i" and int(column.max() - column.min()) < 2**15
        else np.unique(column, return_inverse=True)[1]
        for column in columns
    ]
    matrix = np.stack(numbers, axis=1).astype(np.int16 if len(columns[0]) < 2**15 else np.int32)
    score = (matrix / np.maximum(matrix.max(axis=0), 1)).sum(axis=1)
    order = np.argsort(score, kind="stable")
    matrix = matrix[order]
    first = matrix[: min(BLOCK // 4, len(matrix) // 8)]
    if len(first):
        alive = ~_any_beats(list(first.T.copy()), matrix.T).any(axis=0)
        alive[: len(first)] = True
        order, matrix = order[alive], matrix[alive]
    kept: list[np.ndarray] = []
    front = list(np.empty((len(columns), 0), matrix.dtype))
    for start in range(0, len(matrix), BLOCK):
        index = np.arange(start, min(start + BLOCK, len(matrix)))
        index = index[~_any_beats(front, matrix[index].T).any(axis=0)]
        block = matrix[index].T
        earlier = _any_beats(list(block), block) & (np.arange(len(index))[:, None] < np.arange(len(index))[None, :])
        index = index[~earlier.any(axis=0)]
        front = [np.concatenate([f, column]) for f, column in zip(front, matrix[index].T, strict=True)]
        kept.append(index)
    return order[np.concatenate(kept)]


def _any_beats(front: list[np.ndarray], block: np.ndarray) -> np.ndarray:
    """[front, block]: whether a row of the front is at most as high as a row of the block in every column."""
    block = np.ascontiguousarray(block)
    beats = front[0][:, None] <= block[0][None, :]
    for mine, theirs in zip(front[1:], block[1:], strict=True):
        beats &= mine[:, None] <= theirs[None, :]
    return beats
