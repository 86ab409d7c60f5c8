"""Pools of scripted worlds, and small helpers of the tests that use them."""

from __future__ import annotations

import functools
import pathlib
import time

import scripted_env as world
import torch

from envs.api import Assignments, StepResult
from envs.pool import PoolVectorEnv

HERE = str(pathlib.Path(__file__).parent)


ROOT = str(pathlib.Path(__file__).parents[2])


def pool(num_envs: int = 4, habits: world.Habits | None = None, **options: object) -> PoolVectorEnv:
    options = {"processes": 2, **options}
    return PoolVectorEnv(
        functools.partial(world.make_batch, habits or world.Habits()), world.config(num_envs, **options)
    )


def seeds(*values: int) -> Assignments:
    return Assignments.from_seeds(values)


def with_code(num_envs: int, steps: int, row: int, code: float) -> torch.Tensor:
    actions = torch.zeros(num_envs, steps, 2)
    actions[row, -1, 0] = code
    return actions


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def await_gone(pids: list[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(is_gone(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def fields(result: StepResult) -> list[object]:
    final = result.final_observation
    tensors = [result.reward, result.terminated, result.truncated, result.success, result.valid, result.ended]
    tensors += [result.final_rows, result.episodes.length, result.episodes.returns, result.observation.images]
    shown = [result.observation.instruction, None if final is None else final.images.tolist()]
    return [tensor.tolist() for tensor in tensors] + shown
