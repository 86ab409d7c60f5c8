"""LIBERO against the stock simulator: what a control step costs, and what the fast mode changes.

    python benchmarks/libero_modes.py speed     CPU time a control step: stock, faithful, fast (about 2 minutes)
    python benchmarks/libero_modes.py compare   success and drift, faithful against fast, scripted policy (10 minutes)

`--write` puts the table into benchmarks/results/libero.md, in place of that command's earlier one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from envs.api import Assignments
from envs.libero.batch import LiberoBatch
from envs.libero.config import LiberoConfig
from envs.libero.experts import Expert
from envs.libero.factory import make_batch
from envs.libero.spec import versions

RESULTS = Path(__file__).parent / "results" / "libero.md"
SIZE, CHUNK = 224, 8
KINDS = ("stock", "faithful", "fast")
STATES, AT_ONCE = 50, 10
TASKS = (
    ("libero_spatial", 0),
    ("libero_spatial", 1),
    ("libero_spatial", 3),
    ("libero_object", 0),
    ("libero_object", 4),
    ("libero_goal", 6),
    ("libero_goal", 8),
)


def main() -> None:
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "compare"))
    parser.add_argument("--suite", default="libero_spatial", help="for speed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="for speed: every kind is measured so often, in turn")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_time_stock(options.suite) if options.one == "stock" else _time(options.suite, options.one)))
        return
    table = _speed(options.suite, options.rounds) if options.what == "speed" else _compare()
    print(table)
    if options.write:
        _write(options.what if options.what == "compare" else f"{options.what} {options.suite}", table)


# -------------------------------------------------------------------- speed


def _speed(suite: str, rounds: int) -> str:
    """Every kind in a process of its own, in turn: two GL stacks in one process disturb each other."""
    times: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            command = [sys.executable, __file__, "speed", "--suite", suite, "--one", kind]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            times[kind].append(json.loads(result.stdout.splitlines()[-1]))
            print(f"{kind}: {times[kind][-1]['cpu_ms']:.1f} CPU-ms a control step", file=sys.stderr)
    best = {kind: min(runs, key=lambda run: run["cpu_ms"]) for kind, runs in times.items()}
    lines = [
        f"{suite}, task 0, two cameras of {SIZE} pixels, chunks of {CHUNK}; best of {rounds} runs in turn.",
        "",
        "| | CPU-ms a control step | control steps a CPU-second | against stock | memory (MiB) |",
        "|---|---|---|---|---|",
    ]
    names = {"stock": "stock OffScreenRenderEnv (draws every step)", "faithful": "faithful", "fast": "fast"}
    for kind, run in best.items():
        ratio = best["stock"]["cpu_ms"] / run["cpu_ms"]
        lines.append(
            f"| {names[kind]} | {run['cpu_ms']:.1f} | {1000 / run['cpu_ms']:.0f} | {ratio:.1f}x | {run['mib']:.0f} |"
        )
    return "\n".join(lines)


def _motion(steps: int) -> np.ndarray:
    """Actions [T, 7] that move the arm about above the table."""
    t = np.arange(steps)
    actions = np.zeros((steps, 7), dtype=np.float32)
    actions[:, 0], actions[:, 1], actions[:, 6] = 0.3 * np.sin(t / 10), 0.3 * np.cos(t / 10), -1
    return actions


def _time_stock(suite: str, steps: int = 40) -> dict[str, float]:
    from envs.libero.simulator import load, quiet
    from envs.libero.spec import chosen_tasks
    from envs.libero.suites import load_initial_states

    files = chosen_tasks(LiberoConfig(id=f"libero/{suite}:0"))[0]
    load(None)
    with quiet():
        from libero.libero.envs import OffScreenRenderEnv

        env = OffScreenRenderEnv(bddl_file_name=str(files.bddl), camera_heights=SIZE, camera_widths=SIZE)
        env.seed(0)
        env.reset()
        env.set_init_state(load_initial_states(files)[0])
        actions = _motion(steps + 4)
        for action in actions[:4]:
            env.step(action)
        began = time.process_time()
        for action in actions[4:]:
            env.step(action)
    return {"cpu_ms": 1000 * (time.process_time() - began) / steps, "mib": _memory()}


def _time(suite: str, mode: str, chunks: int = 15) -> dict[str, float]:
    batch = make_batch(LiberoConfig(id=f"libero/{suite}:0", mode=mode, image_size=SIZE), 1)
    batch.reset(torch.tensor([0]), Assignments.unstack(torch.tensor([[0, 0, 0]])))
    actions = torch.from_numpy(_motion((chunks + 1) * CHUNK)).reshape(-1, CHUNK, 1, 7)
    active = torch.tensor([True])
    began = 0.0
    for index, chunk in enumerate(actions):
        if index == 1:
            began = time.process_time()
        for action in chunk:
            batch.step(action, active)
        batch.observe()
    return {"cpu_ms": 1000 * (time.process_time() - began) / (chunks * CHUNK), "mib": _memory()}


def _memory() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024


# -------------------------------------------------------------------- faithful against fast


def _compare() -> str:
    lines = [
        f"Scripted policy from {STATES} stored initial states of {len(TASKS)} tasks, seed = index. Drift: the faithful",
        "episode's actions executed in the fast mode as well; distance between the two hands and between the two",
        "carried objects at the faithful episode's end, median and largest of the episodes.",
        "",
        "| task | faithful solves | fast solves | same outcome | hand drift (mm) | object drift (mm) | replay solves |",
        "|---|---|---|---|---|---|---|",
    ]
    for suite, task in TASKS:
        lines.append(_compare_task(suite, task))
        print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def _compare_task(suite: str, task: int) -> str:
    batches = {
        mode: make_batch(LiberoConfig(id=f"libero/{suite}:{task}", mode=mode, cameras=()), AT_ONCE)
        for mode in ("faithful", "fast")
    }
    solved: dict[str, list[bool]] = {"faithful": [], "fast": [], "replay": []}
    hand, thing = [], []
    for begin in range(0, STATES, AT_ONCE):
        states = torch.arange(begin, begin + AT_ONCE)
        assigned = Assignments(torch.zeros_like(states), states, states)
        actions, outcome, length = _play(batches["faithful"], assigned)
        solved["faithful"] += outcome.tolist()
        end = _where(batches["faithful"])
        solved["fast"] += _play(batches["fast"], assigned)[1].tolist()
        solved["replay"] += _replay(batches["fast"], assigned, actions, length).tolist()
        drift = np.linalg.norm(end - _where(batches["fast"]), axis=-1) * 1000
        hand += drift[:, 0].tolist()
        thing += drift[:, 1].tolist()
    for batch in batches.values():
        batch.close()
    same = sum(a == b for a, b in zip(solved["faithful"], solved["fast"], strict=True))
    return (
        f"| {suite} {task} | {sum(solved['faithful'])}/{STATES} | {sum(solved['fast'])}/{STATES} | {same}/{STATES} "
        f"| {np.median(hand):.2g}, {max(hand):.2g} | {np.median(thing):.2g}, {max(thing):.2g} "
        f"| {sum(solved['replay'])}/{STATES} |"
    )


def _play(batch: LiberoBatch, assigned: Assignments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scripted policy until every episode ended: actions [T, n, 7], success [n], lengths [n]."""
    rows = torch.arange(batch.num_envs)
    batch.reset(rows, assigned)
    experts = [Expert(batch, row) for row in rows.tolist()]
    active = torch.ones(batch.num_envs, dtype=torch.bool)
    length = torch.zeros(batch.num_envs, dtype=torch.int64)
    taken = []
    for _ in range(batch.spec.episode_steps):
        taken.append(torch.from_numpy(np.stack([expert.act() for expert in experts])))
        result = batch.step(taken[-1], active)
        length += active
        active = active & ~result.success
        if not active.any():
            break
    return torch.stack(taken), ~active, length


