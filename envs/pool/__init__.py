"""The pool: simulators in worker processes that write into memory shared with this one.

`vector` is the VectorEnv, `host` its processes, `process` the handle of one of them, `worker` what runs in it, `pace`
how long chunks take, `losses` when to stop playing an assignment again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.pool.vector import PoolVectorEnv

__all__ = ["PoolVectorEnv"]


def __getattr__(name: str) -> Any:
    # a starting worker imports `envs.pool.worker` before anything heavy, to be able to report on the rest
    if name == "PoolVectorEnv":
        from envs.pool.vector import PoolVectorEnv

        return PoolVectorEnv
    raise AttributeError(f"module 'envs.pool' has no attribute {name!r}")
