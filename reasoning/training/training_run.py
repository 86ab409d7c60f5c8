"""What a run of the reasoning flow collects, and how it is evaluated."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.launcher import Launcher
from embodied.training.progress import Progress
from embodied.training.run import Collection, Evaluation, TrainingRun
from embodied.training.workload import Workload
from reasoning.evaluation.metrics import ProblemResult, estimates, rates
from reasoning.evaluation.page import write_results
from reasoning.training.messages import Answered, Asked, Graded, Judged, Round
from reasoning.training.problems import ProblemSets
from reasoning.training.recipe import Recipe

# of further questions when few groups were informative: never more than four times as many as are missing
_LEAST_RATE = 0.25


@dataclasses.dataclass
class Responses(Progress):
    """responses: graded in training. position: problems asked. carried: groups that go on in the next iteration."""

    counted: ClassVar[str] = "responses"
    unit: ClassVar[str] = "responses"

    responses: int = 0
    position: int = 0
    carried: int = 0


class ReasoningRun(TrainingRun):
    """One run under a launcher: a model answers, and others judge."""

    progress: Responses

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        sets: ProblemSets,
        folder: RunFolder,
        system: Launcher,
        screen: RunProgress,
    ) -> None:
        super().__init__(workload, folder, system, screen)
        self.recipe, self.sets = recipe, sets
        self.asked: Asked = system.announced["prompts"]
        self.prompts, self.generate, self.reward = (system.group(n) for n in ("prompts", "generate", "reward"))
        self.trained = tuple(name for name in ("critic", "learner") if name in system.groups)
        # stages between reward and learner, with the operation of each that a round calls
        self._judges = [name for name in ("reference", "critic") if name in system.groups]

    async def collect(self, iteration: int) -> Collection:
        """Ask problems, generate answers, grade them, and have them judged by the models that do."""
        began = time.perf_counter()
        if self.recipe.algorithm.uniform_groups == "resample":
            collected = await self._collect_informative(iteration)
        else:
            collected = await self._collect_all(iteration)
        rate = collected.metrics["rollout/tokens"] / (time.perf_counter() - began)
        return dataclasses.replace(collected, metrics=collected.metrics | {"rollout/tokens_per_second": rate})

    async def _collect_all(self, iteration: int) -> Collection:
        wanted = self.recipe.rollout.prompts
        round = self._round(iteration, wanted)
        if self._all_stay("generate", *self._judges):
            async with self.system.turn("generate", "reward", *self._judges):
                asked = await self.system.together(*self._answering(round), *self._judging(iteration))
        else:  # one after another, each with the device to itself
            async with self.system.turn("generate", "reward"):
                asked = await self.system.together(*self._answering(round))
            await self._judge_in_turn(iteration)
        return self._collected([asked[1]], [asked[2]], round.count)

    def _all_stay(self, *stages: str) -> bool:
        return all(self.system.plan.stages[name].resident for name in stages)

    def _answering(self, round: Round) -> list[Coroutine[Any, Any, Any]]:
        return [
            self.prompts.call("ask", round),
            self.generate.call("answer", round),
            self.reward.call("grade", round),
        ]

    def _judging(self, iteration: int) -> list[Coroutine[Any, Any, Any]]:
        return [self._judge(name, iteration) for name in self._judges]

    async def _judge_in_turn(self, iteration: int) -> None:
        for name in self._judges:
            async with self.system.turn(name):
                await self._judge(name, iteration)

    async def _judge(self, name: str, iteration: int) -> None:
        await self.system.group(name).call(*{"reference": ("refer",), "critic": ("value", iteration)}[name])

    async def _collect_informative(self, iteration: int) -> Collection:
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
            self.progress.carried = sum(part.carried for part in answers)
            answered.append(answers)
            graded.append(grades)
            found = {number: differs for part in grades for number, differs in part.held.items()}
            informative += sorted(number for number, differs in found.items() if differs)
            total += len(found)
            missing = wanted - len(informative)
            if missing <= 0:
                break
        chosen = tuple(informative[:wanted])
        if self._all_stay(*self._judges):
            async with self.system.turn("reward", *self._judges):
                await self.system.together(self.reward.call("hand_on", chosen), *self._judging(iteration))
        else:
            async with self.system.turn("reward"):
                await self.reward.call("hand_on", chosen)
            await self._judge_in_turn(iteration)
        collected = self._collected(answered, graded, total)
        short = [f"{len(chosen)} of {wanted} groups have scores that differ, after {total} asked"] * (missing > 0)
        extra = {"rollout/waves": float(len(graded)), "rollout/surplus": float(max(0, -missing))}
        return dataclasses.replace(collected, metrics=collected.metrics | extra, warnings=(*collected.warnings, *short))

    def _round(self, iteration: int, wanted: int) -> Round:
        progress = self.progress
        count = max(0, wanted + self.recipe.rollout.extra_prompts - progress.carried)
        round = Round(iteration, "train", progress.position, count, max(0, count + progress.carried - wanted))
        progress.position += count
        return round

    def _collected(self, answered: list[list[Answered]], graded: list[list[Graded]], asked: int) -> Collection:
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
        return Collection(sum(part.responses for part in grades), metrics, warnings)

    async def evaluate(self) -> Evaluation:
        """Answer the held-out problems with the current weights; every response is written to read."""
        count = self.asked.held_out
        round = Round(self.progress.iteration, "evaluate", 0, count)
        async with self.system.turn("generate", "reward"):
            *_, judged = await self.system.together(
                self.prompts.call("ask", round), self.generate.call("answer", round), self.reward.call("judge", round)
            )
        found: list[Judged] = sorted((one for part in judged for one in part), key=lambda one: one.problem)
        results = [ProblemResult(self.sets.held_out[one.problem], one.tries) for one in found]
        described = {
            "model": f"{self.folder.path}, after iteration {self.progress.iteration}",
            "evaluation": dataclasses.asdict(self.recipe.evaluation),
            "prompt": dataclasses.asdict(self.recipe.prompt),
        }
        write_results(self.folder.path / "evaluation", described, results, estimates(results), rates(results))
        metrics = evaluation_metrics(results)
        low, high = metrics["eval/accuracy_low"], metrics["eval/accuracy_high"]
        return Evaluation(
            metrics,
            f"{metrics['eval/accuracy']:.1%} right (95 % interval {low:.1%} to {high:.1%}) of {len(results)} held-out "
            "problems",
        )

    def status(self, metrics: dict[str, float]) -> str:
        """How training answers were."""
        return f"{metrics.get('reward/right', 0.0):.0%} of training answers right"


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
            if part.responses and name in part.metrics:
                total += part.metrics[name] * part.responses * share
                weight += part.responses * share
        merged[name] = total / weight if weight else 0.0
    return merged
