"""From options to a policy with weights, and from a policy to a folder: the same steps for both VLA policies."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch

from embodied.config import parse
from embodied.errors import CheckpointError, ConfigurationError
from policies.api import Interface
from policies.description import DESCRIPTION, described_interface, read_description
from policies.vla import checkpoint, lora, statistics
from policies.vla.bundle import Bundle
from policies.vla.network import OpenVLAModel
from policies.vla.options import VLAConfig
from policies.vla.policy import VALUE_HEAD, VLAPolicy
from policies.weights import save_tensors

P = TypeVar("P", bound=VLAPolicy)
logger = logging.getLogger(__name__)

_OWNED = ("model*.safetensors*", VALUE_HEAD, "*--*_checkpoint.pt")
"""Files that belong to the weights of one save: beside those of another they would be loaded with them."""


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def assemble(
    policy_class: type[P],
    options: VLAConfig,
    interface: Interface,
    seed: int,
    known: statistics.Statistics | None = None,
) -> P:
    """A policy with the checkpoint's weights, or fresh ones drawn from `seed`; adapters attached, in eval mode.

    known: statistics of one dataset, that it is to be fitted to, in place of the checkpoint's."""
    folder = None if options.checkpoint is None else checkpoint.resolve(options.checkpoint)
    bundle = Bundle.preset(options.preset, options.sizes) if folder is None else Bundle.read(folder)
    if known is not None:
        bundle.statistics = known
        options = dataclasses.replace(options, statistics=next(iter(known)))
    dtype = getattr(torch, options.precision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _default_dtype(dtype):
            if folder is None:
                model = OpenVLAModel(bundle.architecture)
                model.reset_parameters()
            else:
                model = _without_weights(bundle, folder).to_empty(device="cpu")
                checkpoint.load_weights(model, folder)
        policy = policy_class(options, interface, bundle, model)
        if folder is not None:
            policy.load_components(folder)
            _say_differences(folder, options)
        policy.attach_adapters()
    return policy.eval()


_FITTED_WITH = ("chunk", "views", "prompt", "image", "state", "placeholders", "head", "film")
"""Options that a policy's weights have got used to."""


def _say_differences(folder: Path, options: VLAConfig) -> None:
    """Warn where a policy of ours is to see or act otherwise than when it was saved; refuse another gripper."""
    if not (folder / DESCRIPTION).is_file():
        return
    saved = read_description(folder)["options"]
    chosen = dataclasses.asdict(options)
    if saved.get("gripper", options.gripper) != options.gripper:
        raise ConfigurationError(
            f"policy.gripper is {options.gripper}, but the policy in {folder} was made with {saved['gripper']}: it "
            f"would open where it means to close, or neither. Use policy.gripper={saved['gripper']}."
        )
    differing = []
    for name in _FITTED_WITH:
        before, now = saved.get(name), chosen.get(name)
        if name not in saved or name not in chosen or before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            changed = [key for key in now if key in before and before[key] != now[key]]
            differing += [f"policy.{name}.{key}={before[key]} (now {now[key]})" for key in changed]
        else:
            differing.append(f"policy.{name}={before} (now {now})")
    if differing:
        _warn_once(f"the policy in {folder} was made with {', '.join(differing)}; it may fare worse otherwise.")


@functools.cache
def _warn_once(message: str) -> None:
    """Learner, rollout and films build the same policy; one process says it once."""
    logger.warning(message)


def _without_weights(bundle: Bundle, folder: Path) -> OpenVLAModel:
    """The network of a checkpoint, on the meta device. Raises CheckpointError where there is no such network."""
    try:
        with torch.device("meta"):
            return OpenVLAModel(bundle.architecture)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"{folder / checkpoint.CONFIG} names a network that cannot be built: {error}.") from error


def load(policy_class: type[P], config_class: type[VLAConfig], folder: Path, options: dict[str, Any]) -> P:
    """The policy in `folder`: one that `save` wrote, or any in the published layout.

    options: replace what the folder's description says. Raises CheckpointError or ConfigurationError.
    """
    description = read_description(folder) if (folder / DESCRIPTION).is_file() else {}
    chosen = {**description.get("options", {}), **options, "checkpoint": str(folder), "sizes": None}
    chosen.setdefault("name", f"{policy_class.kind}/7b")
    config = parse(config_class, chosen, at="policy")
    interface = described_interface(description) if description else _published_interface(folder, config)
    return assemble(policy_class, config, interface, seed=0)


def _published_interface(folder: Path, config: VLAConfig) -> Interface:
    stored = {
        **(checkpoint.read_json(folder, checkpoint.CONFIG).get("norm_stats") or {}),
        **checkpoint.read_optional_json(folder, checkpoint.STATISTICS),
    }
    _, entry = statistics.select(stored, config.statistics)
    actions = statistics.QuantileScale(entry.get("action", {}), statistics.RangeGuard.NONE)
    return Interface(state_dim=len(entry.get("proprio", {}).get("mean", [])), action_dim=len(actions), cameras=1)


def save(policy: VLAPolicy, folder: Path) -> None:
    """Write `policy` in the published layout, adapters merged and the merge verified first.

    Everything is written beside `folder` and moved into it when complete; weights and heads that an earlier save left
    there and this one does not write are removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise CheckpointError(f"{folder} could not be written: {error}. Choose another folder.") from error
    try:
        with lora.merged(policy.model, lambda: probed(policy)):
            checkpoint.write_weights(policy.published_state().items(), part)
            policy.write_components(part)
        policy.bundle.write(part)
        if policy.spec.values:
            save_tensors(policy.value_head.state_dict(), part / VALUE_HEAD)
        (part / DESCRIPTION).write_text(json.dumps(policy.metadata(), indent=2) + "\n")
        written = {path.name for path in part.iterdir()}
        for stale in (path for pattern in _OWNED for path in folder.glob(pattern)):
            if stale.name not in written:
                stale.unlink()
        for path in sorted(part.iterdir(), key=lambda path: path.name == DESCRIPTION):
            os.replace(path, folder / path.name)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{folder} could not be written: {error}. Free space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@torch.no_grad()
def probed(policy: VLAPolicy) -> torch.Tensor:
    """The policy's probe in eval mode, its mode restored afterwards."""
    training = policy.training
    policy.eval()
    try:
        return policy.probe()
    finally:
        policy.train(training)
