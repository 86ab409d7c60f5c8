"""The forward pass of a decoder for generation only: no gradients, fused matrices, keys and values in slots.

Serves the decoders of transformers that are built like Llama: Llama (SmolLM2 and DeepSeek-R1-distilled models are of
this type), Mistral, Qwen2, Qwen3 and Qwen3's mixtures of experts. Weights are taken by the names that transformers
gives them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from embodied.errors import ConfigurationError, CorrectnessAlarm, suggest
from reasoning.generation.cache import Prefix, SlotCache
from reasoning.generation.feedforward import Dense, Experts
from reasoning.generation.linear import Linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers that the forward pass needs. heads, kv_heads: of queries, and of keys and values. size: of a head.

    tied: the output matrix is the embedding. chosen: experts of a token in layers that have some; chosen_normed:
    whether their weights add up to 1.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    size: int
    vocabulary: int
    epsilon: float
    tied: bool
    chosen: int
    chosen_normed: bool

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read a transformers configuration. Raises ConfigurationError for an architecture that is not supported."""
        if config.model_type not in SUPPORTED:
            raise ConfigurationError(
                f"native generation does not know models of type {config.model_type!r}. "
                + suggest(config.model_type, SUPPORTED, noun="types")
            )
        if config.hidden_act != "silu":
            raise ConfigurationError(
                f"native generation expects the activation silu; this model has {config.hidden_act}"
            )
        window = getattr(config, "sliding_window", None)
        if window is not None and getattr(config, "use_sliding_window", config.model_type == "mistral"):
            raise ConfigurationError(
                f"native generation attends to everything; this model has a sliding window of {window} tokens"
            )
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            epsilon=config.rms_norm_eps,
            tied=bool(config.tie_word_embeddings),
            chosen=getattr(config, "num_experts_per_tok", 0),
            chosen_normed=getattr(config, "norm_topk_prob", False),
        )


@dataclasses.dataclass(frozen=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    mlp: Dense | Experts
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None


class Decoder:
    """One model's forward pass.

    Args:
        model: gives the configuration, the rotary frequencies and the first weights; it is not kept.
        dtype: of weights, activations and cache.
        device: where everything lives.
        capacity: tokens of the longest sequence.
    """

    def __init__(self, model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device, capacity: int) -> None:
        self.shape = Shape.of(model.config)
        limit = model.config.max_position_embeddings
        if capacity > limit:
            raise ConfigurationError(
                f"sequences of {capacity} tokens are wanted, but this model was made for at most {limit}; "
                "lower max_new_tokens or the engine's capacity"
            )
        self.dtype = dtype
        self.device = device
        self._cos, self._sin = _rotary_table(model, capacity, dtype, device)
        self._names = {name: tuple(value.shape) for name, value in _named_weights(model, self.shape.tied).items()}
        self.load(_named_weights(model, self.shape.tied))

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over all weights. Raises CorrectnessAlarm, before anything changes, when names or shapes differ."""
        given = {name: value for name, value in weights.items() if not (self.shape.tied and name == "lm_head.weight")}
        found = {name: tuple(value.shape) for name, value in given.items()}
        if found != self._names:
            wrong = sorted(n for n in found.keys() | self._names.keys() if found.get(n) != self._names.get(n))
            first = wrong[0]
            raise CorrectnessAlarm(
                f"these are not this model's weights: {len(wrong)} of {len(self._names)} differ, e.g. {first}: "
                f"expected {self._names.get(first, 'nothing')}, got {found.get(first, 'nothing')}"
            )
        take = {name: value.detach().to(self.device, self.dtype) for name, value in given.items()}
        self._embedding = take["model.embed_tokens.weight"].clone()
        self._norm = take["model.norm.weight"].clone()
        self._head = Linear(self._embedding if self.shape.tied else take["lm_head.weight"].clone())
        self._layers = [_fuse(take, f"model.layers.{i}.", self.shape) for i in range(self.shape.layers)]

    def forget(self) -> None:
        """Let go of all weights until the next `load`."""
        self._embedding = self._norm = torch.empty(0)
        self._head = Linear(torch.zeros(1, 1))
        self._layers = []

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Empty slots that fit this model."""
        shape = self.shape
        return SlotCache(
            layers=shape.layers,
            slots=slots,
            heads=shape.kv_heads,
            capacity=capacity,
            size=shape.size,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        """Work out prompts, of any lengths, in one pass without padding."""
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.tensor([t for prompt in prompts for t in prompt], device=self.device)
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        cos, sin = self._cos[positions], self._sin[positions]
        x = F.embedding(tokens, self._embedding)
        kept = []
        for layer in self._layers:
            q, kv = self._qkv(layer, x, cos, sin)
            kept.append(kv)
            pieces = zip(q.split(lengths), kv.split(lengths), strict=True)
            x = self._rest(layer, x, torch.cat([self._attend_causally(*piece) for piece in pieces]))
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        logits = self._logits(x[last])
        stored = torch.stack(kept).permute(0, 2, 3, 1, 4)  # [layers, 2, kv heads, tokens of all prompts, size]
        return [Prefix(piece, row) for piece, row in zip(stored.split(lengths, dim=3), logits, strict=True)]

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], places: Sequence[int], cache: SlotCache) -> torch.Tensor:
        """One token for each of the first B slots, with its place in its sequence; the cache gets keys and values.

        Returns: logits [B, V] of the next tokens.
        """
        shape, rows, span = self.shape, len(tokens), max(places) + 1
        cache.reserve(span)
        width = cache.width(span)
        positions = torch.tensor(places, device=self.device)
        cos, sin = self._cos[positions], self._sin[positions]
        mask = None if min(places) + 1 == width else self._mask(positions, width)
        slots = torch.arange(rows, device=self.device)
        x = F.embedding(torch.tensor(tokens, device=self.device), self._embedding)
        for index, layer in enumerate(self._layers):
            q, kv = self._qkv(layer, x, cos, sin)
            stored = cache.stored[index]
            stored[:, slots, :, positions] = kv
            # the query heads that share a key head are laid along the query axis: no copy of keys per query head
            q = q.view(rows, shape.kv_heads, -1, shape.size)
            attended = _attend(q, stored[0, :rows, :, :width], stored[1, :rows, :, :width], mask)
            x = self._rest(layer, x, attended.reshape(rows, -1))
        return self._logits(x)

    def _mask(self, positions: torch.Tensor, width: int) -> torch.Tensor:
        """Additive mask [B, 1, 1, width] of what lies behind each row's position."""
        beyond = torch.arange(width, device=self.device) > positions[:, None]
        return torch.zeros_like(beyond, dtype=self.dtype).masked_fill_(beyond, -torch.inf)[:, None, None]

    def _qkv(
        self, layer: _Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, hidden], cos and sin [N, 1, size] -> queries [N, heads, size], keys and values [N, 2, kv, size]."""
        shape = self.shape
        joint = layer.qkv(F.rms_norm(x, (shape.hidden,), layer.attention_norm, shape.epsilon))
        joint = joint.view(len(x), -1, shape.size)
        q, kv = joint[:, : shape.heads], joint[:, shape.heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            q.copy_(F.rms_norm(q, (shape.size,), layer.query_norm, shape.epsilon))
            k = kv[:, : shape.kv_heads]
            k.copy_(F.rms_norm(k, (shape.size,), layer.key_norm, shape.epsilon))
        turning = joint[:, : shape.heads + shape.kv_heads]
        other_half = turning.roll(shape.size // 2, -1)
        # the sign of the first half of a rotation is in the table of sines
        turning.mul_(cos).addcmul_(other_half, sin)
        return q, kv.view(len(x), 2, shape.kv_heads, shape.size)

    def _attend_causally(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """One prompt: [S, heads, size] and [S, 2, kv heads, size] -> [S, heads * size]."""
        k, v = kv.unbind(1)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        grouped = self.shape.heads != self.shape.kv_heads
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return attended[0].transpose(0, 1).flatten(1)

    def _rest(self, layer: _Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + layer.out(attended)
        return x + layer.mlp(F.rms_norm(x, (self.shape.hidden,), layer.mlp_norm, self.shape.epsilon))

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._head(F.rms_norm(x, (self.shape.hidden,), self._norm, self.shape.epsilon))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Queries [B, kv heads, group, size] on keys and values [B, kv heads, width, size].

    On the CPU two products are up to three times as fast as torch's fused kernel for so few queries in bfloat16, and
    as fast in float32.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores += mask
    return scores.softmax(-1) @ v  # torch adds up in float32 inside, whatever goes in and comes out


def _named_weights(model: PreTrainedModel, tied: bool) -> dict[str, torch.Tensor]:
    """The model's parameters by name; a tied output matrix once."""
    return {n: v for n, v in model.state_dict().items() if not (tied and n == "lm_head.weight")}


