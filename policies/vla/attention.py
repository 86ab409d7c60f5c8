"""Who sees whom in the decoder, and the kernels that compute it: torch's own, or flash-attention's package.

A kernel turns a plan into a function of queries, keys and values that every layer calls, so that what depends on the
plan alone (masks, the places of padding) is worked out once a forward pass.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from embodied.errors import ConfigurationError

Kernel = Literal["sdpa", "flash"]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries [B, H, R, head_dim], keys and values [B, G, K, head_dim] -> [B, R, H, head_dim]; G divides H."""


@dataclasses.dataclass(frozen=True)
class AttentionPlan:
    """valid: bool [B or 1, K], keys that are no padding; None: all. causal: no keys after the query's own place."""

    valid: torch.Tensor | None
    causal: bool


def causal_plan(valid: torch.Tensor | None) -> AttentionPlan:
    """Each position sees itself and what came before; `valid` bool [B, S] marks keys that are no padding (None: all).

    The first position must be valid, or a padding query would see nothing.
    """
    return AttentionPlan(valid, causal=True)


def bidirectional_plan(valid: torch.Tensor | None) -> AttentionPlan:
    """Every position sees every valid one, later ones too."""
    return AttentionPlan(valid, causal=False)


def attention(kernel: Kernel, plan: AttentionPlan, x: torch.Tensor, rows: slice | None = None) -> Attend:
    """The function that layers attend with.

    x: the pass's input [B, S, D]; its type is the mask's, its device decides: flash-attention exists on CUDA only, so
    elsewhere `flash` computes the same with torch's kernel. rows: those of `x` that ask; None for all.
    """
    if kernel == "flash" and x.is_cuda:
        return _flash(plan, x, rows)
    return _sdpa(plan, x, rows)


def _sdpa(plan: AttentionPlan, x: torch.Tensor, rows: slice | None) -> Attend:
    """torch's scaled_dot_product_attention, with a mask only where there must be one."""
    mask = None if plan.valid is None else plan.valid[:, None, None, :]
    causal = plan.causal
    if causal and (mask is not None or rows is not None):
        length = x.shape[1]
        asking = torch.arange(length, device=x.device)[rows or slice(None)]
        lower = (torch.arange(length, device=x.device)[None, :] <= asking[:, None])[None, None]
        mask, causal = lower if mask is None else lower & mask, False
    if mask is not None:  # converted once, instead of by every layer's kernel
        mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, -torch.inf)

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        grouped = queries.shape[1] != keys.shape[1]
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=grouped
        )
        return out.transpose(1, 2)

    return attend


def require_flash(precision: str) -> None:
    """Raises ConfigurationError where flash-attention's package cannot serve weights of this type, or is not there."""
    if importlib.util.find_spec("flash_attn") is None:
        raise ConfigurationError(
            "policy.attention: flash needs the package flash-attn (2.x), which is not installed. Install it on a "
            "machine with CUDA's compiler (`pip install flash-attn --no-build-isolation`), or leave policy.attention "
            "at sdpa: torch has a flash kernel of its own."
        )
    if precision != "bfloat16":
        raise ConfigurationError(
            f"policy.attention: flash computes in half precision only, and policy.precision is {precision}. "
            "Set policy.precision=bfloat16, or policy.attention=sdpa."
        )


def _flash(plan: AttentionPlan, x: torch.Tensor, rows: slice | None) -> Attend:
    """flash-attention 2 (Dao 2023), whose causal triangle ends in the last query and the last key.

    Without padding the batch goes in as it is; with padding, valid positions are laid end to end.
    """
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    if plan.causal and rows is not None and rows.stop is not None:
        raise ValueError(f"flash-attention's causal queries must be the last ones; rows is {rows}")

    if plan.valid is None:

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return flash_attn_func(*(t.transpose(1, 2) for t in (queries, keys, values)), causal=plan.causal)

        return attend

    valid = plan.valid.expand(len(x), -1)
    of_keys = _Packing(valid)
    # in the triangle a padding query would take a valid one's place; elsewhere it is answered like any other
    asking = valid if plan.causal else torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    of_queries = _Packing(asking[:, rows or slice(None)])

    def attend_packed(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = flash_attn_varlen_func(
            of_queries.pack(queries),
            of_keys.pack(keys),
            of_keys.pack(values),
            of_queries.starts,
            of_keys.starts,
            of_queries.longest,
            of_keys.longest,
            causal=plan.causal,
        )
        return of_queries.unpack(out)

    return attend_packed


class _Packing:
    """Where the valid positions of a padded batch stand when laid end to end.

    valid: bool [B, S]. starts: int32 [B + 1], each sequence's first place, and the end.
    """

    def __init__(self, valid: torch.Tensor) -> None:
        lengths = valid.sum(1, dtype=torch.int32)
        self.shape = valid.shape
        self.places = valid.flatten().nonzero().squeeze(1)
        self.starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self.longest = int(lengths.max())

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """[B, H, S, head_dim] -> [positions, H, head_dim]."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)

    def unpack(self, x: torch.Tensor) -> torch.Tensor:
        """[positions, H, head_dim] -> [B, S, H, head_dim], zeros at padding."""
        out = x.new_zeros(self.shape.numel(), *x.shape[1:]).index_copy(0, self.places, x)
        return out.unflatten(0, self.shape)
