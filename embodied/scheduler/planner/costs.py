"""Seconds and memory of a stage on a number of devices: the one place where a profile's coefficients are evaluated.

All functions take arrays of device counts. Memory is in fractions of a device, rounded up to 1/64: a margin for
fragmentation, and fewer different values for the search to keep apart.
"""

from __future__ import annotations

import math

import numpy as np

from embodied.scheduler.planner.profile import Kind, NodeGroup, StageCost

MEMORY_STEPS = 64


def piece_items(items: int, pieces: int) -> int:
    """Items of the largest of `pieces` equal parts."""
    return -(-items // pieces)


def device_counts(cost: StageCost, group: NodeGroup, kind: Kind, items: int) -> np.ndarray:
    """Every number of devices that `items` can keep busy: multiples of a replica's, at most one replica an item."""
    most = min(group.units(kind) // cost.devices_per_replica, items, cost.max_replicas or items)
    return np.arange(1, most + 1) * cost.devices_per_replica


def useful(cost: StageCost, items: int, loaded: int, devices: np.ndarray) -> np.ndarray:
    """Mask of the counts (consecutive multiples) that a smaller one does not equal or beat: with the same share of the
    busiest replica, of a call's `items` and of the `loaded` ones, and the same shards, more devices neither save time
    nor memory."""
    replicas = devices // cost.devices_per_replica
    keep = np.ones(len(devices), bool)
    alike = [-(-items // replicas), -(-loaded // replicas), _shards(devices)]
    keep[1:] = np.any([numbers[1:] != numbers[:-1] for numbers in alike], axis=0)
    return keep


def seconds(cost: StageCost, group: NodeGroup, items: int, devices: np.ndarray) -> np.ndarray:
    """Time of one call for `items` on each number of devices."""
    replicas = devices // cost.devices_per_replica
    share = -(-items // replicas)
    model = cost.time
    value = model.fixed + model.per_item * share + model.per_item_squared * share**2
    return (value + model.per_doubling * np.log2(replicas)) / group.speed


def _shards(devices: np.ndarray) -> np.ndarray:
    """Device counts with all but their three leading bits cleared: shards are at most a quarter smaller in truth."""
    bits = np.floor(np.log2(devices)).astype(int)
    step = 2 ** np.maximum(bits - 2, 0)
    return devices // step * step


def state_bytes(cost: StageCost, devices: np.ndarray, loaded: int) -> np.ndarray:
    """Bytes that stay on each device while the stage is idle and loaded with the state of `loaded` items."""
    memory = cost.memory
    parts = _shards(devices) if memory.state == "sharded" else np.full_like(devices, cost.devices_per_replica)
    share = -(-loaded // (devices // cost.devices_per_replica))
    return memory.state_bytes / parts + memory.item_state_bytes * share / cost.devices_per_replica


def memory_fractions(
    cost: StageCost, group: NodeGroup, kind: Kind, items: int, loaded: int, devices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(idle but loaded, running), in fractions of a device, rounded up, for calls of `items` out of `loaded`.

    A core has no memory of its own: zero; the
    host's memory is checked for all stages together."""
    if kind == "cpu":
        return np.zeros(len(devices)), np.zeros(len(devices))
    idle = state_bytes(cost, devices, loaded)
    alive = -(-items // (devices // cost.devices_per_replica))
    if cost.memory.live_items is not None:
        alive = np.minimum(alive, cost.memory.live_items)
    running = idle + cost.memory.working_bytes + cost.memory.item_bytes * alive / cost.devices_per_replica
    return _rounded_up(idle, group), _rounded_up(running, group)


def _rounded_up(number: np.ndarray, group: NodeGroup) -> np.ndarray:
    return np.ceil(number / group.accelerator_memory_bytes * MEMORY_STEPS - 1e-9) / MEMORY_STEPS


def switch_seconds(cost: StageCost, devices: np.ndarray, loaded: int) -> np.ndarray | None:
    """Time to unload the state and load it again; None when it cannot be unloaded or there is none."""
    if cost.switch is None or cost.memory.state_bytes + cost.memory.item_state_bytes == 0:
        return None
    return cost.switch.fixed_seconds + 2 * state_bytes(cost, devices, loaded) / cost.switch.bytes_per_second


def arrival_lag(arrivals: tuple[float, ...], pieces: int) -> float:
    """How far finished pieces trail an even stream, at most, as a fraction of the whole time."""
    return max(0.0, max(arrival(arrivals, j / pieces) - j / pieces for j in range(1, pieces + 1)))


def arrival(arrivals: tuple[float, ...], share: float) -> float:
    """When `share` of the items has finished, as a fraction of the whole time."""
    position = share * len(arrivals) - 1.0
    if position <= 0:
        return arrivals[0]
    low = min(math.floor(position + 1e-9), len(arrivals) - 1)
    high = min(low + 1, len(arrivals) - 1)
    return arrivals[low] + (position - low) * (arrivals[high] - arrivals[low]) if high > low else arrivals[low]
