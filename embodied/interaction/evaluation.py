"""What an evaluation found: rates with confidence intervals over episodes that were each played exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embodied.interaction.messages import FinishedEpisode
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

    def metrics(self, has_success: bool = True) -> dict[str, float]:
        """`eval/...`, as logged, without successes where the environment has none; the interval is Wilson's 95 %."""
        common = {
            "eval/return": self.mean_return,
            "eval/length": self.mean_length,
            "eval/episodes": float(len(self.episodes)),
        }
        if not has_success:
            return common
        low, high = wilson_interval(sum(e.success_once for e in self.episodes), len(self.episodes))
        return {
            "eval/success_once": self.success_once,
            "eval/success_once_low": low,
            "eval/success_once_high": high,
            "eval/success_at_end": self.success_at_end,
            **common,
        }

    def table(self) -> list[dict[str, Any]]:
        """One plain record an episode."""
        return [dataclasses.asdict(episode) for episode in self.episodes]


def episode_metrics(episodes: Sequence[FinishedEpisode], has_success: bool) -> dict[str, float]:
    """`train/...` of the episodes that finished in a rollout; nothing where none did."""
    if not episodes:
        return {}
    metrics = EvaluationResult(tuple(episodes)).metrics(has_success)
    interval = ("eval/success_once_low", "eval/success_once_high")
    return {name.replace("eval/", "train/"): value for name, value in metrics.items() if name not in interval}
