"""A LLaMA decoder written for acting and policy gradients, with the parameter names of published checkpoints.

Beyond the usual decoder it takes any boolean mask and any positions (so padding anywhere changes nothing), computes
the last layer only for the rows that are read, and scores only the vocabulary rows that are asked for. It has no
generation loop, no sampling and no loss. Architecture: Touvron et al. 2023, "LLaMA", with grouped-query attention.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from policies.vla.attention import Attend, AttentionPlan, Kernel, attention


@dataclasses.dataclass(frozen=True)
class LlamaShape:
    """Sizes of a decoder; the defaults are LLaMA-2 7B's as the published VLA checkpoints assume them."""

    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    vocab_size: int = 32064
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    @classmethod
    def from_text_config(cls, text: dict[str, Any]) -> LlamaShape:
        """The sizes in a checkpoint's `text_config`; keys that do not concern the shape are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        given = {key: value for key, value in text.items() if key in known}
        if "num_attention_heads" in given:
            given.setdefault("num_key_value_heads", given["num_attention_heads"])
        return cls(**given)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class KeyValueCache:
    """Keys and values of past positions, one block a layer allocated once, for decoding without gradient.

    Args:
        layers: decoder layers.
        capacity: positions that will be held at most.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        self._blocks: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers
        self._capacity = capacity
        self.length = 0

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, n, head_dim] after the first `length` positions; returns all positions so far of both."""
        block = self._blocks[layer]
        if block is None:
            batch, heads, _, width = keys.shape
            size = (batch, heads, self._capacity, width)
            # allocated here, because only now is the type known that autocast computes in
            block = self._blocks[layer] = (keys.new_empty(size), values.new_empty(size))
        end = self.length + keys.shape[2]
        if not self.length:
            block[0][:, :, :end], block[1][:, :, :end] = keys, values
            return keys, values  # what was just computed is laid out better than a part of the block
        block[0][:, :, self.length : end] = keys
        block[1][:, :, self.length : end] = values
        return block[0][:, :, :end], block[1][:, :, :end]


class Rotary(nn.Module):
    """Cosines and sines of rotary position embedding (Su et al. 2021), in the half-split convention."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        # by device, and no buffer: a cast of the module to bfloat16 must not round the frequencies
        self._frequencies: dict[torch.device, torch.Tensor] = {}

    def _on(self, device: torch.device) -> torch.Tensor:
        if device not in self._frequencies:
            steps = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32)
            self._frequencies[device] = self.theta ** (-steps / self.head_dim)
        return self._frequencies[device]

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """positions int64 [B or 1, S] -> cosines and signed sines [B or 1, 1, S, head_dim], as `rotate` takes them."""
        angles = (positions[..., None].float() * self._on(positions.device))[:, None]
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [B, H, S, head_dim] by its positions' angles; the sines carry the sign of the swapped halves."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([second, first], dim=-1), sin)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class SelfAttention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, shape: LlamaShape, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = shape.head_dim
        width, kv_width = shape.hidden_size, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
        cache: KeyValueCache | None,
        rows: slice | None,
    ) -> torch.Tensor:
        """x [B, S, D] -> [B, rows, D]."""
        cos, sin = rope
        keys = rotate(self._heads(self.k_proj(x)), cos, sin)
        values = self._heads(self.v_proj(x))
        if rows is not None:
            x, cos, sin = x[:, rows], cos[:, :, rows], sin[:, :, rows]
        queries = rotate(self._heads(self.q_proj(x)), cos, sin)
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        return self.o_proj(attend(queries, keys, values).flatten(2))


class MLP(nn.Module):
    """Gated feed-forward layer (SwiGLU)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind its normalisation and added to its input."""

    def __init__(self, shape: LlamaShape, layer: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(shape, layer)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
        cache: KeyValueCache | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """x [B, S, D] -> [B, S, D], or [B, rows, D] where only those are wanted."""
        attended = self.self_attn(self.input_layernorm(x), rope, attend, cache, rows)
        x = (x if rows is None else x[:, rows]) + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embeddings in, final-normed hidden states out."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape, i) for i in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rotary = Rotary(shape.head_dim, shape.rope_theta)
        self.recompute = False
        self.kernel: Kernel = "sdpa"

    def forward(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        cache: KeyValueCache | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            embeddings: [B, S, D].
            positions: int64 [B or 1, S].
            plan: who sees whom; its keys include what `cache` already holds.
            cache: keys and values of earlier positions, extended in place; only without gradient.
            rows: the positions whose hidden states are wanted; None for all.

        Returns [B, S or rows, D].
        """
        rope = self.rotary(positions, embeddings.dtype)
        attend = attention(self.kernel, plan, embeddings)
        x = embeddings
        recompute = self.recompute and torch.is_grad_enabled()
        for layer in self.layers[:-1]:
            x = checkpoint(layer, x, rope, attend, use_reentrant=False) if recompute else layer(x, rope, attend, cache)
        if rows is not None:
            attend = attention(self.kernel, plan, embeddings, rows)
        x = self.layers[-1](x, rope, attend, cache, rows)
        if cache is not None:
            cache.length += embeddings.shape[1]
        return self.norm(x)


class OutputHead(nn.Linear):
    """The output layer; scores all tokens or, much cheaper, only some consecutive ones."""

    def forward(self, hidden: torch.Tensor, tokens: slice | None = None) -> torch.Tensor:
        """[..., D] -> logits [..., vocabulary] or [..., len(tokens)]."""
        return F.linear(hidden, self.weight if tokens is None else self.weight[tokens])


class LanguageModel(nn.Module):
    """Decoder and output head under the checkpoint's names, `model` and `lm_head`."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = OutputHead(shape.hidden_size, shape.vocab_size, bias=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, S, D] embeddings of int64 ids [B, S]."""
        return self.model.embed_tokens(ids)
