"""Recording while training: films of every k-th episode of a few environments, and finished episodes as a dataset.

A film shows one picture a decision, drawn from what the policy saw where it sees pictures, else from a picture for
people. Drawing and encoding happen in a process of their own (`envs.video`), which finishes its files whatever happens
to the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from embodied.config import config
from embodied.datasets import DatasetWriter
from embodied.errors import ConfigurationError, DeadlineExceeded, WorkerError
from embodied.interaction.episode_builder import EpisodeBuilder
from embodied.runs.lock import writing_alone
from envs import registry
from envs.api import EnvConfig, EnvSpec, Observation, StepResult, VectorEnv
from envs.video import Keep, Overlay, VideoRecorder
from policies.api import PolicyOutput

FPS_WITHOUT_RATE = 20.0

log = logging.getLogger(__name__)


@config
class RecordConfig:
    """episodes: filmed before and after training, every control step (0: none). fps: of these videos.
    every: film every k-th training episode of the filmed environments, one picture a decision (0: none).
    envs: how many environments are filmed so. tiled: in one picture together, instead of a file an episode.
    keep: which training episodes stay, in films and in the dataset.
    dataset: folder to record finished training episodes in (null: none); needs a policy that decides every step."""

    episodes: int = 4
    fps: int = 20
    every: int = 0
    envs: int = 4
    tiled: bool = False
    keep: Literal["all", "successes", "failures"] = "all"
    dataset: str | None = None

    def __post_init__(self) -> None:
        if self.episodes < 0 or self.fps < 1:
            raise ValueError(f"episodes is {self.episodes}, fps {self.fps}; expected episodes >= 0 and fps >= 1")
        if self.every < 0 or self.envs < 1:
            raise ValueError(f"every is {self.every}, envs {self.envs}; expected every >= 0 and envs >= 1")
        if self.tiled and self.keep != "all":
            raise ValueError(f"a tiled video mixes outcomes, so keep={self.keep} needs tiled=false")


@dataclasses.dataclass(frozen=True)
class RecorderPlan:
    """What a worker records and where: films in the folder `videos`, the dataset as `options` says with `origin`."""

    options: RecordConfig
    videos: Path
    origin: dict[str, Any]


def prepared(env: EnvConfig, options: RecordConfig | None) -> EnvConfig:
    """The environment as it must be made so that it can be filmed: pictures for people where the policy sees none."""
    if options is None or not options.every or getattr(env, "shows_images", False):
        return env
    return registry.with_rendering(env)


def changed_options(env: EnvConfig) -> dict[str, Any]:
    """The environment's id and the options that are not the usual ones, for the description of a dataset."""
    usual = type(env)(id=env.id)
    values = dataclasses.asdict(env)
    return {"id": env.id} | {
        name: value for name, value in values.items() if getattr(usual, name) != getattr(env, name)
    }


