"""Training a policy by a recipe: the shared run loop with the embodied workload."""

from __future__ import annotations

from embodied.interaction.recipe import Recipe
from embodied.interaction.workload import EmbodiedWorkload
from embodied.runs.folder import RunFolder
from embodied.training import loop
from embodied.training.workload import Outcome


def train(recipe: Recipe, folder: RunFolder, *, command: str, resume: bool = False) -> Outcome:
    """Train `recipe` in `folder`; see `embodied.training.loop.train`."""
    return loop.train(EmbodiedWorkload(recipe), folder, command=command, resume=resume)
