"""One training run under a launcher: what each event of it asks of which workers, and how far it is."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from embodied.errors import CheckpointError
from embodied.runs.checkpoint import Checkpoint, CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.launcher import Launcher
from reasoning.evaluation.metrics import ProblemResult, estimates, rates
from reasoning.evaluation.page import write_results
from reasoning.training.learner_worker import Update
from reasoning.training.messages import Answered, Asked, Graded, Judged, Round
from reasoning.training.problems import ProblemSets
from reasoning.training.recipe import Recipe

_WARNING_REST = 25
# of further questions when few groups were informative: never more than four times as many as are missing
_LEAST_RATE = 0.25


@dataclasses.dataclass
class Progress:
    """How far a run is: what a checkpoint keeps beside the workers' state. position: problems asked."""

    iteration: int = 0  # completed iterations
    responses: int = 0
    position: int = 0
    carried: int = 0
    seconds: float = 0.0
    goals_in_a_row: int = 0
    before: dict[str, float] = dataclasses.field(default_factory=dict)
    best: dict[str, float] = dataclasses.field(default_factory=dict)
    last: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Collected:
    """What a rollout amounted to: responses that were graded, metrics over them, and warnings."""

    responses: int
    metrics: dict[str, float]
    warnings: tuple[str, ...]


