"""A pole that notes where it is simulated: a file for every environment, in the folder that PLACED_POLE_NOTES names."""

import json
import os
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class PlacedPole(CartPoleEnv):
    made = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        PlacedPole.made += 1
        note = {"process": os.getpid(), "parent": os.getppid(), "cores": sorted(os.sched_getaffinity(0))}
        file = Path(os.environ["PLACED_POLE_NOTES"]) / f"{os.getpid()}_{PlacedPole.made}.json"
        file.write_text(json.dumps(note))


gymnasium.register("PlacedPole-v0", entry_point=PlacedPole, max_episode_steps=500)
