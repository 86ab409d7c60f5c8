"""What a learner answers when it has learnt from an iteration."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Update:
    """What one iteration of learning did: its metrics, warnings, and the version of the new weights."""

    metrics: dict[str, float]
    warnings: tuple[str, ...]
    version: int
