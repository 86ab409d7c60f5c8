"""Two films of the same episodes, of the untrained and of the trained policy, and both side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError
from embodied.interaction.recipe import Recipe
from embodied.interaction.recording import Recording, film, recording_env
from embodied.random import derive_seed
from embodied.runs.progress import spoken_time
from embodied.training.workload import Outcome
from envs.api import EnvSpec
from envs.video import side_by_side
from policies import registry as policy_registry


def film_before_and_after(outcome: Outcome, recipe: Recipe, say: Any) -> None:
    """Film the untrained and the trained policy in the same episodes; adds the videos to result.json.

    Without a way to render, says why and leaves the videos out: the training stands.
    """
    if recipe.record.episodes == 0:
        return
    folder, result = outcome.folder, outcome.result
    say(f"filming {recipe.record.episodes} episodes before and after training ...")
    began = time.monotonic()
    try:
        with recording_env(recipe.env, recipe.record.episodes) as env:
            seed = derive_seed(recipe.seed, "policy")
            untrained = policy_registry.build(recipe.policy, policy_registry.interface_of(env.spec), seed=seed)
            trained = policy_registry.load(Path(result["checkpoint"]) / "policy")
            options = {"fps": recipe.record.fps, "device": recipe.device(), "seed": recipe.seed}
            before = film(untrained, env, recipe.evaluation, folder.videos, "before", **options)
            after = film(trained, env, recipe.evaluation, folder.videos, "after", **options)
        titles = (_title("before training", before, env.spec), _title("after training", after, env.spec))
        both = side_by_side(before.path, after.path, folder.videos / "before_and_after.mp4", titles)
    except (EmbodiedError, OSError) as error:  # the training is done, whatever becomes of its film
        say(f"warning: no videos: {error} `embodied doctor` shows what is missing.")
        result["videos_missing"] = str(error)
    else:
        result["videos"] = {"before": str(before.path), "after": str(after.path), "both": str(both)}
        say(f"filmed in {spoken_time(time.monotonic() - began)}")
    folder.write_result(result)


def _title(text: str, recording: Recording, spec: EnvSpec) -> str:
    return f"{text}: {recording.successes} of {recording.episodes}" if spec.has_success else text
