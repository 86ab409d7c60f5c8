"""What a fit to demonstrations is told, as typed records: composed from `configs/sft/`, checked as a whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from embodied.config import config, parse
from embodied.config.compose import CONFIGS, compose_recipe
from embodied.errors import ConfigurationError, suggest
from embodied.interaction.augmentation import AugmentationConfig
from embodied.interaction.recipe import CheckpointConfig, LoggerConfig, RunConfig, resolve_device, rounded_away
from embodied.interaction.seeing import SeeingConfig
from embodied.learner.learner import LearnerConfig
from policies import registry
from policies.api import PolicyConfig
from policies.names import split_name

RECIPE_FILE = "sft.yaml"  # in the run folder


@config
class DataConfig:
    """folders: the datasets, read as one in this order. episodes: use the first so many of all; None uses all.
    held_out: fraction of the episodes that is not learnt from but measured on."""

    folders: tuple[str, ...]
    episodes: int | None = None
    held_out: float = 0.1

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("folders is empty; name at least one dataset folder")
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"episodes is {self.episodes}; it must be at least 1")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out}; expected 0 to below 1")


@config
class ScheduleConfig:
    """Of the learning rate. warmup_steps: rises linearly to learner.lr over so many steps. decay: then stays, or falls
    as a cosine to 0 at the last step."""

    warmup_steps: int = 0
    decay: Literal["constant", "cosine"] = "constant"

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it cannot be negative")

    def factor(self, step: int, total: int) -> float:
        """Of the learning rate at `step` (from 0) of `total`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * done))


@config
class LabelConfig:
    """spread: standard deviation, of the normalised range [-1, 1], of the distribution over action bins that is learnt
    around each label; 0 learns the label's bin alone, as the published training does."""

    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread is {self.spread}; expected 0 to 1")


@config
class ValidationConfig:
    """On the held-out episodes. every: steps between two; None: once an epoch. metric: which one tells the better
    policy. patience: stop after so many in a row without a better one; None goes on to the last epoch."""

    every: int | None = None
    metric: Literal["loss", "accuracy", "distance"] = "loss"
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1, or null")


@config
class MachineConfig:
    """device: where the policy learns; auto takes a GPU if there is one. threads: of the tensor library."""

    device: str = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; it must be at least 1")


_SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "augment": AugmentationConfig,
    "seeing": SeeingConfig,
    "labels": LabelConfig,
    "learner": LearnerConfig,
    "schedule": ScheduleConfig,
    "validation": ValidationConfig,
    "machine": MachineConfig,
    "checkpoint": CheckpointConfig,
    "logger": LoggerConfig,
    "run": RunConfig,
}


@dataclasses.dataclass(frozen=True)
class ImitationRecipe:
    """One fit, completely described. augment None: pictures as they are. checkpoint.every counts optimiser steps."""

    name: str
    description: str
    seed: int
    policy: PolicyConfig
    data: DataConfig
    augment: AugmentationConfig | None
    seeing: SeeingConfig
    labels: LabelConfig
    learner: LearnerConfig
    schedule: ScheduleConfig
    validation: ValidationConfig
    machine: MachineConfig
    checkpoint: CheckpointConfig
    logger: LoggerConfig
    run: RunConfig

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, complete with defaults; `parse_sft` is its inverse."""
        return dataclasses.asdict(self)


def sft_recipes() -> list[str]:
    """The recipes that ship, by the policy's name."""
    return sorted(_policy_name(path) for path in (CONFIGS / "sft").glob("*.yaml"))


def _policy_name(path: Path) -> str:
    return str(yaml.safe_load(path.read_text())["policy"]["name"])


def compose_sft(policy: str, data: Sequence[str], overrides: list[str]) -> ImitationRecipe:
    """The recipe for a policy by name, or of a .yaml file, on the datasets in the folders `data`, with overrides.

    Raises ConfigurationError for what is unknown or impossible.
    """
    name = next((known for known in sft_recipes() if split_name(known) == split_name(policy)), policy)
    named = CONFIGS / "sft" / f"{name.replace('/', '_')}.yaml"
    path = named if named.is_file() and name in sft_recipes() else Path(policy).expanduser()
    if path.suffix != ".yaml" or not path.is_file():
        raise ConfigurationError(
            f"There is no recipe to fit {policy!r}, nor a .yaml file of that name. "
            + suggest(policy, sft_recipes(), noun="policies")
            + " Start from weights of yours with policy.checkpoint=FOLDER."
        )
    if any(override.lstrip("+").startswith("data.folders=") for override in overrides):
        raise ConfigurationError(
            f"data.folders are the datasets named beside the policy, {', '.join(data)}; leave the override out."
        )
    values = compose_recipe(str(path), overrides)
    values["data"] = {**values.get("data", {}), "folders": list(data)}
    return parse_sft(f"sft_{path.stem}", values)


