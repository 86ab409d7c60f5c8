"""What a checkpoint's `config.json` says about the network, and the sizes of our presets in the same form.

The file is kept as it was read, so that a saved policy carries every field the published one had; `Architecture` is
the typed view of the fields that decide the network.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from embodied.config import config
from embodied.errors import CheckpointError
from policies.vla.llama import LlamaShape

BACKBONES = {
    "dinosiglip-vit-so-224px": (("vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"), 224),
    "siglip-vit-so400m": (("vit_so400m_patch14_siglip_224",), 224),
    "dinov2-vit-l": (("vit_large_patch14_reg4_dinov2.lvd142m",), 224),
}
"""timm ids and picture size of the vision backbones, for configurations that name only the backbone."""


_ONLY = {"model_type": "llama", "hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "mlp_bias": False}
"""Fields of `text_config` that change what a decoder computes, and the values it is written for."""

_PATCH = 14  # pixels of a patch's side
_HEAD = 32  # width of an attention head of the tiny preset


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Sizes and identities of an OpenVLA network.

    vision_overrides: per transformer, what differs from the timm id's own size (`timm_model_kwargs`, ours).
    vocab_end: one above the largest token id with a meaning; action ids end here, padding rows follow.
    """

    timm_ids: tuple[str, ...]
    vision_overrides: tuple[dict[str, Any], ...]
    image_size: int
    llama: LlamaShape
    vocab_end: int
    pad_token: int
    bins: int = 256
    bos_token: int = 1
    stop_token: int = 2

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Architecture:
        """Read the fields of a `config.json`. Raises CheckpointError where it is no OpenVLA configuration."""
        if config.get("model_type") != "openvla":
            raise CheckpointError(
                f"config.json says model_type {config.get('model_type')!r}; expected 'openvla'. "
                "Point the policy at a folder in OpenVLA's published Hugging Face layout."
            )
        text = config.get("text_config") or {}
        for key, known in _ONLY.items():
            if text.get(key, known) not in (known, None):
                raise CheckpointError(
                    f"config.json says text_config.{key} {text[key]!r}; only {known!r} is supported: the decoder here "
                    "would compute something else than the checkpoint's."
                )
        backbone = config.get("vision_backbone_id", "dinosiglip-vit-so-224px")
        if "timm_model_ids" not in config and backbone not in BACKBONES:
            raise CheckpointError(
                f"config.json names vision backbone {backbone!r} without `timm_model_ids`; known: {sorted(BACKBONES)}."
            )
        try:
            return cls._of(config, text, backbone)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json is damaged ({type(error).__name__}: {error}).") from error

    @classmethod
    def _of(cls, config: dict[str, Any], text: dict[str, Any], backbone: str) -> Architecture:
        known_ids, known_size = BACKBONES.get(backbone, ((), 224))
        ids = tuple(config.get("timm_model_ids", known_ids))
        llama = LlamaShape.from_text_config(text)
        vocab_end, bins = (
            llama.vocab_size - int(config.get("pad_to_multiple_of", 64)),
            int(config.get("n_action_bins", 256)),
        )
        if not 2 <= bins <= vocab_end:
            raise ValueError(f"n_action_bins {bins} of a vocabulary that ends at {vocab_end}")
        return cls(
            timm_ids=ids,
            vision_overrides=tuple(config.get("timm_model_kwargs") or [{}] * len(ids)),
            image_size=int(config.get("image_sizes", [known_size])[0]),
            llama=llama,
            vocab_end=vocab_end,
            pad_token=int(config.get("pad_token_id", 32000)),
            bins=bins,
            # LLaMA's own ids; published OpenVLA configurations leave them to the tokenizer
            bos_token=int(text.get("bos_token_id", 1)),
            stop_token=int(text.get("eos_token_id", 2)),
        )


