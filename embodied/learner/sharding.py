"""A module over several ranks: parameters sharded by FSDP2, state gathered and spread again.

On one rank nothing is wrapped; the functions then pass tensors through.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from embodied.errors import ConfigurationError


def shard(
    module: nn.Module, blocks: Sequence[nn.Module], methods: Sequence[str], ranks: dist.ProcessGroup, device: str
) -> None:
    """Shard `module` in place over the ranks of a group: each of `blocks` by itself, the rest as a whole.

    methods: of `module`, that run the forward pass beside `forward`. Gradients are summed over the ranks, not averaged:
    losses carry global denominators already.
    """
    # evaluate returns views (an expanded entropy, say); nothing here changes them in place, which is what FSDP warns of
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = DeviceMesh.from_group(ranks, torch.device(device).type)
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh)
    for part in (*blocks, module):
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    for method in methods:
        register_fsdp_forward_method(module, method)


def recompute_activations(blocks: Sequence[nn.Module]) -> None:
    """Let every block forget its activations in the forward pass and compute them again in the backward pass."""
    for block in blocks:
        block.forward = functools.partial(_recomputing, block, block.forward)  # type: ignore[method-assign]


def _recomputing(block: nn.Module, forward, *arguments, **named):  # type: ignore[no-untyped-def]
    if not (block.training and torch.is_grad_enabled()):
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on the CPU; every rank must call for a sharded one."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def like(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A whole `tensor` placed as `model` is: sharded alike, on its device."""
    tensor = tensor.to(model.device)
    return distribute_tensor(tensor, model.device_mesh, model.placements) if isinstance(model, DTensor) else tensor


def whole_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's state on the CPU, whole; every rank must call for a sharded one."""
    return {name: full(tensor) for name, tensor in module.state_dict().items()}


def load_whole_state(module: nn.Module, state: Mapping[str, torch.Tensor], *, noun: str) -> None:
    """Load a `whole_state` in place, sharded as `module` is; tensors shared with others stay shared.

    Raises ConfigurationError, with `noun` for what it is, where names or shapes differ."""
    own = module.state_dict()
    if own.keys() != state.keys():
        differing = sorted(own.keys() ^ state.keys())
        raise ConfigurationError(f"the checkpoint's {noun} is not this recipe's: {', '.join(differing[:5])} differ")
    try:
        module.load_state_dict({name: like(tensor, own[name]) for name, tensor in state.items()})
    except RuntimeError as error:
        raise ConfigurationError(f"the checkpoint's {noun} does not fit this recipe's: {error}") from None
