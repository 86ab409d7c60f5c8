"""Recipes: found by name or by file, composed by Hydra from shared groups, overridden from the command line.

A recipe is a YAML file whose defaults list picks one file of each group (`env/`, `policy/`, `algorithm/`, `learner/`,
`cluster/`, `logger/`). Any key of the records may be overridden, whether or not the YAML mentions it; strict parsing
afterwards refuses what no record knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import configs
from embodied.errors import ConfigurationError, suggest

CONFIGS = Path(configs.__file__).parent


def recipe_names() -> list[str]:
    """The recipes that ship, by name."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


NOTES = ("needs", "reached")
"""Keys of a recipe file that are for its reader alone: the machine and time it needs, and what it reached here."""


def recipe_description(name: str) -> str:
    """One line on a recipe that ships."""
    return str(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()).get("description", ""))


def recipe_notes(name: str) -> dict[str, str]:
    """What a recipe that ships says of itself under `needs` and `reached`, where it does."""
    values = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    return {note: str(values[note]) for note in NOTES if note in values}


def find_recipe(recipe: str) -> Path:
    """The file of a recipe given by name or by path. Raises ConfigurationError, listing the recipes there are."""
    named = CONFIGS / f"{recipe}.yaml"
    if named.is_file():
        return named
    path = Path(recipe).expanduser()
    if path.is_file():
        if path.suffix != ".yaml":
            raise ConfigurationError(f"the recipe file {path} must end in .yaml, as Hydra expects; rename it")
        return path.resolve()
    looked = (
        f"there is no file {path}" if "/" in recipe or recipe.endswith(".yaml") else "nor is there a file of that name"
    )
    raise ConfigurationError(f"Unknown recipe {recipe!r}; {looked}. " + suggest(recipe, recipe_names(), noun="recipes"))


def compose_recipe(recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as plain nested dicts, with interpolations resolved.

    `overrides` are Hydra overrides (`key=value`, `group=choice`, `~key`). Raises ConfigurationError for what cannot be
    composed: unknown recipe or group choice, malformed override or YAML.
    """
    if isinstance(overrides, str):
        raise ConfigurationError(f"overrides is the text {overrides!r}; expected a list of them: [{overrides!r}]")
    path = find_recipe(recipe)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(path.parent), version_base="1.3"):
            search = [] if path.parent == CONFIGS else [f"hydra.searchpath=[file://{CONFIGS}]"]
            composed = compose(path.stem, overrides=[*search, *map(_as_override, overrides)])
            values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"recipe {recipe!r} cannot be composed: {_first_sentence(error)}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"recipe {path} must be a mapping of keys; it is a {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _as_override(text: str) -> str:
    """Let a plain `key=value` also set a key that the YAML leaves at its default; choices of groups stay."""
    if "=" not in text and not text.startswith("~"):
        raise ConfigurationError(f"override {text!r} is not of the form key=value (or ~key); e.g. env.num_envs=64")
    if text.startswith("plan="):
        text = f"cluster.{text}"  # what it stands for
    key, _, value = text.partition("=")
    if not key:
        raise ConfigurationError(f"override {text!r} has no key before the =")
    if key.lstrip("+~").split(".")[0] == "hydra":
        raise ConfigurationError(f"override {text!r}: the keys of hydra are not a recipe's; remove it")
    if not re.search(r"[\"\[{$]", value) and (
        value.count("'") == 1 or ("'" not in value and _BEYOND_HYDRA.search(value))
    ):
        # a word that its grammar has no letters for, such as a path with an umlaut, a comma or an apostrophe
        text = key + "='" + value.replace("'", "\\'") + "'"
    if re.match(r"[~+]", text) or (CONFIGS / key.split("@")[0]).is_dir():
        return text
    return f"++{text}"


_BEYOND_HYDRA = re.compile(r"^~|[()&;!,]|[^\x00-\x7f]")


def _first_sentence(error: Exception) -> str:
    """Hydra's message without its search-path dump."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [
        line for line in lines if not line.startswith(("Config search path", "provider=", "full_key", "object_type"))
    ]
    return " ".join(useful) or type(error).__name__
