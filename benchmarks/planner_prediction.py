"""How well the planner predicts real runs, and whether the plan it chooses is the fastest one.

For each recipe: its stages are measured as `embodied profile` does, every plan of a list is predicted from that,
and then every plan is trained with for a few iterations by `embodied train`'s own loop. Measured is the median of the
iterations' wall time after two that warm up. Nothing else should run on the machine: an iteration that other programs
slow down is not the planner's fault, but it counts.

    OMP_NUM_THREADS=1 python benchmarks/planner_prediction.py [--write] [--quick] [--minutes 6]

About six minutes on two free cores; `--quick` takes the second recipe only, to see that it works. What does not fit
into `--minutes` is left out, and said.
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
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from embodied.config.compose import compose_recipe
from embodied.errors import EmbodiedError
from embodied.interaction.cost_profile import build_profile
from embodied.interaction.placement import planned
from embodied.interaction.profiling import measure
from embodied.interaction.recipe import Recipe, parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner.choose import compare
from embodied.scheduler.planner.follow import same_placement
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.schedule import describe
from embodied.scheduler.planner.simulation import simulate
from embodied.training.planning import chosen_plan

RESULTS = Path(__file__).parent / "results" / "planner_prediction.md"
WARM_UP = 2

# recipe, overrides, and in words; the first one's policy is so wide that acting takes about as long as simulating
CASES = (
    (
        "maniskill_pushcube_ppo_mlp",
        ("env.num_envs=32", "learner.epochs=1", "policy.hidden=[1024,1024]"),
        "PushCube, wide policy",
    ),
    ("gym_cartpole_ppo_mlp", ("env.num_envs=32", "learner.global_batch=512", "learner.epochs=4"), "CartPole"),
    ("maniskill_pushcube_ppo_mlp", ("env.num_envs=32", "learner.epochs=4"), "PushCube"),
)
# (slots, simulator processes); 0 processes: in the process that acts and learns
PLANS = ((1, 0), (2, 0), (1, 1), (2, 1), (4, 1), (1, 2))
LIMITS = (
    "evaluation.every=0",
    "evaluation.episodes=1",
    "goal.at_least=null",
    "checkpoint.every=1000",
    "logger.tensorboard=false",
    "record.episodes=0",
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


def plan_of(slots: int, processes: int) -> Plan:
    """All stages in this process, with so many slots and simulator processes."""
    stages = {
        "env": StagePlan(devices=("cpu",), slots=slots, processes=processes),
        "policy": StagePlan(devices=("cpu",), slots=slots),
        "learner": StagePlan(devices=("cpu",)),
    }
    return Plan(flow="embodied", launcher="inline", stages=stages, why="one of a list")


def measured_seconds(recipe: Recipe, plan: Plan, iterations: int) -> tuple[float, float]:
    """(median seconds of an iteration, relative spread) of a real training run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(plan.to_json())
        limit = dataclasses.replace(recipe.goal, env_steps=(iterations + WARM_UP) * recipe.steps_per_iteration)
        cluster = dataclasses.replace(recipe.cluster, plan=str(file))
        run = RunFolder(Path(folder) / "run")
        run.path.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            train(dataclasses.replace(recipe, goal=limit, cluster=cluster), run, command="benchmark")
        records = [r["metrics"] for r in read_metrics(run.metrics)]
    seconds = [metrics["time/iteration_s"] for metrics in records if "time/iteration_s" in metrics][WARM_UP:]
    low, middle, high = statistics.quantiles(seconds, n=4)
    return middle, (high - low) / 2 / middle


def compared(recipe_name: str, overrides: tuple[str, ...], case: str, iterations: int, until: float) -> list[Compared]:
    """Profile, predict, choose and run. until: no further run begins after this time (monotonic)."""
    recipe = parse_recipe(recipe_name, compose_recipe(recipe_name, [*overrides, *LIMITS]))
    print(f"{case}: measuring its stages", flush=True)
    profile = build_profile(recipe, measure(recipe, lambda text: print(f"  {text}", flush=True)))
    problem = Problem(profile)
    best = chosen_plan(compare(profile), recipe.cluster.device)
    plans = [plan_of(*numbers) for numbers in PLANS]
    plans = [best, *(plan for plan in plans if not same_placement(best, plan))]  # first: it must not be left out
    found = []
    for plan in plans:
        planned(recipe, plan)  # refuses what does not suit the recipe
        schedule = schedule_of(problem, plan)
        words = f"{describe(schedule)}; {plan.stages['env'].processes} simulator processes"
        if time.monotonic() > until:
            print(f"  left out for lack of time: {words}", flush=True)
            continue
        seconds, spread = measured_seconds(recipe, plan, iterations)
        found.append(
            Compared(case, words, simulate(problem, schedule).seconds, seconds, spread, same_placement(best, plan))
        )
        print(
            f"  {words}: {found[-1].predicted:.3f} s predicted, {seconds:.3f} s measured ({found[-1].error:+.0%})"
            + ("  <- chosen" if found[-1].chosen else ""),
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
    parser.add_argument("--quick", action="store_true", help="the second recipe only")
    parser.add_argument("--iterations", type=int, default=7, help="measured, of every plan")
    parser.add_argument("--minutes", type=float, default=6.0, help="no further run begins after this time")
    args = parser.parse_args()
    began = time.monotonic()
    results: list[Compared] = []
    for case in CASES[1:2] if args.quick else CASES:
        try:
            results += compared(*case, args.iterations, began + 60 * args.minutes)
        except EmbodiedError as error:
            print(f"{case[2]} left out: {error}", flush=True)  # e.g. a simulator that does not start here
    if not results:
        sys.exit("nothing was measured; the reasons are above")
    text = report(results, (time.monotonic() - began) / 60)
    print(text)
    if args.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
