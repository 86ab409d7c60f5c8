"""The OpenVLA network: pictures and a prompt in, hidden states or action logits out.

Parameter names are those of the published checkpoints. Sequence layout: beginning-of-sequence token, patches, prompt,
action tokens; padding, if any, stands between patches and prompt and is invisible. Reference: Kim et al. 2024,
"OpenVLA: An Open-Source Vision-Language-Action Model".
"""

from __future__ import annotations

import torch
from torch import nn

from policies.vla.architecture import Architecture, initialise
from policies.vla.attention import AttentionPlan
from policies.vla.llama import KeyValueCache, LanguageModel
from policies.vla.vision import Projector, VisionBackbone


class OpenVLAModel(nn.Module):
    """Vision backbone, projector and language model."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        llama = architecture.llama
        self.vision_backbone = VisionBackbone(
            architecture.timm_ids, architecture.image_size, architecture.vision_overrides
        )
        self.projector = Projector(self.vision_backbone.width, llama.hidden_size, len(architecture.timm_ids))
        self.language_model = LanguageModel(llama)

    def reset_parameters(self) -> None:
        """Fresh language model, projector and positions of patches from torch's global generator."""
        for part in (self.projector, self.language_model):
            initialise(part, self.architecture.llama.hidden_size)
        self.projector.reset_parameters()
        self.vision_backbone.reset_positions()

    def embed_pictures(self, pixels: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        """[B, V, F, 3, H, W] normalised pixels -> [B, V * patches, D] embeddings."""
        return self.projector(self.vision_backbone(pixels, condition))

    def hidden(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        cache: KeyValueCache | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """Final hidden states of `rows`; see `Decoder.forward`."""
        return self.language_model.model(embeddings, positions, plan, cache, rows)

    def action_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., bins]: the logits of the action tokens alone."""
        end = self.architecture.vocab_end
        return self.language_model.lm_head(hidden, slice(end - self.architecture.bins, end))


def splice(text: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """Insert `middle` [B, P, ...] after the first position of `text` [B, L, ...]."""
    return torch.cat([text[:, :1], middle, text[:, 1:]], dim=1)


def positions_of(valid: torch.Tensor) -> torch.Tensor:
    """int64 [B, S]: each valid position's index among the valid ones, so that padding shifts nothing."""
    return (valid.long().cumsum(-1) - 1).clamp_min(0)