def published_config(
    shape: LlamaShape, image_size: int, vision_overrides: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A `config.json` with the fields of the published checkpoints, for a network of the given sizes."""
    ids, _ = BACKBONES["dinosiglip-vit-so-224px"]
    config: dict[str, Any] = {
        "arch_specifier": "no-align+fused-gelu-mlp",
        "architectures": ["OpenVLAForActionPrediction"],
        "auto_map": {
            "AutoConfig": "configuration_prismatic.OpenVLAConfig",
            "AutoModelForVision2Seq": "modeling_prismatic.OpenVLAForActionPrediction",
        },
        "hf_llm_id": "meta-llama/Llama-2-7b-hf",
        "image_resize_strategy": "resize-naive",
        "image_sizes": [image_size, image_size],
        "llm_backbone_id": "llama2-7b-pure",
        "llm_max_length": 2048,
        "model_type": "openvla",
        "n_action_bins": 256,
        "output_projector_states": False,
        "pad_to_multiple_of": 64,
        "pad_token_id": shape.vocab_size - 64,
        "text_config": {
            "model_type": "llama",
            **dataclasses.asdict(shape),
            "pad_token_id": shape.vocab_size - 64,
            "torch_dtype": "bfloat16",
        },
        "timm_model_ids": list(ids),
        "timm_override_act_layers": [None, None],
        "torch_dtype": "bfloat16",
        "use_fused_vision_backbone": True,
        "vision_backbone_id": "dinosiglip-vit-so-224px",
    }
    if vision_overrides is not None:
        config["timm_model_kwargs"] = vision_overrides
    return config


@config
class NetworkSizes:
    """Sizes of the `tiny` preset's fresh weights. image_size: pixels of a picture's side, whole patches of 14.
    layers, width: of the decoder. vision_layers, vision_width: of both vision transformers (whose last layer is not
    run). Widths are multiples of a head's 32."""

    image_size: int = 84
    layers: int = 4
    width: int = 96
    vision_layers: int = 4
    vision_width: int = 64

    def __post_init__(self) -> None:
        if self.image_size < _PATCH or self.image_size % _PATCH:
            raise ValueError(f"image_size is {self.image_size}; expected a multiple of {_PATCH}, e.g. 56 or 84")
        if self.layers < 1 or self.vision_layers < 2:
            raise ValueError(
                f"layers is {self.layers} and vision_layers {self.vision_layers}; expected at least 1 and 2"
            )
        for name in ("width", "vision_width"):
            if getattr(self, name) < _HEAD or getattr(self, name) % _HEAD:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a multiple of {_HEAD}, e.g. 64 or 96")


def tiny_config(vocab_size: int, sizes: NetworkSizes | None = None) -> dict[str, Any]:
    """The `tiny` preset: 84-pixel pictures in 36 patches, two small vision transformers, a four-layer decoder; or other
    `sizes`."""
    sizes = sizes or NetworkSizes()
    heads = sizes.width // _HEAD
    shape = LlamaShape(
        hidden_size=sizes.width,
        intermediate_size=sizes.width * 8 // 3 // _HEAD * _HEAD,
        num_hidden_layers=sizes.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocab_size,
    )
    vit = {"embed_dim": sizes.vision_width, "depth": sizes.vision_layers, "num_heads": sizes.vision_width // _HEAD}
    return published_config(shape, image_size=sizes.image_size, vision_overrides=[dict(vit), dict(vit)])


def full_config() -> dict[str, Any]:
    """The `7b` preset: the sizes of the published OpenVLA and OpenVLA-OFT checkpoints."""
    return published_config(LlamaShape(), image_size=224)


@torch.no_grad()
def initialise(module: nn.Module, hidden_size: int) -> None:
    """Draw fresh weights of projector and language model from torch's global generator.

    Normal with the decoder's usual deviation at 7B, scaled up for narrower ones so that activations start alike.
    Vision transformers have timm's own initialisation already.
    """
    deviation = 0.02 * max(1.0, (4096 / hidden_size) ** 0.25)
    for child in module.modules():
        if isinstance(child, nn.Linear | nn.Embedding):
            nn.init.normal_(child.weight, std=deviation)
            if isinstance(child, nn.Linear) and child.bias is not None:
                nn.init.zeros_(child.bias)
