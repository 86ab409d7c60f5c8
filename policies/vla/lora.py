"""Low-rank adapters through peft: attach them in place, and export their merge with proof that it is the same policy.

Names of modules and base parameters stay as they were except for peft's `base_layer` level, so published names are
recovered by removing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from embodied.errors import CheckpointError, CorrectnessAlarm
from policies.vla.network import OpenVLAModel
from policies.vla.options import LoraOptions

_ADAPTER = "default"


def attach(model: OpenVLAModel, options: LoraOptions) -> None:
    """Put adapters on `model`'s linear layers and freeze everything else in it.

    Layers whose output nothing reads get none.
    """
    alpha = options.alpha if options.alpha is not None else min(options.rank, 16)
    settings = LoraConfig(
        r=options.rank,
        lora_alpha=alpha,
        lora_dropout=options.dropout,
        target_modules=_targets(model, options),
        init_lora_weights="gaussian",
        bias="none",
    )
    model.requires_grad_(False)
    inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:  # an optimiser's small steps would vanish in a bfloat16 adapter
            parameter.data = parameter.data.float()


def _targets(model: OpenVLAModel, options: LoraOptions) -> list[str]:
    unread = {id(module) for part in model.vision_backbone.unread() for module in part.modules()}
    roots = ["language_model.model.layers."]
    if options.targets == "language_and_vision":
        roots += ["vision_backbone.", "projector."]
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and name.startswith(tuple(roots))
        and id(module) not in unread
        and not name.endswith((".scale", ".shift"))  # conditioning layers are trained in full
    ]


def layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The adapted layers by name; empty without adapters."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict under published names: base weights, adapters left out."""
    return {
        name.replace(".base_layer.", "."): tensor for name, tensor in model.state_dict().items() if ".lora_" not in name
    }


@torch.no_grad()
def _merged_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    merged = {}
    for name, layer in layers(model).items():
        base = layer.get_base_layer().weight
        merged[name] = (base.float() + layer.get_delta_weight(_ADAPTER).float()).to(base.dtype)
    return merged


@contextmanager
def merged(model: nn.Module, probe: Callable[[], torch.Tensor], tolerance: float = 1e-3) -> Iterator[None]:
    """For the block's duration `model` carries merged weights and inactive adapters; afterwards it is as before, to
    the bit.

    Args:
        model: any module; without adapters nothing happens.
        probe: computes something that depends on every adapted layer, run with adapters and with merged weights.
        tolerance: allowed difference of the two, relative to the probe's largest magnitude; in bfloat16, whose
            rounding is coarser, at least 5e-2.

    Raises CorrectnessAlarm where the merge computes something else, CheckpointError where adapters that do
    something vanish in the weights' rounding, so that the export would be the base model.
    """
    adapted = layers(model)
    if not adapted:
        yield
        return
    expected = probe()
    weights = _merged_weights(model)
    base = {name: layer.get_base_layer().weight.data for name, layer in adapted.items()}
    active = any(layer.lora_B[_ADAPTER].weight.any() for layer in adapted.values())
    if active and all(torch.equal(weights[name], base[name]) for name in adapted):
        raise CheckpointError(
            "The adapters change no weight after rounding: the export would be the base model, byte for byte. "
            "Train longer or export in float32 (policy.precision: float32)."
        )
    try:
        for name, layer in adapted.items():
            layer.get_base_layer().weight.data = weights[name]
            layer.enable_adapters(False)
        gap = (probe() - expected).abs().max().item()
        scale = max(expected.abs().max().item(), 1e-6)
        if any(weight.dtype == torch.bfloat16 for weight in weights.values()):
            tolerance = max(tolerance, 5e-2)
        if not gap <= tolerance * scale:
            raise CorrectnessAlarm(
                f"The merged policy differs from the adapted one by {gap:.3g} (largest magnitude {scale:.3g}, allowed "
                f"{tolerance * scale:.3g}); nothing was written."
            )
        yield
    finally:
        for name, layer in adapted.items():
            layer.get_base_layer().weight.data = base[name]
            layer.enable_adapters(True)