class TrainingRun:
    """One run under a launcher."""

    def __init__(
        self, recipe: Recipe, sets: ProblemSets, folder: RunFolder, system: Launcher, screen: RunProgress
    ) -> None:
        self.recipe, self.sets, self.folder, self.system, self.screen = recipe, sets, folder, system, screen
        self.asked: Asked = system.announced["prompts"]
        self.prompts, self.generate, self.reward = (system.group(n) for n in ("prompts", "generate", "reward"))
        self.learner = system.group("learner")
        # stages between reward and learner, with the operation of each that a round calls
        self._judges = [name for name in ("reference", "critic") if name in system.groups]
        self.store = CheckpointStore(folder.checkpoints, keep=recipe.checkpoint.keep)
        self.progress = Progress()
        self._clock = time.monotonic()
        self._lap = self._clock
        self._warned: dict[str, int] = {}
        self.version = 0  # of the learner's weights

    async def start(self) -> None:
        """Fit the devices' memory, and share the first weights."""
        memory = self.recipe.cluster.memory_mib
        swapping = await self.system.set_residency(None if memory is None else int(memory * 2**20))
        if swapping:
            self.screen.say(f"memory: {', '.join(swapping)} leave their device between turns")
        self.folder.plan.write_text(self.system.plan.to_json())
        await self.publish()

    async def collect(self, iteration: int) -> Collected:
        """Ask problems, generate answers, grade them, and have them judged by the models that do."""
        if self.recipe.algorithm.uniform_groups == "resample":
            return await self._collect_informative(iteration)
        wanted = self.recipe.rollout.prompts
        round = self._round(iteration, wanted)
        if all(self.system.plan.stages[name].resident for name in ("generate", *self._judges)):
            async with self.system.turn("generate", "reward", *self._judges):
                asked = await self.system.together(*self._answering(round), *self._judging(iteration))
        else:  # one after another, each with the device to itself
            async with self.system.turn("generate", "reward"):
                asked = await self.system.together(*self._answering(round))
            for name in self._judges:
                async with self.system.turn(name):
                    await self._judge(name, iteration)
        return self._collected([asked[1]], [asked[2]], round.count)

    def _answering(self, round: Round) -> list[Coroutine[Any, Any, Any]]:
        return [
            self.prompts.call("ask", round),
            self.generate.call("answer", round),
            self.reward.call("grade", round),
        ]

    def _judging(self, iteration: int) -> list[Coroutine[Any, Any, Any]]:
        return [self._judge(name, iteration) for name in self._judges]

    async def _judge(self, name: str, iteration: int) -> None:
        await self.system.group(name).call(*{"reference": ("refer",), "critic": ("value", iteration)}[name])

    async def _collect_informative(self, iteration: int) -> Collected:
        """Dynamic sampling: ask until enough groups have scores that differ, or `max_waves` is reached."""
        wanted, informative, total = self.recipe.rollout.prompts, [], 0
        answered: list[list[Answered]] = []
        graded: list[list[Graded]] = []
        missing = wanted
        for _ in range(self.recipe.rollout.max_waves):
            rate = len(informative) / total if total else 1.0
            round = self._round(iteration, math.ceil(missing / max(rate, _LEAST_RATE)))
            async with self.system.turn("generate", "reward"):
                _, answers, grades = await self.system.together(*self._answering(round))
            answered.append(answers)
            graded.append(grades)
            found = {number: differs for part in grades for number, differs in part.held.items()}
            informative += sorted(number for number, differs in found.items() if differs)
            total += len(found)
            missing = wanted - len(informative)
            if missing <= 0:
                break
        chosen = tuple(informative[:wanted])
        async with self.system.turn("reward", *self._judges):
            await self.system.together(self.reward.call("hand_on", chosen), *self._judging(iteration))
        collected = self._collected(answered, graded, total)
        short = [f"{len(chosen)} of {wanted} groups have scores that differ, after {total} asked"] * (missing > 0)
        extra = {"rollout/waves": float(len(graded)), "rollout/surplus": float(max(0, -missing))}
        return dataclasses.replace(collected, metrics=collected.metrics | extra, warnings=(*collected.warnings, *short))

    def _round(self, iteration: int, wanted: int) -> Round:
        progress = self.progress
        count = max(0, wanted + self.recipe.rollout.extra_prompts - progress.carried)
        round = Round(iteration, "train", progress.position, count, wanted)
        progress.position += count
        return round

    def _collected(self, answered: list[list[Answered]], graded: list[list[Graded]], asked: int) -> Collected:
        answers = [part for parts in answered for part in parts]
        grades = [part for parts in graded for part in parts]
        self.progress.carried = sum(part.carried for part in answered[-1])
        lengths = [length for part in grades for length in part.lengths]
        metrics = _merged(grades) | {
            "rollout/asked": float(asked),
            "rollout/tokens": float(sum(part.tokens for part in answers)),
            "rollout/length": sum(lengths) / max(1, len(lengths)),
            "rollout/length_max": float(max(lengths, default=0)),
            "rollout/carried": float(self.progress.carried),
        }
        warnings = tuple(warning for part in grades for warning in part.warnings)
        return Collected(sum(part.responses for part in grades), metrics, warnings)

    async def learn(self, iteration: int) -> Update:
        """Improve the model, and the critic, with what was collected."""
        stages = [name for name in ("critic", "learner") if name in self.system.groups]
        async with self.system.turn(*stages):
            updates = await self.system.together(*(self.system.group(name).call("learn", iteration) for name in stages))
        update: Update = updates[-1][0]
        self.version = update.version
        if len(stages) == 1:
            return update
        return dataclasses.replace(update, metrics=updates[0][0].metrics | update.metrics)

    async def publish(self) -> None:
        """Let generation go on with the learner's weights."""
        async with self.system.turn("generate", "learner"):
            await self.system.sync_weights(self.version)

    def due(self) -> int:
        """How many iterations may pass before the next evaluation, checkpoint or limit has its turn."""
        done, recipe = self.progress.iteration, self.recipe
        ahead = [every - done % every for every in (recipe.evaluation.every, recipe.checkpoint.every) if every]
        left = recipe.goal.responses - self.progress.responses
        return max(1, min([*ahead, -(-left // recipe.responses_per_iteration)]))

    async def evaluate(self) -> list[ProblemResult]:
        """Answer the held-out problems with the current weights."""
        count = self.asked.held_out
        round = Round(self.progress.iteration, "evaluate", 0, count, count)
        async with self.system.turn("generate", "reward"):
            *_, judged = await self.system.together(
                self.prompts.call("ask", round), self.generate.call("answer", round), self.reward.call("judge", round)
            )
        found: list[Judged] = sorted((one for part in judged for one in part), key=lambda one: one.problem)
        return [ProblemResult(self.sets.held_out[one.problem], one.tries) for one in found]

    async def save(self) -> Checkpoint:
        """Write a checkpoint of everything."""
        self._tick()
        async with self.system.turn("learner", *(["critic"] if "critic" in self.system.groups else [])):
            workers = {name: await group.call("state_dict") for name, group in self.system.groups.items()}
            state = {"progress": dataclasses.asdict(self.progress), "workers": workers}
            with self.store.writing(self.progress.iteration, state) as folder:
                await self.learner.call("export", folder / "policy")
        return Checkpoint(self.store.path(self.progress.iteration), self.progress.iteration)

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.state()
        self.progress = Progress(**state["progress"])
        for name, parts in state["workers"].items():
            group = self.system.group(name)
            if len(parts) != group.size:
                raise CheckpointError(
                    f"the checkpoint was written by {len(parts)} {name} worker(s), the plan has {group.size}; "
                    "resume with the run's own plan"
                )
            async with self.system.turn(name):
                await group.scatter("load_state_dict", parts)
        self.version = state["workers"]["learner"][0]["version"]
        await self.publish()

    def note_evaluation(self, results: Sequence[ProblemResult]) -> None:
        """Remember the best, the last, and how often in a row the goal was met; write every response to read."""
        goal, progress = self.recipe.goal, self.progress
        metrics = evaluation_metrics(results)
        described = {
            "model": f"{self.folder.path}, after iteration {progress.iteration}",
            "evaluation": dataclasses.asdict(self.recipe.evaluation),
            "prompt": dataclasses.asdict(self.recipe.prompt),
        }
        write_results(self.folder.path / "evaluation", described, results, estimates(results), rates(results))
        accuracy = metrics["eval/accuracy"]
        progress.last = metrics
        progress.before = progress.before or metrics
        if not progress.best or accuracy > progress.best["eval/accuracy"]:
            progress.best = metrics | {
                "iteration": float(progress.iteration),
                "responses": float(progress.responses),
            }
        met = goal.at_least is not None and accuracy >= goal.at_least
        progress.goals_in_a_row = progress.goals_in_a_row + 1 if met else 0
        low, high = metrics["eval/accuracy_low"], metrics["eval/accuracy_high"]
        self.screen.say(
            f"  evaluation after {progress.responses:,} responses: {accuracy:.1%} right (95 % interval {low:.1%} to "
            f"{high:.1%}) of {len(results)} held-out problems" + ("  <- goal met" if met else "")
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
        goal, progress = self.recipe.goal, self.progress
        if goal.at_least is not None and progress.goals_in_a_row >= goal.in_a_row:
            times = "one evaluation" if goal.in_a_row == 1 else f"{goal.in_a_row} evaluations in a row"
            return "reached", f"at least {goal.at_least:.0%} of the held-out problems were right in {times}"
        wanted = ""
        if goal.at_least is not None:
            wanted = f" before {goal.at_least:.0%} of the held-out problems were right"
        if progress.responses >= goal.responses:
            return "limit", f"the limit of {goal.responses:,} responses was reached{wanted}"
        if goal.minutes is not None and self.seconds() >= goal.minutes * 60:
            return "limit", f"the limit of {goal.minutes:g} minutes was reached{wanted}"
        return None

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return max(seconds, 1e-9)

    def seconds(self) -> float:
        """Wall seconds this run has taken, stops left out."""
        return self.progress.seconds + time.monotonic() - self._clock

    def _tick(self) -> None:
        self.progress.seconds, self._clock = self.seconds(), time.monotonic()


def evaluation_metrics(results: Sequence[ProblemResult]) -> dict[str, float]:
    """Accuracy with its interval, pass@k and maj@k where there are several tries, and rates."""
    found = estimates(results)
    accuracy = next(iter(found.values()))
    metrics = {
        "eval/accuracy": accuracy.value,
        "eval/accuracy_low": accuracy.low,
        "eval/accuracy_high": accuracy.high,
        "eval/problems": float(len(results)),
    }
    for name, estimate in list(found.items())[1:]:
        kind, _, k = name.partition("@")
        if k != "1":
            metrics[f"eval/{'majority' if kind == 'maj' else 'pass'}_at_{k}"] = estimate.value
    shares = rates(results)
    kept = ("truncated", "no_answer", "ungraded", "tokens_mean")
    return metrics | {f"eval/{name}": shares[name] for name in kept}


def _merged(grades: Sequence[Graded]) -> dict[str, float]:
    """Means over the responses of all parts, from the means of each."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in grades for name in part.metrics):
        total = weight = 0.0
        for part in grades:
            # the mean reward is over what was graded, everything else over all
            share = 1 - part.metrics["reward/excluded"] if name == "reward/mean" and part.responses else 1.0
            if part.responses:
                total += part.metrics[name] * part.responses * share
                weight += part.responses * share
        merged[name] = total / weight if weight else 0.0
    return merged
