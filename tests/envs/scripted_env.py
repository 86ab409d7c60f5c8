"""A simulator whose right answers are known, and which can be told to misbehave through its actions.

The world counts. An environment's seed says where its episode ends: at step `seed % 100` (0: never), with success.
At count t the reward is t + action[0] / 4 and the state is [t, seed % 1000, task, last action[0]].
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time

import torch

from envs.api import ActionSpec, Assignments, Bounds, CameraSpec, EnvConfig, EnvSpec, Observation
from envs.batch import BatchEnv, BatchStep

SEGFAULT, HANG, NAN_REWARD, RAISE, NAN_STATE, KILL, NAP = 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0
STAY, LEAK = 8000.0, 9000.0
_LEAKED: list[bytes] = []


@dataclasses.dataclass(frozen=True)
class Habits:
    """How the scripted world differs from a sound one. gate: the file that STAY waits for."""

    episode_steps: int = 20
    images: bool = False
    privileged: bool = False
    exact_reset: bool = True
    claims_exact_reset: bool = True
    state_dtype: torch.dtype = torch.float32
    touches_neighbours: bool = False
    start_fault: str = ""
    gate: str = ""


class ScriptedBatch(BatchEnv):
    def __init__(self, habits: Habits, num_envs: int) -> None:
        _fail_to_start(habits.start_fault)
        self.habits = habits
        self.num_envs = num_envs
        self.count = torch.zeros(num_envs)
        self.seed = torch.zeros(num_envs, dtype=torch.int64)
        self.task = torch.zeros(num_envs, dtype=torch.int64)
        self.last = torch.zeros(num_envs)
        self.past = torch.zeros(num_envs)
        self.observed: list[list[int]] = []
        self.closed = False
        self.spec = EnvSpec(
            id="test/scripted",
            action=ActionSpec(Bounds.CONTINUOUS, 2, (-1.0, -1.0), (1.0, 1.0)),
            state_dim=4,
            cameras=(CameraSpec("front", 4, 6), CameraSpec("wrist", 4, 6)) if habits.images else (),
            privileged_dim=1 if habits.privileged else 0,
            instructions=("count", "count on"),
            episode_steps=habits.episode_steps,
            tasks=2,
            initial_states=(0, 0),
            exact_reset=habits.claims_exact_reset,
        )

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        if self.habits.touches_neighbours:
            self.count[:] += 1
        self.count[rows] = 0 if self.habits.exact_reset else self.past[rows]
        self.seed[rows] = assignments.seed
        self.task[rows] = assignments.task
        self.last[rows] = 0

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        for code in actions[active, 0].tolist():
            _misbehave(code, self.habits.gate)
        # environments that are not active go on too: nobody may look at what they do
        self.count = self.count + 1
        self.past = self.past + 0.5
        self.last = actions[:, 0].clone()
        reward = self.count + actions[:, 0] / 4
        reward[actions[:, 0] == NAN_REWARD] = float("nan")
        terminated = self.count == self.seed % 100
        return BatchStep(reward, terminated, torch.zeros(self.num_envs, dtype=torch.bool), terminated.clone())

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        index = torch.arange(self.num_envs) if rows is None else rows
        self.observed.append(index.tolist())
        count = self.count[index]
        state = torch.stack([count, self.seed[index] % 1000, self.task[index], self.last[index]], dim=1)
        state[self.last[index] == NAN_STATE, 1] = float("nan")
        shape = (len(index), 2, 4, 6, 3)
        return Observation(
            state=state.to(self.habits.state_dtype),
            instruction_ids=self.task[index].clone(),
            instruction=[self.spec.instructions[i] for i in self.task[index].tolist()],
            images=count[:, None, None, None, None].to(torch.uint8).expand(shape) if self.habits.images else None,
            privileged=(count * 10)[:, None] if self.habits.privileged else None,
        )

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        return self.count[rows][:, None, None, None].to(torch.uint8).expand(len(rows), 8, 8, 3).clone()

    def close(self) -> None:
        self.closed = True


def make_batch(habits: Habits, num_envs: int) -> ScriptedBatch:
    return ScriptedBatch(habits, num_envs)


def config(num_envs: int = 4, **options: object) -> EnvConfig:
    return EnvConfig(id="test/scripted", num_envs=num_envs, **options)


def _misbehave(code: float, gate: str) -> None:
    if code == SEGFAULT:
        os.kill(os.getpid(), signal.SIGSEGV)
    if code == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if code == HANG:
        time.sleep(1000)
    if code == NAP:
        time.sleep(1.5)
    while code == STAY and not os.path.exists(gate):
        time.sleep(0.01)
    if code == LEAK:
        _LEAKED.append(b"1" * (150 << 20))
    if code == RAISE:
        raise ValueError("the scripted world refuses")


def _fail_to_start(fault: str) -> None:
    if fault == "raise":
        raise ValueError("no such mesh")
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(1000)
    if fault == "ask":
        input("Do you want to download 2 GB? ")
    if fault == "refuse":
        from embodied.errors import AssetError

        raise AssetError("the mesh is missing; run the fetch command")
