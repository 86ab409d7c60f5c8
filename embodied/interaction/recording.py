"""What a saved policy does, kept: films of evaluation episodes, and the episodes themselves as a dataset."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from embodied.datasets import DatasetWriter
from embodied.interaction.episode_builder import EpisodeBuilder
from embodied.interaction.playback import PlayedStep, play, playback_env
from embodied.interaction.recipe import EvaluationConfig
from envs.api import EnvConfig, VectorEnv
from envs.video import Overlay, VideoRecorder
from policies.api import Policy

FPS_WITHOUT_RATE = 20.0


@dataclasses.dataclass(frozen=True)
class Recording:
    """path: of the video. outcomes: of each episode whether it succeeded, and its return."""

    path: Path
    outcomes: tuple[tuple[bool, float], ...]

    @property
    def successes(self) -> int:
        """How many episodes succeeded."""
        return sum(success for success, _ in self.outcomes)

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.outcomes)


@dataclasses.dataclass(frozen=True)
class Film:
    """One episode's video, and whether the episode succeeded when it was played for it."""

    path: Path
    success: bool


def recording_env(env: EnvConfig, episodes: int) -> VectorEnv:
    """`episodes` environments that can be filmed, side by side; each plays one episode."""
    return playback_env(env, episodes, pictures=True)


def film(
    policy: Policy,
    env: VectorEnv,
    options: EvaluationConfig,
    folder: Path,
    name: str,
    *,
    fps: int,
    device: str,
    seed: int = 0,
) -> Recording:
    """Film `policy` in the first evaluation episodes, one an environment, tiled into one video; chunks are executed
    action by action, so that every step is shown."""
    count, path = env.num_envs, None
    returns, succeeded = [0.0] * count, [False] * count
    with VideoRecorder(folder, fps=fps, tile=count) as recorder:
        for step in play(policy, env, options, range(count), device=device, pictures=True, seed=seed):
            recorder.add(step.row, step.picture, overlay_of(step, env.spec.has_success))
            returns[step.episode] += step.reward
            if step.ended:
                succeeded[step.episode] = step.succeeded
                outcome = step.succeeded if env.spec.has_success else None
                path = recorder.end_episode(step.row, outcome, name) or path
    assert path is not None, "every episode ended, so the grid is complete"
    return Recording(path, tuple(zip(succeeded, returns, strict=True)))


def film_episodes(
    policy: Policy,
    env: VectorEnv,
    options: EvaluationConfig,
    episodes: Sequence[int],
    folder: Path,
    *,
    fps: int,
    device: str,
    seed: int = 0,
) -> dict[int, Film]:
    """A video of each of `episodes` (numbers within the evaluation) in `folder`."""
    films: dict[int, Film] = {}
    with VideoRecorder(folder, fps=fps) as recorder:
        for step in play(policy, env, options, episodes, device=device, pictures=True, seed=seed):
            recorder.add(step.row, step.picture, overlay_of(step, env.spec.has_success))
            if step.ended:
                outcome = step.succeeded if env.spec.has_success else None
                path = recorder.end_episode(step.row, outcome, f"episode_{step.episode:04d}")
                assert path is not None, "every episode is kept"
                films[step.episode] = Film(path, step.succeeded)
    return films


def overlay_of(step: PlayedStep, has_success: bool) -> Overlay:
    """What to write around the step's picture: success once it has happened, failure when the episode is over."""
    known = has_success and (step.succeeded or step.ended)
    return Overlay(
        instruction=step.observation.instruction[0],
        step=step.step,
        reward=step.reward,
        success=step.succeeded if known else None,
        action=step.action.tolist(),
        value=step.value,
    )


def record_episodes(
    policy: Policy,
    env: VectorEnv,
    options: EvaluationConfig,
    folder: Path,
    *,
    keep: Literal["successes", "all"],
    origin: dict[str, Any],
    device: str,
    seed: int = 0,
) -> int:
    """Record the evaluation's episodes as a dataset in `folder`, or go on with one begun alike; returns how many it
    keeps. Raises RefusedInput for a folder that holds something else."""
    spec = env.spec
    with DatasetWriter(folder, spec, spec.control_hz or FPS_WITHOUT_RATE, origin) as writer:
        done = {entry.attempt for entry in writer.entries}
        running: dict[int, EpisodeBuilder] = collections.defaultdict(EpisodeBuilder)
        wanted = [episode for episode in range(options.episodes) if episode not in done]
        for step in play(policy, env, options, wanted, device=device, pictures=False, seed=seed):
            building = running[step.episode]
            building.see(step.observation, 0, step.action, step.action)
            building.feel(torch.tensor(step.reward), torch.tensor(step.success))
            if step.ended:
                episode = running.pop(step.episode).episode(step.assignment)
                (writer.add if keep == "all" or episode.succeeded else writer.reject)(step.episode, episode)
        return writer.kept
