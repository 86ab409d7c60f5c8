"""Recording demonstrations: scripted experts play, what succeeds is kept.

Attempts are numbered. An attempt's world and its noise follow from the recording's seed and the number alone, so the
dataset is the same however many environments played at once, and a stopped recording goes on to the same end.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from embodied.config import config
from embodied.datasets import DatasetWriter, FolderDataset
from embodied.errors import ConfigurationError, RefusedInput, SimulatorError
from embodied.interaction.episode_builder import EpisodeBuilder
from embodied.interaction.evaluate import find_policy, weight_hashes
from embodied.interaction.experts import expert_kind, make_expert_env, plain_spec, split_advice
from embodied.interaction.novice import Novice
from embodied.interaction.recording import FPS_WITHOUT_RATE, recording_env
from embodied.random import RowNoise, derive_seed
from embodied.runs.progress import RunProgress
from envs.api import Assignments, EnvConfig, EnvSpec, Observation, StepResult, VectorEnv
from envs.pool.losses import MAX_LOSSES, deadly_assignments
from envs.video import Overlay, VideoRecorder

_SEED_BITS = 31
_WANDER_DOWN = 0.2  # of what the last translation could do downwards: there is a table


@config
class DemonstrationConfig:
    """episodes: how many to keep.
    noise: standard deviation, as a fraction of half the action range, of what is added to the expert's translations;
        the labels stay the expert's own, so that recovering from mistakes is shown too (DART, Laskey et al. 2017).
    wander: an attempt begins with up to so many steps (how many is drawn for each) in a drawn direction instead of the
        expert's, so that where the hand is says little about where it has to go, and a policy learns to look.
    pace: the least share of the expert's translations that is made. Each attempt is another demonstrator's, whose share
        is drawn from here to 1: slow ones take longer, and where a weak push is none they stop short. The labels are
        what the demonstrator would do, so a policy learns the mixture, and has something left to learn.
    policy: a saved policy that plays a part of every attempt, after wandering and before the expert, so that the expert
        labels where the policy errs (DAgger, Ross et al. 2011); "" for none. It acts greedily.
    policy_steps: how many steps that is at most (how many is drawn for each attempt); None for half an episode.
    keep: "successes" alone, or "all" attempts. seed: of worlds, noise, paces, wandering and steps of the
        policy.
    attempts: give up after so many attempts for every episode wanted."""

    episodes: int = 50
    noise: float = 0.0
    wander: int = 0
    pace: float = 1.0
    policy: str = ""
    policy_steps: int | None = None
    keep: Literal["successes", "all"] = "successes"
    seed: int = 0
    attempts: int = 5

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.attempts < 1:
            raise ValueError(f"episodes is {self.episodes}, attempts {self.attempts}; both must be at least 1")
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is {self.noise}; expected 0 to 1")
        if not 0 < self.pace <= 1:
            raise ValueError(f"pace is {self.pace}; expected more than 0, and 1 at most")
        if self.wander < 0:
            raise ValueError(f"wander is {self.wander}; expected 0 or more steps")
        if self.policy_steps is not None and not self.policy:
            raise ValueError("policy_steps says for how long a policy plays; say which with policy")
        if self.policy_steps is not None and self.policy_steps < 1:
            raise ValueError(f"policy_steps is {self.policy_steps}; expected 1 or more")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a recording came to. unknown: tasks the expert cannot do. attempts: how many were made, those among them."""

    folder: Path
    episodes: int
    attempts: int
    unknown: tuple[int, ...]


def assignment_of(attempt: int, seed: int, spec: EnvSpec) -> tuple[int, int, int]:
    """(task, initial state, world seed) of an attempt: tasks take turns; worlds are drawn, never the stored initial
    states that evaluations are made of."""
    return attempt % spec.tasks, -1, derive_seed(seed, "demonstrate", attempt) & ((1 << _SEED_BITS) - 1)


class _Attempt(EpisodeBuilder):
    """An attempt under way in one environment. losses: how often its simulator was lost."""

    def __init__(self, number: int, assignment: tuple[int, int, int], losses: int = 0) -> None:
        super().__init__()
        self.number, self.assignment, self.losses = number, assignment, losses


