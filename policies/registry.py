"""Policies by name: build one, save one, load one.

A saved policy is a folder with `policy.json` (what it is) and `model.safetensors` (its weights). Another package adds
a kind of policy through the entry point group `embodied.policies`; the entry's object is a module like the ones here,
with `Config` and `build`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
import torch

from embodied.config import parse
from embodied.errors import AssetError, CheckpointError, ConfigurationError, suggest
from policies.api import Interface, Policy, PolicyConfig
from policies.description import DESCRIPTION, described_interface, read_description
from policies.footprint import ENTRY_POINTS
from policies.names import split_name
from policies.weights import numbers_fault, save_tensors

logger = logging.getLogger(__name__)

# the part of a name before its first "/" -> module with `Config` and `build(config, interface, seed)`; one that has
# a layout of its own on disk also has `save(policy, folder)` and `load(folder)`
_KINDS = {
    "mlp": "policies.mlp",
    "cnn": "policies.cnn",
    "openvla": "policies.openvla",
    "openvla_oft": "policies.openvla_oft",
}

WEIGHTS = "model.safetensors"
EXAMPLE_INTERFACE = Interface(
    state_dim=8,
    action_dim=7,
    action_low=(-1.0,) * 7,
    action_high=(1.0,) * 7,
    cameras=1,
    image_height=224,
    image_width=224,
)


def _provided() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def kinds() -> list[str]:
    """Every kind of policy that can be built here, of this package and of others."""
    return [*_KINDS, *(name for name in _provided() if name not in _KINDS)]


def _module(name: str) -> ModuleType:
    provided = _provided()
    # a package's own kind may have dashes in its name
    for kind in (name.split("/")[0], split_name(name)[0]):
        if kind in _KINDS:
            return importlib.import_module(_KINDS[kind])
        if kind in provided:
            return _load_provided(provided[kind])
    raise ConfigurationError(f"Unknown policy {name!r}. " + suggest(name.split("/")[0], kinds(), noun="policies"))


def _load_provided(entry: importlib.metadata.EntryPoint) -> ModuleType:
    try:
        module = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"policy {entry.name!r} is to come from {entry.value}, but {error}.") from error
    missing = [part for part in ("Config", "build") if not hasattr(module, part)]
    if missing:
        raise ConfigurationError(
            f"policy {entry.name!r} is to come from {entry.value}, which has no {' and no '.join(missing)}; see "
            "docs/policies.md."
        )
    return module


def config_class(name: str) -> type[PolicyConfig]:
    """The options record of the policy called `name`. Raises ConfigurationError for an unknown one."""
    return _module(name).Config


def build(
    name: str | PolicyConfig,
    interface: Interface = EXAMPLE_INTERFACE,
    *,
    seed: int = 0,
    known: dict[str, Any] | None = None,
    **options: Any,
) -> Policy:
    """A freshly initialised policy: the same seed gives the same weights.

    interface: of the environment it will act in; without one the policy is an example for a robot arm. known: for
    vision-language-action policies, statistics of the data to be fitted to (`policies.vla.statistics`).
    """
    if isinstance(name, str):
        name = parse(config_class(name), {"name": name, **options}, at="policy")
    elif options:
        raise ConfigurationError(f"options {sorted(options)} were given beside a complete policy configuration")
    given = {} if known is None else {"known": known}
    return _module(name.name).build(name, interface, seed, **given)


def save(policy: Policy, folder: str | Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write `policy` so that `load` gives back the same function; `weights`: its whole tensors where it is sharded.

    Raises CheckpointError where it cannot be written.
    """
    folder = Path(folder)
    metadata = policy.metadata()
    module = _module(metadata["kind"])
    if hasattr(module, "save"):
        if weights is not None:
            policy = _rebuild(module, metadata)
            policy.load_state_dict(weights, strict=True)
        module.save(policy, folder)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DESCRIPTION).write_text(json.dumps(metadata, indent=2))
        save_tensors(weights or policy.state_dict(), folder / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{folder} could not be written: {error}. Free space or choose another folder."
        ) from error