def _replay(batch: LiberoBatch, assigned: Assignments, actions: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Execute the recorded actions, every episode for its recorded length; whether any step succeeded, [n]."""
    batch.reset(torch.arange(batch.num_envs), assigned)
    solved = torch.zeros(batch.num_envs, dtype=torch.bool)
    for step, action in enumerate(actions):
        active = length > step
        solved |= batch.step(action, active).success & active
    return solved


def _where(batch: LiberoBatch) -> np.ndarray:
    """[n, 2, 3]: where each hand and each task's object is."""
    places = []
    for row in range(batch.num_envs):
        task, data = batch.task_of(row), batch.data_of(row)
        places.append([data.site_xpos[task.controller.arm.site], data.xpos[task.objects[task.goal[0][1]]]])
    return np.array(places)


# -------------------------------------------------------------------- results file


def _write(name: str, table: str) -> None:
    """Replace the section `name` of the results file, or add it."""
    title = "# LIBERO: speed, and the fast mode against the faithful one\n"
    text = RESULTS.read_text() if RESULTS.exists() else title
    made_with = ", ".join(f"{package} {version}" for package, version in versions().items())
    command = f"OMP_NUM_THREADS=1 python benchmarks/libero_modes.py {name.replace(' ', ' --suite ')} --write"
    section = (
        f"## {name}\n\n{dt.date.today().isoformat()}, {platform.machine()}, no graphics card, one thread "
        f"each; {made_with}. Command:\n\n    {command}\n\n{table}\n"
    )
    pattern = re.compile(rf"## {re.escape(name)}\n.*?(?=\n## |\Z)", re.DOTALL)
    text = pattern.sub(lambda _: section, text) if pattern.search(text) else f"{text}\n{section}"
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
