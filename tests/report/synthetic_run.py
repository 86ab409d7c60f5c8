"""A run folder as a finished training leaves it, with known numbers and real videos; for the report's tests."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np

from embodied.report.reader import CONFIG, METRICS, PLAN, RESULT
from envs.video import Overlay, VideoRecorder

RECIPE = "maniskill_pushcube_ppo_mlp"
EPISODES = 64
ITERATIONS = 60

CONFIG_TEXT = """\
recipe: maniskill_pushcube_ppo_mlp
seed: {seed}
env:
  id: maniskill/PushCube-v1
  num_envs: 64
  reward: normalised_dense
policy:
  name: mlp
  hidden: [256, 256]
algorithm:
  advantage: gae
  loss: ppo_actor_critic
  gamma: 0.8
  clip: {clip}
goal:
  metric: success_once
  at_least: 0.95
"""


def wilson(successes: int, episodes: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate."""
    rate = successes / episodes
    centre = (rate + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = z / (1 + z * z / episodes) * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    return centre - half, centre + half


def evaluation(rate: float) -> dict[str, float]:
    successes = round(rate * EPISODES)
    low, high = wilson(successes, EPISODES)
    return {
        "eval/success_once": successes / EPISODES,
        "eval/success_once_low": low,
        "eval/success_once_high": high,
        "eval/episodes": EPISODES,
        "eval/return": 4 + 31 * successes / EPISODES,
    }


def make_run(root: Path, *, seed: int = 1, clip: float = 0.2, videos: bool = True, time: str = "") -> Path:
    """runs/<recipe>/<time> below `root`; success rises from 3 % to 97 % over 60 iterations of 8192 steps."""
    run = root / "runs" / RECIPE / (time or f"2026-01-31_12-00-{seed:02d}")
    (run / "videos").mkdir(parents=True)
    (run / "checkpoints" / f"step_{ITERATIONS}").mkdir(parents=True)
    (run / CONFIG).write_text(CONFIG_TEXT.format(seed=seed, clip=clip))
    stage = {"granularity": None, "slots": 2, "resident": True}
    plan = {
        "flow": "embodied",
        "launcher": "inline",
        "stages": {name: {"devices": ["cpu"], **stage} for name in ("env", "policy", "learner")},
        "why": "one device: all workers run as coroutines of one process and share their weights",
    }
    (run / PLAN).write_text(json.dumps(plan))
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(ITERATIONS + 1):
        rate = 0.03 + 0.94 / (1 + math.exp(-(i - 25 - 3 * seed) / 5))
        metrics = {
            "train/success_once": float(np.clip(rate + rng.normal(0, 0.035), 0, 1)),
            "train/return": 4 + 31 * rate + rng.normal(0, 1.0),
            "policy/approx_kl": 0.012 + abs(rng.normal(0, 0.003)),
            "policy/clip_fraction": 0.12 + rng.normal(0, 0.02),
            "policy/entropy": 5.2 - 3.1 * i / ITERATIONS + rng.normal(0, 0.05),
            "policy/loss": rng.normal(-0.01, 0.004),
            "value/explained_variance": min(1.0, 0.97 - math.exp(-(i + 1) / 12) + rng.normal(0, 0.01)),
            "value/loss": 0.2 + 0.6 * math.exp(-i / 20) + abs(rng.normal(0, 0.02)),
            "learner/gradient_norm": 0.6 + abs(rng.normal(0, 0.15)),
            "time/rollout_s": 1.5 + rng.normal(0, 0.05),
            "time/learn_s": 0.7 + rng.normal(0, 0.03),
            "time/advantages_s": 0.02,
            "time/iteration_s": 2.4,
            "time/predicted_s": 2.5,
            "time/env_simulate_s": 1.1,
            "time/policy_act_s": 0.3,
            "time/learner_update_s": 0.65,
        }
        if i % 6 == 0:
            metrics |= evaluation(rate) | {"time/evaluate_s": 1.2}
        row = {"iteration": i, "env_steps": 8192 * i, "seconds": 2.5 * i + 1.0, "metrics": metrics}
        lines.append(json.dumps(row))
    (run / METRICS).write_text("\n".join(lines) + "\n")
    (run / "log.txt").write_text("started\nfinished\n")
    (run / "trace.json").write_text('{"traceEvents": []}')
    if videos:
        make_videos(run / "videos")
    result = {
        "recipe": RECIPE,
        "status": "reached",
        "reason": "success_once was at least 0.95 in 2 evaluations in a row",
        "seconds": 151.0,
        "env_steps": 8192 * ITERATIONS,
        "iterations": ITERATIONS,
        "before": evaluation(0.03),
        "after": evaluation(0.97),
        "best": evaluation(0.97),
        "checkpoint": f"checkpoints/step_{ITERATIONS}",
        "videos": {"before": "videos/before_0of4.mp4", "after": "videos/after_4of4.mp4"},
        "seed": seed,
        "versions": {"embodied": "0.1.0", "torch": "2.14.0", "mani-skill": "3.0.1"},
        "command": f"embodied train {RECIPE} seed={seed}",
    }
    (run / RESULT).write_text(json.dumps(result))
    return run


def make_videos(folder: Path) -> None:
    """A grid of four cubes that stand still (before) or reach their target (after)."""
    for name, moves in (("before", False), ("after", True)):
        with VideoRecorder(folder, tile=4) as recorder:
            for step in range(24):
                for env in range(4):
                    done = moves and step > 18
                    overlay = Overlay("push the cube to the target", step, step / 24, done or None, [0.5, -0.3, 0.1, 0])
                    recorder.add(env, scene(step if moves else 0, env), overlay)
            for env in range(4):
                recorder.end_episode(env, moves, name=name)


def scene(step: int, env: int) -> np.ndarray:
    """A table, a target and a cube, uint8 [128, 128, 3]."""
    picture = np.full((128, 128, 3), (205, 190, 170), np.uint8)
    picture[:40] = (120, 150, 180)
    y = 60 + 12 * env
    picture[y - 6 : y + 14, 96:116] = (235, 120, 110)
    x = 20 + min(step, 18) * 78 // 18
    picture[y : y + 12, x : x + 12] = (40, 90, 200)
    return picture


def edit_result(run: Path, **changes: object) -> None:
    result = json.loads((run / RESULT).read_text())
    (run / RESULT).write_text(json.dumps(result | changes))


def text_of(page: str) -> str:
    """The words a reader sees: no styles, scripts or tags, white space collapsed."""
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
