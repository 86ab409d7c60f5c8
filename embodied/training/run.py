"""One training run under a launcher: what each event of it asks of which workers, and how far it is."""

from __future__ import annotations

import abc
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from embodied.errors import CheckpointError
from embodied.learner.update import Update
from embodied.runs.checkpoint import Checkpoint, CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.runs.state_file import on_host
from embodied.runs.turns import CheckpointTurns
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import Plan
from embodied.system.memory import MemoryWatch

if TYPE_CHECKING:
    from embodied.training.workload import Workload

_WARNING_REST = 25


@dataclasses.dataclass(frozen=True)
class Collection:
    """What a rollout amounted to: how much was counted, metrics, and warnings."""

    amount: int
    metrics: dict[str, float]
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: metrics, and a few words."""

    metrics: dict[str, float]
    said: str


class TrainingRun(abc.ABC):
    """One run under a launcher; a workload says how it collects and evaluates.

    trained: the stages that learn. All have the operation `learn(iteration)`; the last one's weights are what acts, and
    it has `export(folder)` too.
    """

    trained: tuple[str, ...] = ("learner",)

    def __init__(self, workload: Workload, folder: RunFolder, system: Launcher, screen: RunProgress) -> None:
        self.workload, self.folder, self.system, self.screen = workload, folder, system, screen
        self.progress = workload.progress()
        self.store = CheckpointStore(folder.checkpoints, keep=workload.recipe.checkpoint.keep)
        self.checkpoints = CheckpointTurns(workload.recipe.checkpoint)
        self._clock = time.monotonic()
        self._lap = self._clock
        self._warned: dict[str, int] = {}
        self.memory = MemoryWatch()
        self.version = 0  # of the weights that learn

    # -- what a workload says

    @abc.abstractmethod
    async def collect(self, iteration: int) -> Collection:
        """Act for one rollout."""

    @abc.abstractmethod
    async def evaluate(self) -> Evaluation:
        """Try the current weights."""

    @abc.abstractmethod
    def status(self, metrics: dict[str, float]) -> str:
        """A few words on an iteration."""

    # -- what all runs do

    async def start(self) -> None:
        """Fit the devices' memory, and share the first weights."""
        memory = self.workload.recipe.cluster.memory_mib
        swapping = await self.system.set_residency(None if memory is None else int(memory * 2**20))
        if swapping:
            self.screen.say(
                f"memory: {', '.join(swapping)} leave their device between turns, except while weights go from one to "
                "another"
            )
        await self.publish()

    async def learn(self, iteration: int) -> Update:
        """Improve the weights with what was collected."""
        if self._stay():
            async with self.system.turn(*self.trained):
                answers = await self.system.together(
                    *(self.system.group(name).call("learn", iteration) for name in self.trained)
                )
        else:  # one after another, each with the device to itself
            answers = []
            for name in self.trained:
                async with self.system.turn(name):
                    answers.append(await self.system.group(name).call("learn", iteration))
        updates: list[Update] = [ranks[0] for ranks in answers]
        self.version = updates[-1].version
        return Update(
            {name: value for update in updates for name, value in update.metrics.items()},
            tuple(warning for update in updates for warning in update.warnings),
            self.version,
        )

    def _stay(self) -> bool:
        """Whether all stages that learn may be on their devices at once."""
        return all(self.system.plan.stages[name].resident for name in self.trained)

    async def publish(self) -> None:
        """Let the newest weights act."""
        edges = self.system.flow.weight_edges
        stages = dict.fromkeys([*(edge.target for edge in edges), *(edge.source for edge in edges)])
        async with self.system.turn(*stages):
            await self.system.sync_weights(self.version)

    def due(self) -> int:
        """How many iterations may pass before the next evaluation, checkpoint or limit has its turn."""
        done, recipe = self.progress.iteration, self.workload.recipe
        ahead = [every - done % every for every in (recipe.evaluation.every, recipe.checkpoint.every) if every]
        return max(1, min([*ahead, self.left(), self._until_time()]))

    def _until_time(self) -> int:
        """Iterations until the clock is looked at again: each of them where nothing is collected ahead, else as many as
        there is time for by what they lasted so far."""
        if not self.workload.ahead:
            return 1
        minutes, done = self.workload.recipe.goal.minutes, self.progress.iteration
        if minutes is None:
            return self.left()
        spent = self.seconds()
        return int((minutes * 60 - spent) * done / spent) if spent else 1

    def checkpoint_due(self) -> bool:
        """Whether the iteration just done has its checkpoint."""
        return self.checkpoints.due(self.progress.iteration, by_clock=not self.workload.ahead)

    def left(self) -> int:
        """Iterations until the limit."""
        return -(-(self.workload.recipe.goal.limit - self.progress.amount) // self.workload.per_iteration)

    async def save(self) -> Checkpoint:
        """Write a checkpoint of everything, unless the newest already is of this iteration."""
        latest = self.store.latest()
        if latest is not None and latest.step == self.progress.iteration:
            return latest
        self.note_time()
        with self.checkpoints.writing():
            return await self._write()

    async def _write(self) -> Checkpoint:
        apart = () if self._stay() else self.trained[:-1]  # one after another, each with the device to itself
        found: dict[str, list[Any]] = {}
        for name in apart:
            async with self.system.turn(name):
                # a copy: in this process these are the worker's own tensors, which are unloaded after its turn
                found[name] = on_host(await self.system.group(name).call("state_dict"))
        async with self.system.turn(*(name for name in self.trained if name not in apart)):
            for name, group in self.system.groups.items():
                if name not in apart:
                    found[name] = await group.call("state_dict")
            workers = {name: found[name] for name in self.system.groups}
            for name in filter(self._acts_as_one, workers):
                workers[name] = workers[name][:1]  # the others have nothing of their own
            state = {"progress": dataclasses.asdict(self.progress), "workers": workers}
            with self.store.writing(self.progress.iteration, state) as folder:
                await self.system.group(self.trained[-1]).call("export", folder / "policy")
        return Checkpoint(self.store.path(self.progress.iteration), self.progress.iteration)

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.state()
        self.progress = self.workload.progress(**state["progress"])
        for name, parts in state["workers"].items():
            group = self.system.group(name)
            if self._acts_as_one(name):
                divided = parts[:1] * group.size
            else:
                stage = self.system.flow.stages[name]
                divided = stage.worker.divide_state(parts, self.system.plan.stages[name], stage.options)
            async with self.system.turn(name):
                await group.scatter("load_state_dict", divided)
        self.version = state["workers"][self.trained[-1]][0]["version"]
        await self.publish()

    async def in_the_way_of(self, plan: Plan) -> str | None:
        """Why the run's workers, as they stand now, could not go on under `plan`; None where they can."""
        for name, placed in plan.stages.items():
            stage = self.system.flow.stages[name]
            if self._acts_as_one(name):
                continue
            async with self.system.turn(name):
                parts = await self.system.group(name).call("state_dict")
            try:
                stage.worker.divide_state(parts, placed, stage.options)
            except CheckpointError as error:
                return str(error)
        return None

    def _acts_as_one(self, name: str) -> bool:
        """Whether the stage's workers are one sharded worker, whose first rank's state is that of all."""
        return self.system.flow.stages[name].worker.collective

    def note(self, evaluation: Evaluation) -> None:
        """Remember the best, the last, and how often in a row the goal was met; say how it went."""
        goal, progress, metrics = self.workload.recipe.goal, self.progress, evaluation.metrics
        value = metrics[goal.measure]
        self.note_time()
        progress.last = metrics
        progress.before = progress.before or metrics
        if not progress.best or value > progress.best[goal.measure]:
            counts = {"iteration": float(progress.iteration), progress.counted: float(progress.amount)}
            progress.best = metrics | counts
        met = goal.at_least is not None and value >= goal.at_least
        progress.goals_in_a_row = progress.goals_in_a_row + 1 if met else 0
        self.screen.say(
            f"  evaluation after {progress.amount:,} {progress.unit}: {evaluation.said}"
            + ("  <- goal met" if met else "")
        )

    def warn(self, warnings: tuple[str, ...]) -> None:
        """Say each warning, but one of the same beginning at most every `_WARNING_REST` iterations."""
        for warning in warnings:
            key = warning[:20]
            last = self._warned.get(key)
            if last is None or self.progress.iteration - last >= _WARNING_REST:
                self._warned[key] = self.progress.iteration
                self.screen.say(f"  warning: {warning}")

    def over(self) -> tuple[str, str] | None:
        """Status and reason if training is over."""
        goal, progress = self.workload.recipe.goal, self.progress
        wish = ""
        if goal.at_least is not None:
            times = "one evaluation" if goal.in_a_row == 1 else f"{goal.in_a_row} evaluations in a row"
            wish = f"{goal.wish} in {times}"
            if progress.goals_in_a_row >= goal.in_a_row:
                return "reached", wish
            wish = f" before {wish}"
        if progress.amount >= goal.limit:
            return "limit", f"the limit of {goal.limit:,} {progress.unit} was reached{wish}"
        if goal.minutes is not None and self.seconds() >= goal.minutes * 60:
            return "limit", f"the limit of {goal.minutes:g} minutes was reached{wish}"
        return None

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return max(seconds, 1e-9)

    def note_time(self) -> None:
        """Have the progress know the seconds so far; it is what is left of a run that is interrupted."""
        self.progress.seconds, self._clock = self.seconds(), time.monotonic()

    def seconds(self) -> float:
        """Wall seconds this run has taken, stops left out."""
        return self.progress.seconds + time.monotonic() - self._clock
