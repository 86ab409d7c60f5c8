"""The fused vision backbone: DINOv2 and SigLIP look at the same picture and their patch features are concatenated.

Built on timm's vision transformers. Features are the output of the second-to-last block, without the final norm and
without prefix tokens (Karamcheti et al. 2024, "Prismatic VLMs"), so the last block is never run, though its weights
are kept: checkpoints carry them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import nn

_POSITION = 2.0  # deviation of fresh position embeddings; patches of pictures come out at 0.4 to 0.8


class LayerScale(nn.Module):
    """A learned factor per channel, stored under the name checkpoints use (timm calls it `gamma`)."""

    def __init__(self, initial: torch.Tensor) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(initial.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale_factor


def _vit(timm_id: str, image_size: int, overrides: dict[str, Any]) -> nn.Module:
    # exact GELU is what the published weights were trained with; timm's default has changed for some ids
    vit = timm.create_model(
        timm_id, pretrained=False, num_classes=0, img_size=image_size, act_layer=nn.GELU, **overrides
    )
    for block in vit.blocks:
        for name in ("ls1", "ls2"):
            scale = getattr(block, name)
            if not isinstance(scale, nn.Identity):
                setattr(block, name, LayerScale(scale.gamma))
    return vit


class VisionBackbone(nn.Module):
    """One or two vision transformers over the same pictures.

    Args:
        timm_ids: one id, or two whose features are fused.
        image_size: side of the square input in pixels.
        overrides: per id, keyword arguments that change the model's size; empty for published ones.
    """

    def __init__(self, timm_ids: Sequence[str], image_size: int, overrides: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self.featurizer = _vit(timm_ids[0], image_size, overrides[0])
        self.fused_featurizer = _vit(timm_ids[1], image_size, overrides[1]) if len(timm_ids) == 2 else None
        self.image_size = image_size
        self.freeze_unread()

    @torch.no_grad()
    def reset_positions(self) -> None:
        """Draw the patches' positions larger than what is in the patches.

        timm's own start, a hundredth of that, suits pretraining on millions of pictures. From it, a small network
        does not learn in hundreds of steps where a thing of a few pixels is (docs/demonstrations.md).
        """
        for vit in self.featurizers:
            nn.init.normal_(vit.pos_embed, std=_POSITION)

    def unread(self) -> list[nn.Module]:
        """Parts that checkpoints carry and nothing reads: each transformer's last block, final norm and pooling."""
        parts = [part for vit in self.featurizers for part in (vit.blocks[-1], vit.norm, vit.fc_norm, vit.attn_pool)]
        return [part for part in parts if part is not None]

    def freeze_unread(self) -> None:
        """Without gradient they would only confuse optimisers and sharding."""
        for part in self.unread():
            part.requires_grad_(False)

    @property
    def featurizers(self) -> list[nn.Module]:
        """The transformers, in channel order of their pixels."""
        return [self.featurizer] + ([] if self.fused_featurizer is None else [self.fused_featurizer])

    @property
    def width(self) -> int:
        """Channels of a patch feature."""
        return sum(vit.embed_dim for vit in self.featurizers)

    @property
    def patches(self) -> int:
        """Patches of one picture."""
        return self.featurizer.patch_embed.num_patches

    def forward(self, pixels: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        """Patch features.

        Args:
            pixels: [B, V, F, 3, H, W]; F normalisations of each of V pictures, one a transformer.
            condition: [B, D] language embedding for blocks that take one (FiLM); None for plain blocks.

        Returns [B, V * patches, width], the pictures one after the other.
        """
        batch, views = pixels.shape[:2]
        if condition is not None:
            condition = condition.repeat_interleave(views, dim=0)
        flat = pixels.flatten(0, 1)
        features = [_features(vit, flat[:, i], condition) for i, vit in enumerate(self.featurizers)]
        return torch.cat(features, dim=-1).unflatten(0, (batch, views)).flatten(1, 2)


def _features(vit: nn.Module, pixels: torch.Tensor, condition: torch.Tensor | None) -> torch.Tensor:
    x = vit.norm_pre(vit._pos_embed(vit.patch_embed(pixels)))
    for block in vit.blocks[:-1]:
        x = block(x) if condition is None else block(x, condition)
    return x[:, vit.num_prefix_tokens :]


class Projector(nn.Module):
    """Patch features to language-model embeddings: three layers behind two transformers, two behind a single one."""

    def __init__(self, vision_width: int, hidden_size: int, transformers: int) -> None:
        super().__init__()
        inner = 4 * vision_width if transformers == 2 else hidden_size
        self.fc1 = nn.Linear(vision_width, inner)
        self.fc2 = nn.Linear(inner, hidden_size)
        self.fc3 = nn.Linear(hidden_size, hidden_size) if transformers == 2 else None
        self.act = nn.GELU()

    def reset_parameters(self) -> None:
        """Draw fresh weights after He et al. 2015, under which what and where mix from the start."""
        for layer in (self.fc1, self.fc2, self.fc3):
            if layer is not None:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = self.fc2(self.act(self.fc1(features)))
        return x if self.fc3 is None else self.fc3(self.act(x))
