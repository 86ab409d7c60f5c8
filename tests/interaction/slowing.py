"""A pole whose simulation becomes slow once all environments together have taken so many steps.

A file says that it is slow, so that it stays slow in whatever process it is simulated; its path and the number of steps
come by environment variables."""

import os
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

SLOW_SECONDS = 16e-3


class SlowingPole(CartPoleEnv):
    taken = 0

    def step(self, action):
        flag = Path(os.environ["SLOWING_POLE_FLAG"])
        SlowingPole.taken += 1
        if SlowingPole.taken == int(os.environ["SLOWING_POLE_STEPS"]):
            flag.touch()
        if flag.exists():
            time.sleep(SLOW_SECONDS)
        return super().step(action)


gymnasium.register("SlowingPole-v0", entry_point=SlowingPole, max_episode_steps=500)
