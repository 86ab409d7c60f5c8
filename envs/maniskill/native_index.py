"""Row numbers for CPU physics bodies, through the attribute names that GPU physics uses.

ManiSkill's structs ask a native body for `gpu_pose_index` or an articulation for `gpu_index`. On the CPU those
attributes only raise. They are extended once per process by a table of weak references; a body that is not in the
table keeps its stock behaviour, so stock environments in the same process are not affected.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import sapien.physx as physx

_rows: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def assign_row(body: Any, row: int) -> None:
    """Give a rigid body, articulation link or articulation its row in the batched buffers."""
    _extend_native_types()
    _rows[body] = row


@functools.cache
def _extend_native_types() -> None:
    for owner, name in (
        (physx.PhysxRigidDynamicComponent, "gpu_pose_index"),
        (physx.PhysxArticulationLinkComponent, "gpu_pose_index"),
        (physx.PhysxArticulation, "gpu_index"),
    ):
        setattr(owner, name, _with_table(getattr(owner, name)))


def _with_table(stock: property) -> property:
    def lookup(body: Any) -> int:
        row = _rows.get(body)
        return stock.fget(body) if row is None else row

    return property(lookup, doc=stock.__doc__)
