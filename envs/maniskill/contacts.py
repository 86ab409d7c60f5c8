"""Contact impulses between bodies of many CPU scenes, answered like GPU physics' contact queries.

Only contacts that some query asks about are summed, once per physics step; sign convention as in ManiSkill: the
impulse acts on the first body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sapien.physx as physx
import torch


class PairImpulseQuery:
    """Impulses between the two bodies of each pair; `cuda_impulses` holds float32 [pairs, 3] after a query."""

    cuda_impulses: Any

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.pairs = list(pairs)


class BodyImpulseQuery:
    """Net contact impulse on each body; `cuda_impulses` holds float32 [bodies, 3] after a query."""

    cuda_impulses: Any

    def __init__(self, bodies: Sequence[Any]) -> None:
        self.bodies = list(bodies)


class ContactReader:
    """Reads contacts of `systems` lazily, and remembers them until `forget`; the list may change in between."""

    def __init__(self, systems: list[physx.PhysxCpuSystem]) -> None:
        self._systems = systems
        self._wanted: set[Any] = set()
        self._impulses: dict[tuple[Any, Any], np.ndarray] | None = None
        self._by_body: dict[Any, np.ndarray] = {}

    def forget(self) -> None:
        """A scene has moved on or was replaced."""
        self._impulses = None

    def pair_query(self, pairs: Sequence[tuple[Any, Any]]) -> PairImpulseQuery:
        self._want([first for first, _ in pairs])
        return PairImpulseQuery(pairs)

    def body_query(self, bodies: Sequence[Any]) -> BodyImpulseQuery:
        self._want(bodies)
        return BodyImpulseQuery(bodies)

    def _want(self, bodies: Sequence[Any]) -> None:
        self._wanted.update(bodies)
        self._impulses = None

    def _read(self) -> dict[tuple[Any, Any], np.ndarray]:
        if self._impulses is not None:
            return self._impulses
        pairs: dict[tuple[Any, Any], np.ndarray] = {}
        net: dict[Any, np.ndarray] = {}
        for system in self._systems:
            for contact in system.get_contacts():
                first, second = contact.bodies
                if first not in self._wanted and second not in self._wanted:
                    continue
                impulse = np.zeros(3)
                for point in contact.points:
                    impulse += point.impulse
                pairs[first, second] = pairs.get((first, second), 0.0) + impulse
                net[first] = net.get(first, 0.0) + impulse
                net[second] = net.get(second, 0.0) - impulse
        self._impulses, self._by_body = pairs, net
        return pairs

    def pair_impulses(self, query: PairImpulseQuery) -> torch.Tensor:
        """float32 [pairs, 3]: impulse of the last physics step on the first body of each pair, in newton seconds."""
        impulses = self._read()
        out = np.zeros((len(query.pairs), 3), dtype=np.float32)
        for row, (first, second) in enumerate(query.pairs):
            forward, backward = impulses.get((first, second)), impulses.get((second, first))
            if forward is not None:
                out[row] += forward
            if backward is not None:
                out[row] -= backward
        return torch.from_numpy(out)

    def body_impulses(self, query: BodyImpulseQuery) -> torch.Tensor:
        """float32 [bodies, 3]: net impulse of the last physics step on each body, in newton seconds."""
        self._read()
        zero = np.zeros(3)
        out = np.array([self._by_body.get(body, zero) for body in query.bodies], dtype=np.float32)
        return torch.from_numpy(out.reshape(-1, 3))
