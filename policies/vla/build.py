"""From options to a policy with weights, and from a policy to a folder: the same steps for both VLA policies."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch

from embodied.config import parse
from embodied.errors import CheckpointError
from policies.api import Interface
from policies.vla import checkpoint, lora, statistics
from policies.vla.bundle import Bundle
from policies.vla.network import OpenVLAModel
from policies.vla.options import VLAConfig
from policies.vla.policy import VALUE_HEAD, VLAPolicy

DESCRIPTION = "policy.json"
P = TypeVar("P", bound=VLAPolicy)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def assemble(policy_class: type[P], options: VLAConfig, interface: Interface, seed: int) -> P:
    """A policy with the checkpoint's weights, or fresh ones drawn from `seed`; adapters attached, in eval mode."""
    folder = None if options.checkpoint is None else checkpoint.resolve(options.checkpoint)
    bundle = Bundle.preset(options.preset, options.sizes) if folder is None else Bundle.read(folder)
    dtype = getattr(torch, options.precision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _default_dtype(dtype):
            if folder is None:
                model = OpenVLAModel(bundle.architecture)
                model.reset_parameters()
            else:
                with torch.device("meta"):
                    model = OpenVLAModel(bundle.architecture)
                model.to_empty(device="cpu")
                checkpoint.load_weights(model, folder)
        policy = policy_class(options, interface, bundle, model)
        if folder is not None:
            policy.load_components(folder)
        policy.attach_adapters()
    return policy.eval()


def load(policy_class: type[P], config_class: type[VLAConfig], folder: Path, options: dict[str, Any]) -> P:
    """The policy in `folder`: one that `save` wrote, or any in the published layout.

    options: replace what the folder's description says. Raises CheckpointError or ConfigurationError.
    """
    description = checkpoint.read_optional_json(folder, DESCRIPTION)
    chosen = {**description.get("options", {}), **options, "checkpoint": str(folder), "sizes": None}
    chosen.setdefault("name", f"{policy_class.kind}/7b")
    config = parse(config_class, chosen, at="policy")
    if "interface" in description:
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in description["interface"].items()}
        interface = Interface(**fields)
    else:
        interface = _published_interface(folder, config)
    return assemble(policy_class, config, interface, seed=0)


def _published_interface(folder: Path, config: VLAConfig) -> Interface:
    stored = {
        **checkpoint.read_json(folder, checkpoint.CONFIG).get("norm_stats", {}),
        **checkpoint.read_optional_json(folder, checkpoint.STATISTICS),
    }
    _, entry = statistics.select(stored, config.statistics)
    return Interface(
        state_dim=len(entry.get("proprio", {}).get("mean", [])), action_dim=len(entry["action"]["q01"]), cameras=1
    )


def save(policy: VLAPolicy, folder: Path) -> None:
    """Write `policy` in the published layout, adapters merged and the merge verified first.

    Everything is written beside `folder` and moved into it when complete; what an earlier save left there and this one
    does not write is removed from the files this module owns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with lora.merged(policy.model, lambda: probed(policy)):
            checkpoint.write_weights(policy.published_state().items(), part)
            policy.write_components(part)
        policy.bundle.write(part)
        if policy.spec.values:
            state = {name: t.detach().cpu().contiguous() for name, t in policy.value_head.state_dict().items()}
            safetensors.torch.save_file(state, part / VALUE_HEAD)
        (part / DESCRIPTION).write_text(json.dumps(policy.metadata(), indent=2) + "\n")
        written = {path.name for path in part.iterdir()}
        for stale in folder.glob("model*.safetensors*"):
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
