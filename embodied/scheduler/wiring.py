"""Which links a placed flow needs when every worker is a process: for its edges, for the receipts of those that hand
items to whoever is free, and for weights; and what carries each of them.
"""

from __future__ import annotations

import dataclasses
import enum

from embodied.scheduler.cluster import Placed
from embodied.scheduler.flow import Flow
from embodied.scheduler.routing import Route
from embodied.scheduler.transport import Location, Transport, choose, record
from embodied.scheduler.weights import Bucket

_WEIGHT_BUCKETS = 4  # under way at once


class Role(enum.Enum):
    """What links carry."""

    ITEMS = "items"
    RECEIPTS = "receipts"  # from the consumers of a READY edge back to its producers
    WEIGHTS = "weights"


@record
@dataclasses.dataclass(frozen=True)
class Done:
    """A consumer's receipt: so many units, of so much weight, are done with."""

    units: int
    weight: float


@dataclasses.dataclass(frozen=True)
class HostedEdge:
    """Links from every worker of a stage (of weights: from the first) to every worker of another.

    number: its index among all. stages: source and target. ports: theirs; empty texts where there are none.
    producers, consumers: names by rank. places, devices: of every producer and every consumer: among all hosts, and
    torch devices. transports: of each (producer, consumer). ahead: as in flow.Edge. of: the number of the edge whose
    receipts these are.
    """

    number: int
    name: str
    role: Role
    stages: tuple[str, str]
    ports: tuple[str, str]
    kind: type
    capacity: int
    route: Route
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    places: tuple[tuple[int, ...], tuple[int, ...]]
    devices: tuple[tuple[str, ...], tuple[str, ...]]
    transports: dict[tuple[int, int], Transport]
    ahead: int | None = None
    of: int | None = None


def worker_name(stage: str, rank: int) -> str:
    """`stage[rank]`."""
    return f"{stage}[{rank}]"


def needs_group(flow: Flow, placed: dict[str, list[Placed]]) -> bool:
    """Whether hosts have to meet: collectives of a stage, and links between nodes, go through torch.distributed."""
    collective = any(s.worker.collective and len(placed[n]) > 1 for n, s in flow.stages.items())
    return collective or len({spot.node.id for spots in placed.values() for spot in spots}) > 1


def places_of(placed: dict[str, list[Placed]]) -> dict[str, tuple[int, ...]]:
    """Every stage's places among all hosts, in the order of the stages."""
    places: dict[str, tuple[int, ...]] = {}
    count = 0
    for name, spots in placed.items():
        places[name] = tuple(range(count, count + len(spots)))
        count += len(spots)
    return places


def hosted_edges(flow: Flow, placed: dict[str, list[Placed]]) -> list[HostedEdge]:
    """The links of every edge, of its receipts where it needs them, and of every weight edge."""
    wiring = _Wiring(placed, needs_group(flow, placed))
    for edge in flow.edges:
        stages = (edge.source.stage, edge.target.stage)
        ports = (edge.source.port.name, edge.target.port.name)
        kind = edge.target.port.kind
        items = wiring.add(
            str(edge), Role.ITEMS, stages, kind, edge.route, ports=ports, capacity=edge.room, ahead=edge.ahead
        )
        if edge.ahead is not None and len(placed[stages[1]]) > 1:
            back = (stages[1], stages[0])
            wiring.add(f"receipts of {edge}", Role.RECEIPTS, back, Done, Route.OWNER, of=items.number)
    for edge in flow.weight_edges:
        stages = (edge.source, edge.target)
        name = f"weights of {edge.source} -> {edge.target}"
        wiring.add(name, Role.WEIGHTS, stages, Bucket, Route.OWNER, capacity=_WEIGHT_BUCKETS)
    return wiring.edges


class _Wiring:
    """Edges so far."""

    def __init__(self, placed: dict[str, list[Placed]], grouped: bool) -> None:
        self._placed = placed
        self._grouped = grouped
        self._places = places_of(placed)
        self.edges: list[HostedEdge] = []

    def add(
        self,
        name: str,
        role: Role,
        stages: tuple[str, str],
        kind: type,
        route: Route,
        *,
        ports: tuple[str, str] = ("", ""),
        capacity: int = 0,
        ahead: int | None = None,
        of: int | None = None,
    ) -> HostedEdge:
        sources, targets = (self._placed[stage] for stage in stages)
        if role is Role.WEIGHTS:
            sources = sources[:1]  # the first rank of a sharded source sends for all
        producers = tuple(worker_name(stages[0], rank) for rank in range(len(sources)))
        consumers = tuple(worker_name(stages[1], rank) for rank in range(len(targets)))
        transports = {
            (p, c): choose(self._location(source, producers[p]), self._location(target, consumers[c]))
            for p, source in enumerate(sources)
            for c, target in enumerate(targets)
        }
        edge = HostedEdge(
            number=len(self.edges),
            name=name,
            role=role,
            stages=stages,
            ports=ports,
            kind=kind,
            capacity=capacity,
            route=route,
            producers=producers,
            consumers=consumers,
            places=(self._places[stages[0]], self._places[stages[1]]),
            devices=(tuple(spot.device for spot in sources), tuple(spot.device for spot in targets)),
            transports=transports,
            ahead=ahead,
            of=of,
        )
        self.edges.append(edge)
        return edge

    def _location(self, spot: Placed, name: str) -> Location:
        return Location(spot.node.id, name, spot.device, self._grouped)
