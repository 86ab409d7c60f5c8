"""How well the planner predicts real runs, and whether the plan it chooses is the fastest one.

For each recipe: its stages are measured as `embodied profile` does, every plan of a list is predicted from that,
and then every plan is trained with for a few iterations by the commands' own loop. Measured is the median of the
iterations' wall time after two that warm up. Nothing else should run on the machine: an iteration that other programs
slow down is not the planner's fault, but it counts.

    OMP_NUM_THREADS=1 python benchmarks/planner_prediction.py [--write] [--only CartPole] [--minutes 10]

About ten minutes on two free cores. What does not fit into `--minutes` is left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import io
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from embodied.commands.workloads import recipe_workload
from embodied.errors import ConfigurationError, EmbodiedError
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner.choose import compare
from embodied.scheduler.planner.follow import same_placement
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.schedule import describe
from embodied.scheduler.planner.simulation import simulate
from embodied.training.loop import train
from embodied.training.planning import chosen_plan
from embodied.training.workload import Workload

RESULTS = Path(__file__).parent / "results" / "planner_prediction.md"
WARM_UP = 2


def slots_and_processes(workload: Workload) -> list[Plan]:
    """All stages in this process, with one or several slots, and simulators in this process (0), in one of their own or
    in two."""
    return [
        Plan(
            flow="embodied",
            launcher="inline",
            stages={
                "env": StagePlan(devices=("cpu",), slots=slots, processes=processes),
                "policy": StagePlan(devices=("cpu",), slots=slots),
                "learner": StagePlan(devices=("cpu",)),
            },
        )
        for slots, processes in ((1, 0), (2, 0), (1, 1), (2, 1), (4, 1), (1, 2))
    ]


def processes_and_cores(workload: Workload) -> list[Plan]:
    """All stages in this process; in one each on all cores; generation and learning on cores of their own, the rest on
    all of them; and grading on another core than generation."""
    names = list(workload.placed().stages)

    def plan(launcher: Literal["inline", "ray"], **devices: str) -> Plan:
        stages = {name: StagePlan(devices=(devices.get(name, "cpu"),)) for name in names}
        return Plan(flow="reasoning", launcher=launcher, stages=stages)

    return [
        plan("inline"),
        plan("ray"),
        plan("ray", generate="cpu:0", learner="cpu:1"),
        plan("ray", generate="cpu:0", reward="cpu:1"),
    ]


@dataclasses.dataclass(frozen=True)
class Case:
    """A recipe with overrides, what it is called here, how plans are shown, and which."""

    recipe: str
    overrides: tuple[str, ...]
    name: str
    plans: Callable[[Workload], list[Plan]]
    shown: Callable[[Plan], str]


def processes_shown(plan: Plan) -> str:
    """What a schedule does not show."""
    return f"{plan.stages['env'].processes} simulator processes"


def devices_shown(plan: Plan) -> str:
    """What a schedule does not show."""
    placed = {name: "+".join(s.devices) for name, s in plan.stages.items() if s.devices != ("cpu",)}
    return ", ".join([plan.launcher, *(f"{name} on {devices}" for name, devices in placed.items())])


QUIET = ("evaluation.every=0", "goal.at_least=null", "checkpoint.every=1000", "logger.tensorboard=false")
EMBODIED = (*QUIET, "evaluation.episodes=1", "record.episodes=0", "env.num_envs=32")
# the first one's policy is so wide that acting takes about as long as simulating
CASES = (
    Case(
        "maniskill_pushcube_ppo_mlp",
        (*EMBODIED, "learner.epochs=1", "policy.hidden=[1024,1024]"),
        "PushCube, wide policy",
        slots_and_processes,
        processes_shown,
    ),
    Case(
        "gym_cartpole_ppo_mlp",
        (*EMBODIED, "learner.global_batch=512", "learner.epochs=4"),
        "CartPole",
        slots_and_processes,
        processes_shown,
    ),
    Case(
        "maniskill_pushcube_ppo_mlp", (*EMBODIED, "learner.epochs=4"), "PushCube", slots_and_processes, processes_shown
    ),
    Case(
        "math_grpo_tiny",
        (*QUIET, "evaluation.size=8", "rollout.prompts=16"),
        "Sums",
        processes_and_cores,
        devices_shown,
    ),
)


@dataclasses.dataclass(frozen=True)
class Compared:
    """One plan of one recipe: seconds of an iteration predicted, and measured with their relative spread (half the
    distance between the quartiles); chosen: by the planner."""

    case: str
    plan: str
    predicted: float
    measured: float
    spread: float
    chosen: bool

    @property
    def error(self) -> float:
        """Relative; positive where the prediction is too long."""
        return self.predicted / self.measured - 1


def measured_seconds(case: Case, plan: Plan, iterations: int) -> tuple[float, float]:
    """(median seconds of an iteration, relative spread) of a real training run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(plan.to_json())
        overrides = [*case.overrides, f"cluster.plan={file}"]
        workload = recipe_workload(case.recipe, overrides)
        limit = (iterations + WARM_UP) * workload.per_iteration
        workload = recipe_workload(case.recipe, [*overrides, f"goal.{workload.progress.counted}={limit}"])
        run = RunFolder(Path(folder) / "run")
        run.path.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            train(workload, run, command="benchmark")
        records = [r["metrics"] for r in read_metrics(run.metrics)]
    seconds = [metrics["time/iteration_s"] for metrics in records if "time/iteration_s" in metrics][WARM_UP:]
    low, middle, high = statistics.quantiles(seconds, n=4)
    return middle, (high - low) / 2 / middle