def load_sft_recipe(folder: Path) -> ImitationRecipe:
    """The recipe of an existing run. Raises ConfigurationError where there is none."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise ConfigurationError(f"{folder} is no run of `embodied sft`: there is no {RECIPE_FILE} in it")
    values = yaml.safe_load(path.read_text())
    return parse_sft(values["name"], values)


def parse_sft(name: str, values: dict[str, Any]) -> ImitationRecipe:
    """Typed records of composed values, checked together. Raises ConfigurationError listing every fault."""
    faults: list[str] = []
    known = ("name", "description", "seed", "policy", *_SECTIONS)
    faults += [
        f"Unknown configuration key {key!r} (value {value!r}). " + suggest(key, known, noun="keys")
        for key, value in values.items()
        if key not in known
    ]
    seed = values.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        faults.append(f"Configuration key 'seed' is {seed!r}: it should be a whole number, 0 or more.")
    parts: dict[str, Any] = {}
    policy = values.get("policy")
    if not isinstance(policy, dict) or not isinstance(policy.get("name"), str):
        raise ConfigurationError("Configuration key 'policy.name' must name the policy, e.g. openvla_oft/tiny.")
    for section, given in {"policy": policy, **{section: values.get(section) for section in _SECTIONS}}.items():
        if given is None and section in ("augment",):
            parts[section] = None
            continue
        given = {"every": 200, **(given or {})} if section == "checkpoint" else given or {}
        try:
            record = registry.config_class(policy["name"]) if section == "policy" else _SECTIONS[section]
            parts[section] = parse(record, given, at=section)
        except ConfigurationError as error:
            faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
    recipe = ImitationRecipe(name=name, description=str(values.get("description", "")), seed=seed, **parts)
    check(recipe)
    return recipe


def check(recipe: ImitationRecipe) -> None:
    """Refuse impossible combinations, with the reason. Raises ConfigurationError."""
    faults: list[str] = []
    learner, crop = recipe.learner, 1.0 if recipe.augment is None else recipe.augment.crop_area
    image = getattr(recipe.policy, "image", None)
    if image is None and recipe.augment is not None:
        faults.append(
            f"augment crops pictures, but policy {recipe.policy.name} has no crop to act with alike; set augment=null"
        )
    elif image is not None and image.crop_area != crop:
        faults.append(
            f"the policy is fitted to crops of area {crop:g} (augment.crop_area) but would act on crops of "
            f"{image.crop_area:g} (policy.image.crop_area): objects would differ in size; set both alike"
        )
    if recipe.labels.spread and (image is None or getattr(recipe.policy, "head", "tokens") != "tokens"):
        faults.append("labels.spread is about action bins, but this policy has none; set labels.spread=0")
    if recipe.seeing.steps and image is None:
        faults.append(f"seeing.steps is about vision-language-action policies, not {recipe.policy.name}; set it to 0")
    if getattr(recipe.policy, "statistics", None) is not None:
        faults.append(
            f"policy.statistics is {recipe.policy.statistics}, but a fit takes those of its demonstrations; leave it "
            "out"
        )
    if fault := rounded_away(recipe.policy):
        faults.append(fault)
    if learner.target_kl is not None:
        faults.append("learner.target_kl stops reinforcement learning; there is no acting policy here. Leave it out")
    for option, instead in (("warmup_steps", "schedule.warmup_steps"), ("decay_steps", "schedule.decay")):
        if getattr(learner, option):
            faults.append(f"learner.{option} is reinforcement learning's; a fit takes {instead}")
    if learner.value_lr is not None:
        faults.append("learner.value_lr is about a critic, and demonstrations teach none. Leave it out")
    if learner.global_batch is None:
        faults.append("learner.global_batch must say how many decisions make up an optimiser step, e.g. 64")
    try:
        resolve_device(recipe.machine.device)
    except ConfigurationError as error:
        faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
