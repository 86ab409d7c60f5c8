"""Reward terms that look at the form of a response, not at its answer."""

from __future__ import annotations

import re

from embodied.config import config


@config
class FormatConfig:
    """pattern: a regular expression that the whole response must match (a dot also matches line ends)."""

    pattern: str = r"<think>.*</think>.*\S.*"

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"the format {self.pattern!r} is not a regular expression: {error}") from None


@config
class OverlongConfig:
    """limit: tokens a response may have at most. buffer: the last so many of them are penalised in rising measure."""

    limit: int
    buffer: int

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise ValueError(f"buffer is {self.buffer} and limit {self.limit}; expected 0 < buffer <= limit")


def format_score(pattern: re.Pattern[str], response: str) -> float:
    """1 if the whole response matches, else 0."""
    return float(pattern.fullmatch(response.strip()) is not None)


def overlong_score(options: OverlongConfig, tokens: int, *, truncated: bool) -> float:
    """0 up to limit - buffer tokens, then falling linearly to -1 at the limit; -1 when truncated.

    The soft overlong punishment of DAPO (Yu et al. 2025, equation 13).
    """
    if truncated:
        return -1.0
    free = options.limit - options.buffer
    return max(-1.0, min(0.0, (free - tokens) / options.buffer))
