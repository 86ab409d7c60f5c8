"""Reasoning: language models that answer problems with checkable answers, trained with reinforcement learning.

`reasoning.train(recipe, problems, reward)`, `reasoning.resume(folder)`. Importing this package is cheap: nothing heavy
(torch, transformers, sympy) is loaded until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reasoning.api import Run, resume, train

__all__ = ["Run", "resume", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("reasoning.api"), name)
    raise AttributeError(f"module 'reasoning' has no attribute {name!r}")
