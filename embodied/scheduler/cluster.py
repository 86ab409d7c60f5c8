"""What a cluster has, and where exactly a plan's workers go: nodes, devices and cores; impossible plans are refused.

A plan names a worker's device `cpu`, `cpu:K` (the K-th share of a node's cores), or `cuda:K`, on the first node unless
a node is named before it: `node1/cuda:0`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from embodied.errors import ConfigurationError
from embodied.scheduler.flow import Flow
from embodied.scheduler.plan import Plan
from embodied.scheduler.routing import balanced_range


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    id: str
    address: str
    cores: int
    gpus: int


@dataclasses.dataclass(frozen=True)
class Placed:
    """A worker's place: its node, its torch device, and the share of the node's cores that it is pinned to, as (index,
    number of shares); None: not pinned."""

    node: Node
    device: str
    share: tuple[int, int] | None


_DEVICE = re.compile(r"(?:node(?P<node>\d+)/)?(?P<kind>cpu|cuda)(?::(?P<index>\d+))?")


def place(flow: Flow, plan: Plan, nodes: list[Node]) -> dict[str, list[Placed]]:
    """Every worker's place, by stage and rank. Raises ConfigurationError, saying what the cluster has."""
    shares = _core_shares(plan)
    return {name: [_place_one(name, text, nodes, shares) for text in plan.stages[name].devices] for name in flow.stages}


def describe(nodes: list[Node]) -> str:
    """What the cluster has, in words."""
    return "; ".join(f"node{i} ({n.address}): {n.cores} cores, {n.gpus} GPUs" for i, n in enumerate(nodes))


def _core_shares(plan: Plan) -> dict[int, int]:
    """Per node index, into how many shares its cores are cut: one more than the largest `cpu:K` in use."""
    shares: dict[int, int] = {}
    for stage in plan.stages.values():
        for text in stage.devices:
            match = _DEVICE.fullmatch(text)
            if match and match["kind"] == "cpu" and match["index"] is not None:
                node = int(match["node"] or 0)
                shares[node] = max(shares.get(node, 0), int(match["index"]) + 1)
    return shares


def _place_one(stage: str, text: str, nodes: list[Node], shares: dict[int, int]) -> Placed:
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"stage {stage}: {text!r} is no device; expected cpu, cpu:0, cuda:0 or node1/cuda:0")
    number, index = int(match["node"] or 0), int(match["index"] or 0)
    if number >= len(nodes):
        raise ConfigurationError(f"stage {stage} is placed on {text}, but the cluster has {describe(nodes)}")
    node = nodes[number]
    if match["kind"] == "cuda":
        if index >= node.gpus:
            raise ConfigurationError(f"stage {stage} is placed on {text}, but the cluster has {describe(nodes)}")
        return Placed(node, f"cuda:{index}", None)
    if match["index"] is None:
        return Placed(node, "cpu", None)
    if shares[number] > node.cores:
        raise ConfigurationError(
            f"the plan cuts node{number}'s cores into {shares[number]} shares, but the cluster has {describe(nodes)}"
        )
    return Placed(node, "cpu", (index, shares[number]))


def share_of_cores(allowed: Iterable[int], index: int, shares: int) -> tuple[int, ...]:
    """The `index`-th of so many equal shares of the cores that a process may use; where these are fewer than the
    shares, several shares have the same core."""
    cores = sorted(allowed)
    if len(cores) < shares:
        return (cores[index % len(cores)],)
    return tuple(cores[i] for i in balanced_range(index, shares, len(cores)))