def _fuse(weights: Mapping[str, torch.Tensor], at: str, shape: Shape) -> _Layer:
    """One layer's matrices, those with the same input joined."""

    def join(*names: str) -> Linear:
        biases = [weights[f"{at}{name}.bias"] for name in names if f"{at}{name}.bias" in weights]
        bias = torch.cat(biases) if biases else None
        return Linear(torch.cat([weights[f"{at}{name}.weight"] for name in names]), bias)

    def own(name: str) -> torch.Tensor:
        return weights[f"{at}{name}.weight"].clone()

    def feedforward() -> Dense | Experts:
        stacked = f"{at}mlp.experts."
        if f"{stacked}gate_up_proj" not in weights:
            return Dense(join("mlp.gate_proj", "mlp.up_proj"), join("mlp.down_proj"))
        gate_up, down = (weights[f"{stacked}{name}"].clone() for name in ("gate_up_proj", "down_proj"))
        return Experts(own("mlp.gate"), gate_up, down, chosen=shape.chosen, normed=shape.chosen_normed)

    normed = f"{at}self_attn.q_norm.weight" in weights  # queries and keys per head, as Qwen3 has it
    return _Layer(
        attention_norm=own("input_layernorm"),
        qkv=join("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=join("self_attn.o_proj"),
        mlp_norm=own("post_attention_layernorm"),
        mlp=feedforward(),
        query_norm=own("self_attn.q_norm") if normed else None,
        key_norm=own("self_attn.k_norm") if normed else None,
    )


def _rotary_table(
    model: PreTrainedModel, capacity: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines [capacity, 1, size] from the model's own frequencies and scaling.

    The table is computed in float32 and rounded once, as transformers does.
    """
    rotary = model.model.rotary_emb
    kind = getattr(rotary, "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise ConfigurationError(
            f"native generation has one table of rotary frequencies; the scaling {kind!r} changes them with the length"
        )
    angles = torch.outer(torch.arange(capacity, dtype=torch.float32), rotary.inv_freq.detach().float().cpu())
    scale = float(getattr(rotary, "attention_scaling", 1.0))
    cos = torch.cat([angles, angles], -1).cos() * scale
    sin = torch.cat([-angles.sin(), angles.sin()], -1) * scale
    return cos[:, None].to(device, dtype), sin[:, None].to(device, dtype)
