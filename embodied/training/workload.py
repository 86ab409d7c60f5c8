"""What the shared run loop, the planner and the commands have to know of a recipe, whatever it trains."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.flow import Flow
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.profile import FlowProfile
from embodied.training.progress import Progress
from embodied.training.recipe import Recipe
from embodied.training.run import TrainingRun


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: status "reached" (the goal) or "limit", the reason in words, and result.json's contents."""

    folder: RunFolder
    status: str
    reason: str
    result: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Farewell:
    """What a command says at the end of a run. sentences: on how it went. files: by what they are, the report left out;
    None where there is none. commands: to go on with, each as pieces of text and paths."""

    sentences: tuple[str, ...]
    files: dict[str, Path | None]
    commands: tuple[tuple[str | Path, ...], ...]


class Workload(abc.ABC):
    """One recipe and what becomes of it.

    program: the command that trains it. progress: what its checkpoints remember. packages: folders of the code that its
    stages run, whose change makes a measured profile void. places: keys of the recipe that hold paths, maybe
    relative to where the command was. names: that are no paths there. writes: keys of paths that a run writes to.
    given: names of what it has from Python beside its recipe.
    """

    program: ClassVar[str]
    progress: ClassVar[type[Progress]]
    packages: tuple[Path, ...]
    places: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[frozenset[str]] = frozenset()
    writes: ClassVar[tuple[str, ...]] = ()
    recipe: Recipe
    given: frozenset[str] = frozenset()

    # -- where it runs

    @abc.abstractmethod
    def placed(self) -> Plan:
        """The plan that the names in `cluster` stand for. Raises ConfigurationError when it cannot be."""

    @abc.abstractmethod
    def flow(self, plan: Plan, folder: RunFolder | None = None) -> Flow:
        """The stages as `plan` has them run. folder: where they write, and after `prepare` only; None: to look at, not
        to run. Raises ConfigurationError where the plan does not suit the recipe, with what would."""

    # -- what it costs

    @abc.abstractmethod
    def costs(self) -> dict[str, Any]:
        """What of the recipe decides its stages' costs, as plain values; where they run is the plan's affair."""

    @abc.abstractmethod
    def measure(self, say: Callable[[str], None]) -> FlowProfile:
        """The stages' costs on this machine, by short real runs. say: told what is measured.

        Raises ConfigurationError when the recipe cannot be measured. Not to be called inside an event loop.
        """

    # -- a run

    def admit(self) -> None:  # noqa: B027  (most have nothing to refuse)
        """Refuse what this machine cannot run or read: missing packages, models, data. Called before there is a run
        folder, and before a run goes on; a recipe is looked at without it. Raises RefusedInput."""

    @property
    @abc.abstractmethod
    def per_iteration(self) -> int:
        """Of what progress counts, in one iteration."""

    @property
    @abc.abstractmethod
    def ahead(self) -> int:
        """Updates that a rollout may run ahead of; 0: collecting and learning take turns."""

    @abc.abstractmethod
    def prepare(self) -> str:
        """Load what a run needs besides its workers; returns a line that says what is about to be trained."""

    @abc.abstractmethod
    def begin(self, folder: RunFolder, system: Launcher, screen: RunProgress) -> TrainingRun:
        """The run under a launcher that has started."""

    # -- afterwards

    @abc.abstractmethod
    def finish(self, outcome: Outcome, say: Callable[[str], None]) -> None:
        """Add to a finished run's folder what is made once."""

    @abc.abstractmethod
    def farewell(self, outcome: Outcome) -> Farewell:
        """What a command says at the end."""
