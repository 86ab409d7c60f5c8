"""Which consumer an item goes to when a stage has several workers: a pure function of ranks, keys and weights, unless
the edge asks for whoever is free.

M producers and N consumers are matched by balanced contiguous ranges: with M >= N a producer has one consumer, with
M < N it has a range of them to itself, so every size works and neighbours stay together.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Hashable


class Route(enum.Enum):
    """How an edge chooses among its consumers."""

    SPREAD = "spread"  # by the producer's rank; of several, a new key goes to the one with the least weight so far
    KEY = "key"  # by the key alone: items of one key meet at one consumer, whoever put them
    READY = "ready"  # to whoever is free; which one that is depends on time, so results must not depend on it
    OWNER = "owner"  # the key's first element is the consumer's rank: answers go back to whoever asked
    SPLIT = "split"  # every consumer gets its part of each item: `item.part(index, count)`


def balanced_range(index: int, parts: int, total: int) -> range:
    """The `index`-th of `parts` contiguous ranges of `total` things, whose sizes differ by at most one."""
    return range(index * total // parts, (index + 1) * total // parts)


def consumers_of(producer: int, producers: int, consumers: int) -> range:
    """The consumers that SPREAD sends a producer's items to; over all producers every consumer is covered."""
    if producers >= consumers:
        chosen = producer * consumers // producers
        return range(chosen, chosen + 1)
    return balanced_range(producer, producers, consumers)


class Router:
    """The choices of one producer on one edge in one round; a key keeps its consumer."""

    def __init__(self, route: Route, producer: int, producers: int, consumers: int) -> None:
        self._route = route
        self._consumers = consumers
        self._range = consumers_of(producer, producers, consumers)
        self._keys: dict[Hashable, int] = {}
        self._load = [0.0] * consumers

    def consumer(self, key: Hashable, weight: float | None = None) -> int:
        """The rank of the consumer of `key`; without weights every new key counts as one. Not for SPLIT, which has no
        single consumer, nor for READY among several."""
        if self._route is Route.OWNER:
            if not (isinstance(key, tuple) and key and key[0] in range(self._consumers)):
                raise ValueError(
                    f"an OWNER edge needs keys (consumer rank, ...), got {key!r} for {self._consumers} consumers"
                )
            return key[0]
        if self._route is Route.KEY:
            # the same in every process, which `hash` of text is not
            return key % self._consumers if type(key) is int else zlib.crc32(repr(key).encode()) % self._consumers
        if key not in self._keys:
            self._keys[key] = min(self._range, key=lambda consumer: self._load[consumer])
            weight = 1.0 if weight is None else weight
        self._load[self._keys[key]] += weight or 0.0
        return self._keys[key]
