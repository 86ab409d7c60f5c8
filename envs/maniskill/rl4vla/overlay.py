"""Finishes a picture: a photograph behind robot and objects, and textures blended in. Tensors only.

Sizes follow the picture's; the protocol's is 480 x 640.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def behind(picture: torch.Tensor, kept: torch.Tensor, photograph: torch.Tensor) -> torch.Tensor:
    """uint8 [H, W, 3]: `picture` where `kept` [H, W] is true, `photograph` elsewhere."""
    return torch.where(kept[..., None], picture, photograph)


def on_things(picture: torch.Tensor, kept: torch.Tensor, texture: torch.Tensor, mix: float) -> torch.Tensor:
    """uint8 [H, W, 3]: `texture` [H, W, 3], fitted to the box around what is kept, blended into that by `mix`."""
    if not bool(kept.any()):
        return picture
    top, bottom, left, right = _box(kept)
    size = (bottom - top + 1, right - left + 1)
    fitted = F.interpolate(texture.permute(2, 0, 1)[None].float(), size=size, mode="bilinear", align_corners=False)
    inside = (slice(top, bottom + 1), slice(left, right + 1))
    blended = _blend(picture[inside], fitted[0].permute(1, 2, 0), mix)
    out = picture.clone()
    out[inside] = torch.where(kept[inside][..., None], blended, picture[inside])
    return out


def on_everything(picture: torch.Tensor, kept: torch.Tensor, texture: torch.Tensor, mix: float) -> torch.Tensor:
    """uint8 [H, W, 3]: a window of `texture` [2H, 2W, 3] blended into all of it by `mix`.

    The window's corner is where the middle of what is kept is.
    """
    height, width = kept.shape
    y = x = 0
    if bool(kept.any()):
        top, bottom, left, right = _box(kept)
        y, x = (top + bottom) // 2, (left + right) // 2
    y, x = min(max(y, 1), height - 1), min(max(x, 1), width - 1)
    return _blend(picture, texture[y : y + height, x : x + width].float(), mix)


def _blend(picture: torch.Tensor, texture: torch.Tensor, mix: float) -> torch.Tensor:
    return (picture.float() * (1 - mix) + texture * mix).clamp(0, 255).to(torch.uint8)


def _box(kept: torch.Tensor) -> tuple[int, int, int, int]:
    """First and last row, first and last column of what is true."""
    rows, columns = kept.any(dim=1).nonzero().flatten(), kept.any(dim=0).nonzero().flatten()
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])
