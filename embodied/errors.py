"""The project's exceptions: one class per kind of fault, each with the exit code a command ends with.

A message states what was expected, what came, and what to do. `suggest` writes the last part for a choice
among known names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2


class EmbodiedError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code = EXIT_FAILED


class RefusedInput(EmbodiedError):
    """What the user asked for cannot be done as asked; nothing was started."""

    exit_code = EXIT_REFUSED


class ConfigurationError(RefusedInput):
    """A recipe, override or option is unknown, of the wrong type, or part of an impossible combination."""


class AssetError(RefusedInput):
    """A file the run needs (mesh, texture, checkpoint, dataset) is missing or not what it should be."""


class SimulatorError(EmbodiedError):
    """A simulator failed to start, to step or to render."""


class WorkerError(EmbodiedError):
    """A worker of the flow failed; the cause is chained."""


class WorkerDied(WorkerError):
    """The process of a worker is gone; the run can go on from its latest checkpoint."""


class DeadlineExceeded(EmbodiedError):
    """Someone waited longer than allowed; the message names who waited for whom, and for what."""


class ChannelClosed(EmbodiedError):
    """A channel was closed while someone still read from or wrote to it."""


class CheckpointError(EmbodiedError):
    """A checkpoint could not be written, or what is on disk is not a complete checkpoint."""


class CorrectnessAlarm(EmbodiedError):
    """A quantity that must hold by construction does not; training on would be silently wrong."""


def suggest(value: object, valid: Iterable[object], *, noun: str = "values") -> str:
    """One sentence that names the nearest valid choice, if there is one, and lists all of them."""
    names = [str(v) for v in valid]
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{hint}Valid {noun}: {', '.join(names) if names else '(none)'}."
