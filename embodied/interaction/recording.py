"""Filming a policy: a few fixed episodes, one picture a control step, tiled into one video."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.recipe import EvaluationConfig
from embodied.random import RowNoise, derive_seed
from envs import registry
from envs.api import EnvConfig, VectorEnv
from envs.video import Overlay, VideoRecorder
from policies.api import Policy


@dataclasses.dataclass(frozen=True)
class Recording:
    """path: of the video. successes: of how many `episodes` succeeded."""

    path: Path
    successes: int
    episodes: int


def recording_env(env: EnvConfig, episodes: int) -> VectorEnv:
    """`episodes` environments that can be filmed, side by side; each plays one episode."""
    plain = dataclasses.replace(env, num_envs=episodes, slots=1, auto_reset="disabled", processes=None)
    return registry.make(registry.with_rendering(plain))


@torch.no_grad()
def film(
    policy: Policy,
    env: VectorEnv,
    options: EvaluationConfig,
    folder: Path,
    name: str,
    *,
    fps: int,
    device: str,
) -> Recording:
    """Film `policy` in the first evaluation episodes, one an environment; chunks are executed action by action, so that
    every step is shown."""
    policy.to(device).eval()
    count = env.num_envs
    observation = env.reset(evaluation_assignments(options.seed, count, env.spec))
    running = np.ones(count, dtype=bool)
    success = np.zeros(count, dtype=bool)
    seed = derive_seed(options.seed, "film")
    step = decision = 0
    with VideoRecorder(folder, fps=fps, tile=count) as recorder:
        path = None
        while running.any():
            inputs = policy.prepare(observation).to(device)
            noise = RowNoise(seed, np.arange(count), np.full(count, decision), device)
            output = policy.act(inputs, options.sampling, noise)
            decision += 1
            for index in range(output.actions.shape[1]):
                if not running.any():
                    break
                frames = env.render(np.flatnonzero(running).tolist())
                actions = output.actions[:, index : index + 1].cpu()
                result = env.step(actions)
                success |= result.success[:, 0].numpy() & running
                for row, frame in zip(np.flatnonzero(running).tolist(), frames, strict=True):
                    overlay = Overlay(
                        instruction=observation.instruction[row],
                        step=step,
                        reward=float(result.reward[row, 0]),
                        success=_outcome(bool(success[row]), bool(result.ended[row])) if env.spec.has_success else None,
                        action=actions[row, 0].tolist(),
                        value=None if output.value is None else float(output.value[row, 0]),
                    )
                    recorder.add(row, frame, overlay)
                ended = result.ended.numpy() & running
                for row in np.flatnonzero(ended).tolist():
                    path = recorder.end_episode(row, bool(success[row]) if env.spec.has_success else None, name) or path
                running &= ~ended
                observation = result.observation
                step += 1
    assert path is not None, "every episode ended, so the grid is complete"
    return Recording(path, int(success.sum()), count)


def _outcome(success: bool, ended: bool) -> bool | None:
    """Success once it has happened, failure only when the episode is over without it."""
    return True if success else (False if ended else None)