class _Recording:
    """The attempts of one recording, spread over the environments."""

    def __init__(
        self,
        env: VectorEnv,
        writer: DatasetWriter,
        options: DemonstrationConfig,
        screen: RunProgress,
        novice: Novice | None = None,
    ) -> None:
        self.env, self.writer, self.options, self.screen = env, writer, options, screen
        self.spec = plain_spec(env.spec)
        self.unknown: set[int] = set()
        self._playing: list[_Attempt | None] = [None] * env.num_envs
        self._done = {entry.attempt for entry in writer.entries}
        self._numbers = itertools.count()
        self._made = len(self._done)  # attempts that were begun, those of tasks without an expert left out
        self._noise_seed = derive_seed(options.seed, "noise")
        low, high = (torch.tensor(bound) for bound in (self.spec.action.low, self.spec.action.high))
        self._low, self._high = low, high
        self._spread = torch.zeros_like(low)
        self._disturbed_dims = list(expert_kind(self.spec.id).disturbed)
        self._spread[self._disturbed_dims] = options.noise * ((high - low) / 2)[self._disturbed_dims]
        self._pace_seed = derive_seed(options.seed, "pace")
        self._wander_seed = derive_seed(options.seed, "wander")
        self._novice = novice
        self._novice_steps = self.spec.episode_steps // 2 if options.policy_steps is None else options.policy_steps
        self._novice_seed = derive_seed(options.seed, "novice")

    def run(self) -> int:
        """Play until enough episodes are kept; returns how many attempts there were in all."""
        observation = self._start(list(range(self.env.num_envs)))
        while any(self._playing):
            result = self._play(observation)
            observation = result.observation
            ended = [
                row
                for row, attempt in enumerate(self._playing)
                if attempt is not None and (bool(result.ended[row]) or bool(result.failed[row]))
            ]
            self._refuse_deadly([self._playing[row] for row in ended if bool(result.failed[row])])
            for row in ended:
                self._conclude(row, lost=bool(result.failed[row]))
            if ended:
                observation = self._start(ended)
        return self._made

    def _start(self, rows: list[int]) -> Observation:
        """Give the environments `rows` their next attempts, as far as more are needed; returns what all show."""
        reset = rows  # at first all, since what was never reset shows nothing; later those with something to do
        while True:
            for row in rows:
                if self._playing[row] is None and self._wanted():
                    self._playing[row] = self._next_attempt()
                    if self._novice is not None:
                        self._novice.forget(row)
            observation = self._reset(reset)
            _, _, able = split_advice(observation, self.spec)
            rows = reset = [row for row in rows if self._playing[row] is not None and not bool(able[row])]
            if not rows:
                return observation
            for row in rows:
                self.unknown.add(self._playing[row].assignment[0])
                self._playing[row] = None
                self._made -= 1

    def _wanted(self) -> bool:
        running = sum(attempt is not None for attempt in self._playing)
        return self.writer.kept + running < self.options.episodes

    def _next_attempt(self) -> _Attempt:
        if len(self.unknown) == self.spec.tasks:
            raise ConfigurationError(
                f"There is no scripted expert for any of the {self.spec.tasks} tasks of {self.spec.id}."
            )
        if self._made >= self.options.attempts * max(self.options.episodes, 10):
            raise SimulatorError(
                f"the expert of {self.spec.id} succeeded in {self.writer.kept} of {self._made} attempts, too rarely "
                f"for {self.options.episodes} episodes. Use less noise or a longer env.episode_steps, or keep all; "
                f"the episodes kept so far are in {self.writer.folder}."
            )
        for number in self._numbers:
            assignment = assignment_of(number, self.options.seed, self.spec)
            if number not in self._done and assignment[0] not in self.unknown:
                self._made += 1
                return _Attempt(number, assignment)
        raise AssertionError("unreachable: counting has no end")

    def _reset(self, rows: list[int]) -> Observation:
        assignments = [a.assignment if a is not None else (0, -1, 0) for a in self._playing]
        mask = torch.zeros(self.env.num_envs, dtype=torch.bool)
        mask[rows] = True
        return self.env.reset(Assignments.unstack(torch.tensor(assignments)), mask)

    def _play(self, observation: Observation) -> StepResult:
        shown, advice, _ = split_advice(observation, self.spec)
        advice = self._paced(advice)
        actions = self._disturbed(advice, shown)
        for row, attempt in enumerate(self._playing):
            if attempt is not None:
                attempt.see(shown, row, actions[row], advice[row].clone())
        result = self.env.step(actions[:, None])
        for row, attempt in enumerate(self._playing):
            if attempt is not None and not bool(result.failed[row]):
                attempt.feel(result.reward[row, 0], result.success[row, 0])
        return result

    def _paced(self, advice: torch.Tensor) -> torch.Tensor:
        """The expert's `advice` [n, A] as each attempt's demonstrator carries it out."""
        if self.options.pace == 1:
            return advice
        numbers = np.array([attempt.number if attempt is not None else 0 for attempt in self._playing])
        drawn = RowNoise(self._pace_seed, numbers, np.zeros_like(numbers)).uniform(1)
        paced = advice.clone()
        paced[:, self._disturbed_dims] *= self.options.pace + (1 - self.options.pace) * drawn
        return paced

    def _disturbed(self, advice: torch.Tensor, shown: Observation) -> torch.Tensor:
        """What is done instead of the expert's `advice` [n, A] about what is `shown`."""
        numbers = np.array([attempt.number if attempt is not None else 0 for attempt in self._playing])
        steps = np.array([attempt.steps if attempt is not None else 0 for attempt in self._playing])
        actions = advice.clone()
        if self._novice is not None:
            rows = self._novices(numbers, steps).nonzero().flatten()
            if len(rows):
                actions[rows] = self._novice.actions(shown, rows)
        if self.options.noise > 0:
            noise = RowNoise(self._noise_seed, numbers, steps).normal(advice.shape[1])
            actions = torch.minimum(torch.maximum(actions + self._spread * noise, self._low), self._high)
        if self.options.wander > 0:
            wanders, direction = self._wandering(numbers, steps)
            for place, dim in enumerate(self._disturbed_dims):
                actions[:, dim] = torch.where(wanders, direction[:, place], actions[:, dim])
        return actions

    def _wander_length(self, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [n]: for how many steps each attempt wanders; float32 [n, 3] in (0, 1): draws of where."""
        drawn = RowNoise(self._wander_seed, numbers, np.zeros_like(numbers)).uniform(1 + len(self._disturbed_dims))
        return (drawn[:, 0] * (self.options.wander + 1)).long(), drawn[:, 1:]

    def _wandering(self, numbers: np.ndarray, steps: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """bool [n] and float32 [n, 3]: whether each attempt still wanders, and by which translations."""
        length, drawn = self._wander_length(numbers)
        low, high = self._low[self._disturbed_dims].clone(), self._high[self._disturbed_dims]
        low[-1] *= _WANDER_DOWN
        return torch.from_numpy(steps) < length, low + (high - low) * drawn

    def _novices(self, numbers: np.ndarray, steps: np.ndarray) -> torch.Tensor:
        """bool [n]: which attempts the policy plays now."""
        drawn = RowNoise(self._novice_seed, numbers, np.zeros_like(numbers)).uniform(1)[:, 0]
        length = (drawn * (self._novice_steps + 1)).long()
        since = torch.from_numpy(steps) - self._wander_length(numbers)[0]
        playing = torch.tensor([attempt is not None for attempt in self._playing])
        return playing & (since >= 0) & (since < length)

    def _refuse_deadly(self, lost: list[_Attempt]) -> None:
        """Raises SimulatorError where attempts that were just lost would be lost again and again."""
        deadly = [attempt.assignment for attempt in lost if attempt.losses + 1 >= MAX_LOSSES]
        if deadly:
            raise deadly_assignments(self.spec.id, deadly)

    def _conclude(self, row: int, *, lost: bool) -> None:
        attempt = self._playing[row]
        if lost:  # its simulator died and was restarted: once more from the start
            self._playing[row] = _Attempt(attempt.number, attempt.assignment, attempt.losses + 1)
            if self._novice is not None:
                self._novice.forget(row)
            return
        self._playing[row] = None
        episode = attempt.episode(attempt.assignment)
        if episode.succeeded or self.options.keep == "all":
            self.writer.add(attempt.number, episode)
        else:
            self.writer.reject(attempt.number, episode)
        entries = self.writer.entries
        rate = sum(entry.success for entry in entries) / len(entries)
        self.screen.update(self.writer.kept, f"{rate:.0%} of {len(entries)} attempts succeeded")


def record(
    env_config: EnvConfig, options: DemonstrationConfig, folder: Path, screen: RunProgress, env_options: dict[str, Any]
) -> Recorded:
    """Record demonstrations of `env_config` (from `experts.expert_config`) into `folder`, or go on with those there.

    env_options: the options the user gave, kept with the dataset. Raises RefusedInput for a folder of another
    recording, SimulatorError where the expert succeeds too rarely or an attempt loses its simulator
    again and again.
    """
    folder_of_policy = find_policy(options.policy) if options.policy else None
    origin = recording_origin(options, env_options)
    with make_expert_env(env_config) as env:
        spec = plain_spec(env.spec)
        novice = Novice(folder_of_policy, spec) if folder_of_policy else None
        with DatasetWriter(folder, spec, spec.control_hz or FPS_WITHOUT_RATE, origin) as writer:
            if writer.kept >= options.episodes:
                return Recorded(folder, writer.kept, len(writer.entries), ())
            if writer.kept:
                screen.say(f"{writer.kept} of {options.episodes} episodes are there already")
            screen.count_from(writer.kept)
            recording = _Recording(env, writer, options, screen, novice)
            attempts = recording.run()
            return Recorded(folder, writer.kept, attempts, tuple(sorted(recording.unknown)))


def recording_origin(options: DemonstrationConfig, env_options: dict[str, Any]) -> dict[str, Any]:
    """What decides what is recorded, as the dataset tells it; a folder begun with other values is refused."""
    origin = {"expert": "scripted", "env": env_options, "noise": options.noise}
    if options.wander:
        origin["wander"] = options.wander
    if options.pace != 1:
        origin["pace"] = options.pace
    if options.policy:
        origin["policy"] = weight_hashes(find_policy(options.policy))
        origin["policy_steps"] = options.policy_steps
    return {**origin, "keep": options.keep, "seed": options.seed}


def film_demonstrations(env_config: EnvConfig, folder: Path, count: int) -> Path:
    """Play the first `count` episodes of the dataset in `folder` again, action by action, into one tiled video in it.

    Raises SimulatorError without a way to render, and RefusedInput where an episode does not end as it was recorded.
    """
    dataset = FolderDataset(folder)
    episodes = [dataset[index] for index in range(min(count, len(dataset)))]
    longest = max(map(len, episodes))
    with recording_env(env_config, len(episodes)) as env, VideoRecorder(folder, tile=len(episodes)) as recorder:
        env.reset(Assignments.unstack(torch.tensor([episode.assignment for episode in episodes])))
        path = None
        for step in range(longest):
            rows = [row for row, episode in enumerate(episodes) if step < len(episode)]
            frames = env.render(rows)
            actions = torch.stack([episode.actions[min(step, len(episode) - 1)] for episode in episodes])
            result = env.step(actions[:, None])
            for row, frame in zip(rows, frames, strict=True):
                episode = episodes[row]
                over = step == len(episode) - 1
                if bool(result.success[row, 0]) != bool(episode.success[step]):
                    raise RefusedInput(
                        f"episode {row} of {folder} does not come out as recorded when it is played again: step {step} "
                        f"was {'a success' if episode.success[step] else 'no success'}. Do the environment's options "
                        "and the simulator's version match the recording's?"
                    )
                overlay = Overlay(
                    instruction=episode.instruction,
                    step=step,
                    reward=float(episode.rewards[step]),
                    success=bool(episode.success[: step + 1].any()) if over or episode.success[step] else None,
                    action=episode.labels[step].tolist(),
                )
                recorder.add(row, frame, overlay)
                if over:
                    path = recorder.end_episode(row, episode.succeeded, "preview") or path
    assert path is not None, "every episode ended, so the grid is complete"
    return path
