"""Environments: one contract (`envs.api`) over ManiSkill, LIBERO and gymnasium.

`envs.make(id, num_envs, slots, **options)` starts environments; `envs.check(env)` runs the conformance suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.conformance import check
    from envs.registry import make_by_id as make

__all__ = ["check", "make"]


def __getattr__(name: str) -> Any:
    # simulators and torch are loaded when used, not by `import envs`
    if name == "make":
        from envs.registry import make_by_id

        return make_by_id
    if name == "check":
        from envs.conformance import check

        return check
    raise AttributeError(f"module 'envs' has no attribute {name!r}")