def compared(case: Case, iterations: int, until: float) -> list[Compared]:
    """Profile, predict, choose and run. until: no further run begins after this time (monotonic)."""
    workload = recipe_workload(case.recipe, list(case.overrides))
    print(f"{case.name}: measuring its stages", flush=True)
    profile = workload.measure(lambda text: print(f"  {text}", flush=True))
    problem = Problem(profile)
    best = chosen_plan(compare(profile), workload.recipe.cluster.device)
    plans = [best, *(plan for plan in case.plans(workload) if not same_placement(best, plan))]
    found = []
    for plan in plans:  # the chosen one first: it must not be left out
        words = case.shown(plan)
        try:
            workload.flow(plan)  # refuses what does not suit the recipe
            schedule = schedule_of(problem, plan)
        except ConfigurationError as error:
            print(f"  left out: {words}: {error}", flush=True)
            continue
        words = f"{describe(schedule)}; {words}"
        if time.monotonic() > until:
            print(f"  left out for lack of time: {words}", flush=True)
            continue
        seconds, spread = measured_seconds(case, plan, iterations)
        chosen = same_placement(best, plan)
        found.append(Compared(case.name, words, simulate(problem, schedule).seconds, seconds, spread, chosen))
        print(
            f"  {words}: {found[-1].predicted:.3f} s predicted, {seconds:.3f} s measured ({found[-1].error:+.0%})"
            + ("  <- chosen" if chosen else ""),
            flush=True,
        )
    return found


def summary(results: list[Compared]) -> list[str]:
    """Median error, and what the chosen plan loses, a line each."""
    errors = [abs(result.error) for result in results]
    lines = [
        f"{len(results)} plans: the median error is **{statistics.median(errors):.1%}**, the largest {max(errors):.1%}."
    ]
    for case in dict.fromkeys(result.case for result in results):
        mine = [result for result in results if result.case == case]
        fastest = min(mine, key=lambda result: result.measured)
        chosen = next((result for result in mine if result.chosen), None)
        if chosen is None:
            lines.append(f"{case}: the chosen plan was not run.")
        else:
            loss = chosen.measured / fastest.measured - 1
            what = "is the fastest" if chosen is fastest else f"takes {loss:.1%} longer than the fastest"
            lines.append(f"{case}: the chosen plan {what} of {len(mine)} measured.")
    return lines


def report(results: list[Compared], minutes: float) -> str:
    """The results file."""
    head = [
        "# Predicted and measured iterations",
        "",
        f"{dt.date.today()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}, "
        f"load {os.getloadavg()[0]:.1f} at the end; {minutes:.1f} minutes.",
        "`OMP_NUM_THREADS=1 python benchmarks/planner_prediction.py --write`; what is compared how: its docstring.",
        "",
        "| recipe | plan | predicted | measured | error | chosen |",
        "|---|---|---|---|---|---|",
    ]
    rows = [
        f"| {r.case} | `{r.plan}` | {r.predicted:.3f} s | {r.measured:.3f} s +-{r.spread:.0%} | {r.error:+.1%} | "
        f"{'yes' if r.chosen else ''} |"
        for r in results
    ]
    return "\n".join([*head, *rows, "", *summary(results)]) + "\n"


def main() -> None:
    """Print, and write if asked, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--only", choices=[case.name for case in CASES], action="append", help="may be repeated")
    parser.add_argument("--iterations", type=int, default=7, help="measured, of every plan")
    parser.add_argument("--minutes", type=float, default=10.0, help="no further run begins after this time")
    args = parser.parse_args()
    began = time.monotonic()
    results: list[Compared] = []
    # no profile that is kept here may lead a run to another plan
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for case in CASES:
            if args.only and case.name not in args.only:
                continue
            try:
                results += compared(case, args.iterations, began + 60 * args.minutes)
            except EmbodiedError as error:
                print(f"{case.name} left out: {error}", flush=True)  # e.g. a simulator that does not start here
    if not results:
        sys.exit("nothing was measured; the reasons are above")
    text = report(results, (time.monotonic() - began) / 60)
    print(text)
    if args.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
