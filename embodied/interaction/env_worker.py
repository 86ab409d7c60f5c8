"""The environment worker: steps its environments, slot by slot, and forms trajectories and evaluation episodes.

While the policy decides for one slot, the simulators of the other slots run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from embodied.errors import CheckpointError
from embodied.interaction.assignments import TrainingAssignments
from embodied.interaction.messages import Collected, Decision, FinishedEpisode, Question, Rollout
from embodied.interaction.rollout_recorder import RecorderPlan, RolloutRecorder, prepared
from embodied.interaction.trajectory import Trajectory, TrajectoryBuilder
from embodied.scheduler import Input, Output, Worker, WorkerContext
from embodied.scheduler.plan import StagePlan
from embodied.scheduler.routing import balanced_range
from embodied.scheduler.tasks import together
from embodied.scheduler.trace import BUSY
from envs import registry
from envs.api import Assignments, AutoReset, EnvConfig, EnvSpec, Observation, StepResult, VectorEnv
from envs.pool.losses import MAX_LOSSES, deadly_assignments

# how long to leave the processor to the simulators between two looks at whether they are done
_NAP_SECONDS = 5e-5


@dataclasses.dataclass(frozen=True)
class EnvWorkerOptions:
    """env: the environments of all workers of the stage together; each worker has a balanced, contiguous part of them,
    in whole groups for every slot of the plan. group_size: environments of one GRPO group.
    fresh: every rollout starts with new episodes instead of going on with those under way.
    record: what of training to film and to keep as a dataset; None: nothing."""

    env: EnvConfig
    group_size: int = 1
    fresh: bool = False
    record: RecorderPlan | None = None


class EnvWorker(Worker):
    """Owns a VectorEnv. It works in the slots of its plan, and hands its trajectory on in pieces of the plan's
    granularity, in environments."""

    follows = frozenset({"granularity", "slots", "processes"})

    questions = Output(Question)
    decisions = Input(Decision)
    trajectories = Output(Trajectory)

    def __init__(self, context: WorkerContext, options: EnvWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: EnvWorkerOptions = options
        self._episodes: list[FinishedEpisode] = []
        self._observation: Observation | None = None  # where the episodes under way stand; None: none are
        self._recorder: RolloutRecorder | None = None

    async def setup(self, announced: Mapping[str, Any]) -> EnvSpec:
        """Start the simulators and announce what they are."""
        env, slots = self.options.env, self.context.slots
        own = environments_of(self.options, self.context.rank, self.context.world, slots)
        if self.options.record is not None:
            env = prepared(env, self.options.record.options)
        with self.timed("start simulators"):
            self.env: VectorEnv = registry.make(dataclasses.replace(env, num_envs=len(own), slots=slots))
        self.assignments = TrainingAssignments(self.context.seed, self.env.spec, self.options.group_size)
        self._indices = np.array(own)  # among the environments of all workers
        self._rounds = np.full(self.env.num_envs, -1, dtype=np.int64)
        return self.env.spec

    async def close(self) -> None:
        """Finish what was recorded and stop the simulators."""
        try:
            if self._recorder is not None:
                self._recorder.close()
        finally:
            if hasattr(self, "env"):
                self.env.close()

    async def collect(self, rollout: Rollout) -> Collected:
        """Act for `rollout.decisions` decisions in every environment and hand the trajectory on."""
        if self.options.fresh or self._observation is None:
            self._observation = self._start_episodes()
        builder = TrajectoryBuilder(rollout.decisions, self.env.num_envs)
        self._episodes = []
        ends = await together(
            self._collect_slot(slot, rollout, builder, self._observation.select(self.env.rows(slot)))
            for slot in range(self.env.slots)
        )
        self._observation = _join(ends)
        await self.questions.end()
        trajectory = builder.finish()
        await self.trajectories.put(trajectory, key=self.context.rank)
        await self.trajectories.end()
        self.env.recycle()
        return Collected(tuple(self._episodes), int(trajectory.valid.sum()))

    async def _collect_slot(
        self, slot: int, rollout: Rollout, builder: TrajectoryBuilder, observation: Observation
    ) -> Observation:
        rows = self.env.rows(slot)
        streams = self._indices[rows]
        key = (self.context.rank, slot)
        final_rows: torch.Tensor | None = None
        final_observation: Observation | None = None
        for t in range(rollout.decisions + 1):
            deciding = t < rollout.decisions
            steps = np.full(len(streams), rollout.iteration * rollout.decisions + t)
            question = Question(observation, streams, steps, final_observation, deciding)
            await self.questions.put(question, key)
            decision: Decision = await self.decisions.get(key)
            if final_rows is not None:
                builder.add_final(t - 1, final_rows, decision.final_values)
            if not deciding:
                builder.add_last(rows, decision)
                break
            assert decision.output is not None
            groups = self.assignments.group_ids(streams, self._rounds[rows])
            recorder = self._recording(decision.output.actions.shape[1])
            if recorder is not None:
                with self.timed("record"):
                    recorder.before(rows, observation, decision.output)
            result = await self._act(slot, decision.output.actions)
            if recorder is not None:
                with self.timed("record"):
                    recorder.after(rows, result, self._rounds)
            builder.add(t, rows, decision, self._without_ignored_ends(result), torch.from_numpy(streams), groups)
            self._note_episodes(result, rows)
            observation = result.observation
            final_observation = result.final_observation
            final_rows = result.final_rows + rows.start if final_observation is not None else None
        return observation.clone()

    async def evaluate(self, assignments: Assignments) -> list[FinishedEpisode]:
        """Play this worker's part of `assignments` exactly once and return the episodes in that order.

        Environments take the next assignment as they become free. Noise belongs to the assignment, not to the
        environment, so the answer does not depend on how many environments there are. Episodes under way for training
        are set aside, and go on where they were: how often is evaluated must not change what is learnt.

        Raises SimulatorError for an assignment that loses its simulator again and again.
        """
        part = balanced_range(self.context.rank, self.context.world, len(assignments))
        assignments = assignments[slice(part.start, part.stop)]
        total = len(assignments)
        if not total:  # fewer episodes than workers
            await self.questions.end()
            return []
        under_way = None
        if self._observation is not None and not self.options.fresh:
            under_way = self.env.state_dict()
        playing = np.full(self.env.num_envs, -1)  # index into assignments; -1: has none left
        playing[: min(total, self.env.num_envs)] = np.arange(min(total, self.env.num_envs))
        queue = iter(range(self.env.num_envs, total))
        done: dict[int, FinishedEpisode] = {}
        observation = self.env.reset(assignments[torch.from_numpy(np.maximum(playing, 0))])
        decided = np.zeros(self.env.num_envs, dtype=np.int64)
        losses = np.zeros(self.env.num_envs, dtype=np.int64)  # of simulators, by what each environment plays now
        while len(done) < total:
            results = await together(
                self._evaluate_slot(
                    slot, observation.select(self.env.rows(slot)), part.start + np.maximum(playing, 0), decided
                )
                for slot in range(self.env.slots)
            )
            decided += 1
            finished = []
            for slot, result in enumerate(results):
                offset = self.env.rows(slot).start
                for row in range(self.env.slot_size):
                    index = int(playing[offset + row])
                    over = bool(result.ended[row])
                    if index < 0 or not (over or bool(result.failed[row])):
                        continue
                    if over:
                        done[index] = _finished(result, row)
                        playing[offset + row] = next(queue, -1)
                        losses[offset + row] = 0
                    else:
                        losses[offset + row] += 1
                    finished.append(offset + row)  # a failed simulator plays its assignment again
            deadly = playing[losses >= MAX_LOSSES]
            if len(deadly):
                raise deadly_assignments(self.env.spec.id, assignments[torch.from_numpy(deadly)].stack().tolist())
            observation = _join([result.observation for result in results])
            if finished and len(done) < total:
                mask = torch.zeros(self.env.num_envs, dtype=torch.bool)
                mask[finished] = True
                decided[finished] = 0
                observation = self.env.reset(assignments[torch.from_numpy(np.maximum(playing, 0))], mask)
        await self.questions.end()
        with self.timed("go back to training"):
            self._observation = None if under_way is None else self.env.load_state_dict(under_way)
        return [done[index] for index in range(total)]

    async def _evaluate_slot(
        self, slot: int, observation: Observation, streams: np.ndarray, decided: np.ndarray
    ) -> StepResult:
        rows = self.env.rows(slot)
        key = (self.context.rank, slot)
        await self.questions.put(Question(observation, streams[rows], decided[rows]), key)
        decision: Decision = await self.decisions.get(key)
        assert decision.output is not None
        return await self._act(slot, decision.output.actions)

    async def _act(self, slot: int, actions: torch.Tensor) -> StepResult:
        """Execute a chunk; the event loop serves the other slots meanwhile."""
        rows = self.env.rows(slot)
        following = None
        if self.env.auto_reset is AutoReset.SAME_STEP:
            following = self.assignments.at(self._indices[rows], self._rounds[rows] + 1)
        with self.timed("send"):
            self.env.send(actions, slot, following)
        if self.env.slots > 1:
            begin = time.perf_counter()
            while not self.env.ready(slot) and time.perf_counter() - begin < self.options.env.step_seconds:
                await asyncio.sleep(0)
                if not self.env.ready(slot):
                    time.sleep(_NAP_SECONDS)
            # the simulators work meanwhile, for one slot or for several
            self.context.trace.add(self.name, "simulate", BUSY, begin, time.perf_counter())
        with self.timed("simulate" if self.env.slots == 1 else "receive"):
            return self.env.recv(slot)

    def _recording(self, chunk: int) -> RolloutRecorder | None:
        """The recorder, made when it is first known how many actions a decision has."""
        plan = self.options.record
        if plan is not None and self._recorder is None:
            rank, world, total = self.context.rank, self.context.world, self.options.env.num_envs
            self._recorder = RolloutRecorder(plan, self.env, self._indices, total, rank, world, chunk)
        return self._recorder

    def _without_ignored_ends(self, result: StepResult) -> StepResult:
        """Terminations that were recorded but ended nothing are none to the learner."""
        if not self.options.env.ignore_terminations:
            return result
        return dataclasses.replace(result, terminated=torch.zeros_like(result.terminated))

    def _start_episodes(self) -> Observation:
        if self._recorder is not None:
            self._recorder.abandon(self._rounds)
        self._rounds += 1
        return self.env.reset(self.assignments.at(self._indices, self._rounds))

    def _note_episodes(self, result: StepResult, rows: slice) -> None:
        if len(result.final_rows):
            self._episodes += [_finished(result, row) for row in result.final_rows.tolist()]
        if self.env.auto_reset is AutoReset.SAME_STEP:
            self._rounds[rows] += (result.ended | result.failed).numpy()

    @classmethod
    def divide_state(
        cls, parts: list[dict[str, Any]], placed: StagePlan, options: EnvWorkerOptions
    ) -> list[dict[str, Any]]:
        """Rounds are each environment's own; episodes under way are in their worker's simulators."""
        world = len(placed.devices)
        wanted = [len(environments_of(options, rank, world, placed.slots)) for rank in range(world)]
        if wanted == [len(part["rounds"]) for part in parts]:
            return parts
        if any("env" in part for part in parts):
            had = ", ".join(str(len(part["rounds"])) for part in parts)
            raise CheckpointError(
                f"episodes are under way in {len(parts)} env worker(s) with {had} environments, and cannot go on in "
                f"{world} with {', '.join(map(str, wanted))}; use the run's own plan"
            )
        return [{"rounds": rounds} for rounds in torch.cat([part["rounds"] for part in parts]).split(wanted)]

    def state_dict(self) -> dict[str, Any]:
        """The round of every environment and, if episodes are under way, how to get back to where they stand."""
        state: dict[str, Any] = {"rounds": torch.from_numpy(self._rounds.copy())}
        if self._observation is not None and not self.options.fresh:
            state["env"] = self.env.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._rounds = state["rounds"].numpy().copy()
        self._observation = self.env.load_state_dict(state["env"]) if "env" in state else None


def environments_of(options: EnvWorkerOptions, rank: int, world: int, slots: int) -> range:
    """A worker's part of all environments: in order, in whole groups for every slot."""
    unit = slots * options.group_size
    own = balanced_range(rank, world, options.env.num_envs // unit)
    return range(own.start * unit, own.stop * unit)


def _finished(result: StepResult, row: int) -> FinishedEpisode:
    episodes = result.episodes
    return FinishedEpisode(
        task=int(episodes.assignments.task[row]),
        initial_state=int(episodes.assignments.initial_state[row]),
        seed=int(episodes.assignments.seed[row]),
        length=int(episodes.length[row]),
        returns=float(episodes.returns[row]),
        success_once=bool(episodes.success_once[row]),
        success_at_end=bool(episodes.success_at_end[row]),
    )


def _join(parts: list[Observation]) -> Observation:
    if len(parts) == 1:
        return parts[0]
    return Observation(
        state=torch.cat([p.state for p in parts]),
        instruction_ids=torch.cat([p.instruction_ids for p in parts]),
        instruction=[text for p in parts for text in p.instruction],
        images=None if parts[0].images is None else torch.cat([p.images for p in parts]),
        privileged=None if parts[0].privileged is None else torch.cat([p.privileged for p in parts]),
    )
