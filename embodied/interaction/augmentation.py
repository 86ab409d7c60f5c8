"""Random crops and colours for pictures that a policy is fitted to, as in OpenVLA's training.

The operations and their order are those of the published recipe (Kim et al. 2024, fine-tuning script): a square crop
of fixed area resized back, then brightness, contrast, saturation and hue, clipped to [0, 1] after each. Definitions are
those of `tf.image`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from embodied.config import config


@config
class AugmentationConfig:
    """crop_area: fraction of the area that a random crop keeps; 1 leaves it out.
    brightness: largest shift. contrast, saturation: largest relative change. hue: largest turn, of 1. 0 leaves one out.
    """

    crop_area: float = 0.9
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.crop_area <= 1:
            raise ValueError(f"crop_area is {self.crop_area}; expected a fraction in (0, 1]")
        for name in ("brightness", "contrast", "saturation", "hue"):
            if not 0 <= getattr(self, name) <= (0.5 if name == "hue" else 1):
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 to {0.5 if name == 'hue' else 1}")


def augment(pictures: torch.Tensor, options: AugmentationConfig, generator: torch.Generator) -> torch.Tensor:
    """uint8 [B, V, H, W, 3] -> the same, each picture changed by draws of its own from `generator` (on the CPU)."""
    planes = pictures.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
    draws = torch.rand(6, len(planes), generator=generator).to(planes.device)
    if options.crop_area < 1:
        planes = crop(planes, options.crop_area, draws[0], draws[1])

    def between(low: float, high: float, draw: torch.Tensor) -> torch.Tensor:
        return (low + (high - low) * draw)[:, None, None, None]

    if options.brightness:
        planes = (planes + between(-options.brightness, options.brightness, draws[2])).clamp(0, 1)
    if options.contrast:
        mean = planes.mean(dim=(2, 3), keepdim=True)
        factor = between(1 - options.contrast, 1 + options.contrast, draws[3])
        planes = ((planes - mean) * factor + mean).clamp(0, 1)
    if options.saturation or options.hue:
        factor = between(1 - options.saturation, 1 + options.saturation, draws[4])
        turn = between(-options.hue, options.hue, draws[5])
        planes = change_colour(planes, factor, turn)
    changed = (planes * 255).to(torch.uint8)  # truncated, as the published recipe does
    return changed.permute(0, 2, 3, 1).unflatten(0, pictures.shape[:2]).contiguous()


def crop(planes: torch.Tensor, area: float, across: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """float32 [N, 3, H, W]: of each picture a part with sides sqrt(area), resized back bilinearly.

    across, down: float32 [N] in [0, 1], where the part lies between leftmost and rightmost, topmost and lowest. Corner
    samples lie on the part's corners, as in `tf.image.crop_and_resize`; so a centred crop is the one that acting takes.
    """
    side = area**0.5
    height, width = planes.shape[2:]
    steps_x = torch.linspace(0, side, width, device=planes.device)
    steps_y = torch.linspace(0, side, height, device=planes.device)
    xs = (across[:, None] * (1 - side) + steps_x) * 2 - 1
    ys = (down[:, None] * (1 - side) + steps_y) * 2 - 1
    where = torch.stack([xs[:, None, :].expand(-1, height, -1), ys[:, :, None].expand(-1, -1, width)], dim=-1)
    return F.grid_sample(planes, where, mode="bilinear", padding_mode="border", align_corners=True)


def change_colour(planes: torch.Tensor, factor: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """float32 [N, 3, H, W] in [0, 1] with saturation times `factor` and hue plus `turn` ([N, 1, 1, 1] each).

    In HSV: value v = max, saturation s = (max - min) / max, hue h in [0, 1); s is clipped to [0, 1].
    """
    value, which = planes.max(dim=1, keepdim=True)
    spread = value - planes.amin(dim=1, keepdim=True)
    safe = spread.clamp_min(1e-12)
    red, green, blue = planes.split(1, dim=1)
    sixth = torch.where(
        which == 0, (green - blue) / safe, torch.where(which == 1, (blue - red) / safe + 2, (red - green) / safe + 4)
    )
    hue = torch.where(spread > 0, sixth / 6, torch.zeros_like(sixth)) + turn
    saturation = (spread / value.clamp_min(1e-12) * factor).clamp(0, 1)
    # each channel falls from v to v (1 - s) with its distance from its own hue
    offsets = torch.tensor([5.0, 3.0, 1.0], device=planes.device)[None, :, None, None]
    place = (offsets + hue * 6) % 6
    fall = torch.minimum(place, 4 - place).clamp(0, 1)
    return value - value * saturation * fall
