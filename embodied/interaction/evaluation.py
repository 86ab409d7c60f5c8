"""What an evaluation found: rates with confidence intervals over episodes that were each played exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embodied.interaction.env_worker import FinishedEpisode
from embodied.runs.metrics import wilson_interval


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """The episodes in the order of their assignments."""

    episodes: tuple[FinishedEpisode, ...]

    @property
    def success_once(self) -> float:
        """Share of episodes that succeeded at any step."""
        return sum(e.success_once for e in self.episodes) / len(self.episodes)

    @property
    def success_at_end(self) -> float:
        """Share of episodes that were successful at their last step."""
        return sum(e.success_at_end for e in self.episodes) / len(self.episodes)

    @property
    def mean_return(self) -> float:
        """Mean sum of rewards of an episode."""
        return sum(e.returns for e in self.episodes) / len(self.episodes)

    @property
    def mean_length(self) -> float:
        """Mean control steps of an episode."""
        return sum(e.length for e in self.episodes) / len(self.episodes)

    def metrics(self) -> dict[str, float]:
        """`eval/...`, as logged; the interval is Wilson's 95 %."""
        low, high = wilson_interval(sum(e.success_once for e in self.episodes), len(self.episodes))
        return {
            "eval/success_once": self.success_once,
            "eval/success_once_low": low,
            "eval/success_once_high": high,
            "eval/success_at_end": self.success_at_end,
            "eval/return": self.mean_return,
            "eval/length": self.mean_length,
            "eval/episodes": float(len(self.episodes)),
        }

    def table(self) -> list[dict[str, Any]]:
        """One plain record an episode."""
        return [dataclasses.asdict(episode) for episode in self.episodes]


def episode_metrics(episodes: Sequence[FinishedEpisode]) -> dict[str, float]:
    """`train/...` of the episodes that finished in a rollout; nothing where none did."""
    if not episodes:
        return {}
    result = EvaluationResult(tuple(episodes))
    return {
        "train/success_once": result.success_once,
        "train/success_at_end": result.success_at_end,
        "train/return": result.mean_return,
        "train/length": result.mean_length,
        "train/episodes": float(len(episodes)),
    }
