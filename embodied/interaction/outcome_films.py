"""Films of an evaluation's episodes, chosen by outcome: they are played again, and each gets a video."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from embodied.errors import DeadlineExceeded, RefusedInput, SimulatorError, WorkerError
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.playback import playback_env
from embodied.interaction.recipe import EvaluationConfig
from embodied.interaction.recording import film_episodes
from envs.api import EnvConfig
from policies import registry

_NAMES = {"failures": "failures", "successes": "successes", "all": "episodes"}


def film_outcomes(
    result: EvaluationResult,
    policy: Path,
    env: EnvConfig,
    options: EvaluationConfig,
    folder: Path,
    *,
    of: str,
    every: int,
    most: int,
    fps: int,
    device: str,
) -> dict[str, Any]:
    """Film the first `most` of every `every`-th "failures", "successes" or "all" in `folder`, whose earlier films go.

    Returns `films` of results.json: `of`; `episodes` with number, path relative to the folder's parent, and whether the
    film ends as the evaluation did; `missing`, why others are not there. Without a way to render there are none: the
    numbers stand.
    """
    meant = {"failures": (False,), "successes": (True,), "all": (False, True)}[of]
    wanted = [number for number, episode in enumerate(result.episodes) if bool(episode.success_once) in meant]
    spaced = wanted[::every]
    chosen, name = spaced[:most], _NAMES[of]
    for film in folder.glob("*.mp4"):  # of an earlier evaluation; whatever else is there is not ours
        film.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    if not chosen:
        return {"of": of, "episodes": [], "missing": f"{len(wanted)} {name} were not filmed." if wanted else ""}
    try:
        with playback_env(env, min(env.num_envs, len(chosen)), pictures=True) as played:
            films = film_episodes(registry.load(policy), played, options, chosen, folder, fps=fps, device=device)
    except (SimulatorError, DeadlineExceeded, RefusedInput, WorkerError) as error:
        return {
            "of": of,
            "episodes": [],
            "missing": f"There are no films: {error} `embodied doctor` shows what is missing.",
        }
    first = "The first " if every == 1 else ""
    more = (
        f"; --films {len(spaced)} films {'all' if every == 1 else 'all of these'}" if len(chosen) < len(spaced) else ""
    )
    left = f"{first}{len(chosen)} of {len(wanted)} {name}{more}."
    return {
        "of": of,
        "episodes": [
            {
                "episode": number,
                "path": os.path.relpath(films[number].path, folder.parent),
                "same": films[number].success == result.episodes[number].success_once,
            }
            for number in chosen
        ],
        "missing": left if len(wanted) > len(chosen) else "",
    }
