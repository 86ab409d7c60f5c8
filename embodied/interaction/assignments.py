"""Which world each episode starts in: a pure function of (run seed, round, environment index).

Environments of one group share the assignment of a round, so that their attempts differ in the policy's noise alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from embodied.random import derive_seed, philox4x32
from envs.api import Assignments, EnvSpec

# simulators seed 32-bit generators; stay within what all of them accept
_SEED_BITS = 31


def draw_assignments(seed: int, streams: np.ndarray, rounds: np.ndarray, spec: EnvSpec) -> Assignments:
    """Assignments for N (stream, round) pairs: task, stored initial state (-1 where a task has none) and world seed."""
    counter = np.zeros((4, len(streams)), dtype=np.uint64)
    counter[0] = streams
    counter[1] = rounds
    words = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)).astype(np.int64)
    task = words[0] % spec.tasks
    states = np.asarray(spec.initial_states, dtype=np.int64)[task]
    initial = np.where(states > 0, words[1] % np.maximum(states, 1), -1)
    return Assignments(
        torch.from_numpy(task), torch.from_numpy(initial), torch.from_numpy(words[2] & ((1 << _SEED_BITS) - 1))
    )


@dataclasses.dataclass(frozen=True)
class TrainingAssignments:
    """Endless assignments for training; environment e at its round r is in group `e // group_size`."""

    seed: int
    spec: EnvSpec
    group_size: int = 1

    def at(self, envs: np.ndarray, rounds: np.ndarray) -> Assignments:
        """Assignments of environments `envs` int [B] at their `rounds` int [B]."""
        return draw_assignments(derive_seed(self.seed, "assign"), envs // self.group_size, rounds, self.spec)

    def group_ids(self, envs: np.ndarray, rounds: np.ndarray) -> torch.Tensor:
        """int64 [B]: equal exactly for the environments that share an assignment."""
        return torch.from_numpy((rounds.astype(np.int64) << 32) | (envs.astype(np.int64) // self.group_size))


def left_out(episodes: int, spec: EnvSpec) -> str | None:
    """What `episodes` do not show of an environment with several tasks, in words; None where all are played alike."""
    if episodes < spec.tasks:
        return (
            f"{episodes} episodes play tasks 0 to {episodes - 1} only, of {spec.tasks} of {spec.id}; it takes "
            f"{spec.tasks} to play them all"
        )
    if episodes % spec.tasks:
        least = episodes // spec.tasks
        return (
            f"{episodes} episodes play {episodes % spec.tasks} of {spec.tasks} tasks {least + 1} times and the others "
            f"{least} times; a multiple of {spec.tasks} would weigh them alike"
        )
    return None


def evaluation_assignments(seed: int, episodes: int, spec: EnvSpec) -> Assignments:
    """A fixed list of `episodes` different (task, initial state, seed) for evaluation.

    Tasks take turns; each task goes through its stored initial states in order and then starts over with new seeds.
    """
    index = np.arange(episodes, dtype=np.int64)
    task = index % spec.tasks
    attempt = index // spec.tasks
    states = np.asarray(spec.initial_states, dtype=np.int64)[task]
    initial = np.where(states > 0, attempt % np.maximum(states, 1), -1)
    base = derive_seed(seed, "evaluate") & ((1 << _SEED_BITS) - 1)
    return Assignments(
        torch.from_numpy(task), torch.from_numpy(initial), torch.from_numpy((base + index) & ((1 << _SEED_BITS) - 1))
    )