class RolloutRecorder:
    """Notes what the environments of one worker do.

    env_ids: int [num_envs], the environments' numbers among all workers'; total: how many there are in all. Between
    `before` and `after` of a slot lies the execution of its chunk. rank, world: of the worker.

    Films are for looking at: where they cannot be made the run goes on without. A dataset may be what the run is for,
    so its faults end it.
    """

    def __init__(
        self, plan: RecorderPlan, env: VectorEnv, env_ids: np.ndarray, total: int, rank: int, world: int, chunk: int
    ) -> None:
        self._options, self._env, self._ids, self._total = plan.options, env, env_ids, total
        self._spec: EnvSpec = env.spec
        if plan.options.keep != "all" and not env.spec.has_success:
            raise ConfigurationError(
                f"record.keep={plan.options.keep} cannot be told: {env.spec.id} does not say what a success is. "
                "Use record.keep=all."
            )
        filmed = [row for row, number in enumerate(env_ids.tolist()) if number < plan.options.envs]
        self._cells = {row: cell for cell, row in enumerate(filmed)} if plan.options.every else {}
        self._recorder: VideoRecorder | None = None
        self._filming = bool(self._cells)
        if self._cells:
            tile = len(filmed) if plan.options.tiled else None
            self._recorder = VideoRecorder(
                plan.videos if world == 1 else plan.videos / f"worker_{rank}",
                fps=max(1.0, plan.options.fps / chunk),  # a picture a decision: as fast as one a step would be
                tile=tile,
                every=plan.options.every,
                keep=Keep(plan.options.keep),
            )
        self._writer: DatasetWriter | None = None
        self._alone = contextlib.ExitStack()
        if plan.options.dataset is not None:
            folder = Path(plan.options.dataset)
            folder = folder if world == 1 else folder / f"worker_{rank}"
            self._writer = self._open_dataset(folder, plan.origin)
        self._building: dict[int, EpisodeBuilder] = {}
        self._shown: dict[int, tuple[torch.Tensor, str, int, list[float], float | None]] = {}
        self._steps = np.zeros(len(env_ids), dtype=np.int64)

    def before(self, rows: slice, observation: Observation, output: PolicyOutput) -> None:
        """What the environments `rows` show, and what is about to be done."""
        if self._writer is not None and output.actions.shape[1] > 1:
            raise ConfigurationError(
                f"record.dataset needs every control step, but the policy decides {output.actions.shape[1]} at once "
                "and sees only their end. Use policy.chunk=1, or record afterwards: embodied eval RUN --dataset DIR"
            )
        numbers = range(rows.start, rows.stop)
        if self._writer is not None:
            for place, row in enumerate(numbers):
                action = output.actions[place, 0]
                self._building.setdefault(row, EpisodeBuilder()).see(observation, place, action, action)
        if self._recorder is None or not self._filming:
            return
        watched = [row for row in numbers if row in self._cells and self._recorder.wants(self._cells[row])]
        if not watched:
            return
        pictures = self._pictures(watched, rows.start, observation)
        for row, picture in zip(watched, pictures, strict=True):
            place = row - rows.start
            value = None if output.value is None else float(output.value[place, 0])
            action = output.actions[place, 0].tolist()
            self._shown[row] = (picture, observation.instruction[place], int(self._steps[row]), action, value)

    def after(self, rows: slice, result: StepResult, rounds: np.ndarray) -> None:
        """What came of it. rounds: int [num_envs], the round that each environment's episode belonged to."""
        for place, row in enumerate(range(rows.start, rows.stop)):
            over, lost = bool(result.ended[place]), bool(result.failed[place])
            if not over and not lost and not bool(result.valid[place].any()):
                # it waits for a new episode
                self._building.pop(row, None)
                self._shown.pop(row, None)
                continue
            self._steps[row] += int(result.valid[place].sum())
            if row in self._shown:
                self._film(row, place, result)
            if over:
                outcome = bool(result.episodes.success_once[place]) if self._spec.has_success else None
                self._end_film(row, outcome, int(rounds[row]))
            if self._writer is not None:
                self._note(row, place, result, int(rounds[row]), over, lost)
            if over or lost:
                self._steps[row] = 0
            if lost:
                self._end_film(row, None, int(rounds[row]))

    def abandon(self, rounds: np.ndarray) -> None:
        """The episodes under way are not finished; all environments start new ones."""
        for row in self._cells:
            if self._steps[row]:
                self._end_film(row, None, int(rounds[row]))
        self._building.clear()
        self._steps[:] = 0

    def close(self) -> None:
        """Finish every file; safe to call twice."""
        if self._writer is not None:
            self._writer.close()
        self._alone.close()
        if self._recorder is not None:
            try:
                self._recorder.close()
            except (WorkerError, DeadlineExceeded) as error:  # the run is over and well; only its films are not
                if self._filming:
                    log.warning("%s", error)
                self._filming = False

    def _open_dataset(self, folder: Path, origin: dict[str, Any]) -> DatasetWriter:
        """Nobody else writes the folder until `close`."""
        with contextlib.suppress(OSError):  # the writer says it better
            folder.mkdir(parents=True, exist_ok=True)
            self._alone.enter_context(writing_alone(folder))
        try:
            return DatasetWriter(folder, self._spec, self._spec.control_hz or FPS_WITHOUT_RATE, origin)
        except BaseException:
            self._alone.close()
            raise

    def _film_with(self, do: Callable[[], object]) -> None:
        """Have the recorder do something, unless it failed before."""
        if not self._filming:
            return
        try:
            do()
        except (WorkerError, DeadlineExceeded) as error:
            log.warning("filming has stopped, and the run goes on without: %s", error)
            self._filming = False

    def _end_film(self, row: int, outcome: bool | None, number: int) -> None:
        if self._recorder is None or row not in self._cells:
            return
        recorder, cell = self._recorder, self._cells[row]
        self._film_with(lambda: recorder.end_episode(cell, outcome, self._name(row, number)))

    def _pictures(self, rows: list[int], start: int, observation: Observation) -> list[torch.Tensor]:
        if observation.images is None:
            return list(self._env.render(rows))
        # cameras side by side
        return [torch.cat(list(observation.images[row - start]), dim=1) for row in rows]

    def _name(self, row: int, number: int) -> str | None:
        if self._options.tiled:
            return None
        return f"env{self._ids[row]:04d}_episode{number:05d}"

    def _film(self, row: int, place: int, result: StepResult) -> None:
        picture, instruction, step, action, value = self._shown.pop(row)
        if self._recorder is None or not self._filming:
            return
        recorder, over = self._recorder, bool(result.ended[place])
        succeeded = bool(result.episodes.success_once[place])
        known = self._spec.has_success and (succeeded or over)
        reward = float(result.reward[place].sum())
        shown = succeeded if known else None
        overlay = Overlay(instruction, step, reward, shown, action, value)
        cell = self._cells[row]
        self._film_with(lambda: recorder.add(cell, picture, overlay))
        if over and result.final_observation is not None and result.final_observation.images is not None:
            last = result.final_rows.tolist().index(place)
            end = torch.cat(list(result.final_observation.images[last]), dim=1)
            said = dataclasses.replace(overlay, step=int(self._steps[row]), action=None)
            self._film_with(lambda: recorder.add(cell, end, said))

    def _note(self, row: int, place: int, result: StepResult, number: int, over: bool, lost: bool) -> None:
        assert self._writer is not None
        building = self._building[row]
        building.feel(result.reward[place, 0], result.success[place, 0])
        if not over and not lost:
            return
        del self._building[row]
        # an episode that was under way when the recording began lacks its beginning
        if lost or building.steps != int(result.episodes.length[place]):
            return
        assigned = result.episodes.assignments
        episode = building.episode(
            (int(assigned.task[place]), int(assigned.initial_state[place]), int(assigned.seed[place]))
        )
        attempt = number * self._total + int(self._ids[row])
        wanted = {"all": True, "successes": episode.succeeded, "failures": not episode.succeeded}[self._options.keep]
        (self._writer.add if wanted else self._writer.reject)(attempt, episode)
