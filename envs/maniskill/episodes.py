"""Starts episodes in some environments of a batch, each a function of its own seed alone.

ManiSkill itself draws a whole batch from one generator that is seeded with the first environment's seed, so that what
an environment gets depends on its place. Here every environment is initialised by itself.
"""

from __future__ import annotations

import functools

import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.utils.randomization.batched_rng import BatchedRNG

from envs.maniskill.kinematics import controllers_of


class SeededEpisodes(BaseEnv):
    """Mixed in before a task class on a batched backend, CPU or CUDA."""

    def _forget(self, rows: list[int]) -> None:
        """Drop what the physics engine remembers of the past, where that is possible."""

    def start_episodes(self, rows: list[int], seeds: list[int]) -> None:
        """Begin new episodes in the environments `rows`; the draws are those of a stock single environment that is
        reset with the same seed."""
        scene, every = self.scene, self.scene._reset_mask
        index = torch.tensor(rows, device=self.device)
        chosen = torch.zeros_like(every)
        chosen[index] = True
        self._forget(rows)
        scene._reset_mask = chosen
        self._elapsed_steps[index] = 0
        self._clear_sim_state()
        if self.agent is not None:
            self.agent.reset()
        with torch.random.fork_rng():
            for place, (row, seed) in enumerate(zip(rows, seeds, strict=True)):
                only = torch.zeros_like(every)
                only[row] = True
                scene._reset_mask = only
                self._episode_seed[row] = seed
                self._batched_episode_rng[[row]] = BatchedRNG.from_seeds([seed])
                self._episode_rng = self._batched_episode_rng.rngs[row]
                torch.manual_seed(seed)
                self._initialize_episode(index[place : place + 1], {})
        scene._reset_mask = chosen
        scene._gpu_apply_all()
        scene.px.gpu_update_articulation_kinematics()
        scene._gpu_fetch_all()
        # ManiSkill resets the controllers of all environments here, and with them the targets of running episodes
        for controller in controllers_of(self.agent):
            controller.reset()
        scene._reset_mask = torch.ones_like(every)


@functools.cache
def cuda_task(task: type[BaseEnv]) -> type[BaseEnv]:
    """`task` on GPU physics, with episodes seeded one by one."""
    return type(f"Cuda{task.__name__}", (SeededEpisodes, task), {"__module__": __name__})
