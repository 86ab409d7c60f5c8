"""Embodied: reinforcement learning for robot policies, planned and executed by one scheduler.

`embodied.train(recipe, overrides)`, `embodied.evaluate(policy, env)`, `embodied.load_policy(path)`. Importing this
package is cheap: nothing heavy (torch, simulators, Ray) is loaded until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embodied.api import Run, evaluate, load_policy, train

__version__ = "0.1.0"
__all__ = ["Run", "evaluate", "load_policy", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("embodied.api"), name)
    raise AttributeError(f"module 'embodied' has no attribute {name!r}")
