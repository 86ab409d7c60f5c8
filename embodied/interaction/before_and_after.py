"""Two films of the same episodes, of the untrained and of the trained policy, and both side by side."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError
from embodied.interaction.recipe import Recipe
from embodied.interaction.recording import Recording, film, recording_env
from embodied.random import derive_seed
from embodied.runs.folder import RunFolder
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
        result["saved_policy"] = compare_with_run(after, folder, env.spec.has_success, say)
    folder.write_result(result)


def compare_with_run(saved: Recording, folder: RunFolder, has_success: bool, say: Any) -> dict[str, int]:
    """Whether the policy that was saved, loaded anew, does in its filmed episodes what the run's last evaluation of the
    weights in memory did in the same ones. Says it, and warns where most of them ended otherwise.

    Returns the number of `episodes` and how many were `alike`: the same success, or, where there is none, a return
    within a tenth. A few may differ in their last digits, and in what comes of them.
    """
    evaluated = json.loads(folder.evaluation.read_text())["episodes"][: saved.episodes]
    alike = 0
    for (success, total), episode in zip(saved.outcomes, evaluated, strict=False):
        if has_success:
            alike += success == episode["success_once"]
        else:
            alike += abs(total - episode["returns"]) <= 0.1 * max(abs(total), abs(episode["returns"]))
    text = f"the saved policy, loaded anew, ended {alike} of these {len(evaluated)} episodes as the last evaluation did"
    if 2 * alike < len(evaluated):
        text = f"warning: {text}: what was saved may not be what was trained; compare with `embodied eval`"
    say(text)
    return {"episodes": len(evaluated), "alike": alike}


def _title(text: str, recording: Recording, spec: EnvSpec) -> str:
    return f"{text}: {recording.successes} of {recording.episodes}" if spec.has_success else text
