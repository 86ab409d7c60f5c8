"""Films of an evaluation's failures: the failed episodes are played again, and each gets a video."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from embodied.errors import DeadlineExceeded, SimulatorError
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.playback import playback_env
from embodied.interaction.recipe import EvaluationConfig
from embodied.interaction.recording import film_episodes
from envs.api import EnvConfig
from policies import registry


def film_failures(
    result: EvaluationResult,
    policy: Path,
    env: EnvConfig,
    options: EvaluationConfig,
    folder: Path,
    *,
    most: int,
    fps: int,
    device: str,
) -> dict[str, Any]:
    """Film the first `most` failures in `folder`, whose earlier films go; returns `films` of results.json.

    Its `episodes` have number, path relative to the folder's parent, and whether the film ends as the evaluation did;
    `missing` says why others are not there. Without a way to render there are none: the numbers stand.
    """
    failed = [number for number, episode in enumerate(result.episodes) if not episode.success_once]
    chosen = failed[:most]
    shutil.rmtree(folder, ignore_errors=True)
    if not chosen:
        return {"episodes": [], "missing": f"{len(failed)} failures were not filmed." if failed else ""}
    try:
        with playback_env(env, min(env.num_envs, len(chosen)), pictures=True) as played:
            films = film_episodes(registry.load(policy), played, options, chosen, folder, fps=fps, device=device)
    except (SimulatorError, DeadlineExceeded) as error:
        return {"episodes": [], "missing": f"There are no films: {error} `embodied doctor` shows what is missing."}
    left = f"The first {len(chosen)} of {len(failed)} failures; --films {len(failed)} films all."
    return {
        "episodes": [
            {
                "episode": number,
                "path": os.path.relpath(films[number].path, folder.parent),
                "same": films[number].success == result.episodes[number].success_once,
            }
            for number in chosen
        ],
        "missing": left if len(failed) > len(chosen) else "",
    }
