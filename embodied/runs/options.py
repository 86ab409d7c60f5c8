"""What every kind of run may be told about its folder, checkpoints and logs."""

from __future__ import annotations

from embodied.config import config


@config
class CheckpointConfig:
    """every: iterations between checkpoints (one is always written at the end). keep: how many stay on disk."""

    every: int = 50
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ValueError(f"every is {self.every}, keep {self.keep}; both must be at least 1")


@config
class LoggerConfig:
    """tensorboard: also write event files for it."""

    tensorboard: bool = True


@config
class RunConfig:
    """root: folder below which `<recipe>/<time>/` is made. folder: this very folder instead."""

    root: str = "runs"
    folder: str | None = None