def load(folder: str | Path) -> Policy:
    """The policy saved in `folder`. Raises AssetError when the folder holds none or its weights do not fit."""
    folder = Path(folder)
    metadata = read_description(folder)
    module = _module(metadata["kind"])
    if hasattr(module, "load"):
        return module.load(folder).eval()
    policy = _rebuild(module, metadata)
    try:
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        _require_types(weights, policy.state_dict())
        _require_numbers(weights, policy)
        policy.load_state_dict(weights, strict=True)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise AssetError(
            f"the weights in {folder} do not fit the policy that {DESCRIPTION} describes: {error}"
        ) from None
    return policy.eval()


def _require_types(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Raises RuntimeError where whole numbers would silently become weights, or the reverse."""
    for name in weights.keys() & expected.keys():
        if weights[name].is_floating_point() != expected[name].is_floating_point():
            raise RuntimeError(f"{name} is {weights[name].dtype}, expected {expected[name].dtype}")


def _require_numbers(weights: dict[str, torch.Tensor], policy: Policy) -> None:
    """Raises RuntimeError naming a tensor that a diverged training, or damage, has left without usable numbers."""
    buffers = dict(policy.named_buffers())  # some hold limits, where there may be none
    for name, tensor in weights.items():
        if fault := numbers_fault(tensor, infinite=name in buffers):
            raise RuntimeError(f"in {name} {fault}; take an earlier checkpoint")


def _rebuild(module: ModuleType, metadata: dict[str, Any]) -> Policy:
    """The policy that a description describes, with fresh weights."""
    options = parse(module.Config, metadata["options"], at="policy")
    return module.build(options, described_interface(metadata), 0)


def check_interface(policy: Policy, interface: Interface) -> None:
    """Raise ConfigurationError unless a loaded policy fits an environment's sizes, naming each that differs.

    A policy that fits is made ready for the environment's instructions. One that brings pictures to its own size takes
    those of any size, with a warning.
    """
    _require_fit(json.loads(json.dumps(policy.metadata())), interface)
    policy.make_room(interface.instructions)


def check_saved(folder: str | Path, interface: Interface) -> None:
    """As `check_interface`, of the policy saved in `folder`, without reading its weights."""
    _require_fit(read_description(Path(folder)), interface)


def _require_fit(description: dict[str, Any], interface: Interface) -> None:
    trained = described_interface(description)

    def differing(names: tuple[str, ...]) -> list[str]:
        return [
            f"{name} {getattr(trained, name)} (policy) against {getattr(interface, name)} (environment)"
            for name in names
            if getattr(trained, name) != getattr(interface, name)
        ]

    wrong = differing(("state_dim", "action_dim", "action_kind", "choices", "cameras"))
    sizes = differing(("image_height", "image_width"))
    resizes = getattr(config_class(description["kind"]), "resizes", False)
    if wrong or (sizes and not resizes):
        raise ConfigurationError(
            f"this policy was made for another environment: {'; '.join([*wrong, *sizes])}. "
            "Evaluate it where it was trained, with the same observation, cameras, picture size and control mode."
        )
    if sizes:
        height, width = trained.image_height, trained.image_width
        option = height if height == width else f"[{height},{width}]"
        _warn_once(
            f"this policy saw pictures of {height} x {width} pixels in training, and the "
            f"environment shows {interface.image_height} x {interface.image_width}: it resizes them, and may fare "
            f"otherwise than with env.image_size={option}."
        )


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def interface_of(spec: Any) -> Interface:
    """The policy's side of an environment, from its `envs.api.EnvSpec`."""
    camera = spec.cameras[0] if spec.cameras else None
    return Interface(
        state_dim=spec.state_dim,
        action_dim=spec.action.dim,
        action_kind=spec.action.kind.value,
        action_low=tuple(spec.action.low),
        action_high=tuple(spec.action.high),
        choices=spec.action.choices,
        privileged_dim=spec.privileged_dim,
        cameras=len(spec.cameras),
        image_height=camera.height if camera else 0,
        image_width=camera.width if camera else 0,
        instructions=tuple(spec.instructions),
    )
