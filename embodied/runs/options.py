"""What every kind of run may be told about its folder, checkpoints and logs."""

from __future__ import annotations

from embodied.config import config


@config
class CheckpointConfig:
    """every: iterations between checkpoints (one is always written at the end). minutes: how long a run goes without
    one at most, but for the iteration under way and for states that take long to write (at most a twentieth of the time
    goes into that); null: iterations alone decide. Where acting runs ahead of learning they always do, since a
    checkpoint waits for all that is under way and would so make the run depend on the clock. keep: how many stay on
    disk."""

    every: int = 50
    minutes: float | None = 10.0
    keep: int = 2

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes is {self.minutes}; must be greater than 0, or null to count iterations only")
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
