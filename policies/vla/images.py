"""Pictures on their way into the vision backbone: the published resize, crop and JPEG steps, then normalisation.

Resizing is done by Pillow, whose rounding the published processors inherit, and gives bytes; those are what is stored
and trained on. Normalisation to floats happens on the policy's device.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from embodied.config import config
from embodied.errors import CheckpointError, ConfigurationError, suggest

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
STRATEGIES = ("resize-naive", "letterbox", "resize-crop")


@config
class ImageOptions:
    """Steps before the processor's own resize, in this order, as a checkpoint's training recipe had them.

    jpeg_quality: encode and decode as JPEG first (95 in OpenVLA-OFT's LIBERO evaluation); 0 leaves it out.
    filter: "lanczos3" resizes as TensorFlow's antialiased resize does, "none" leaves it to the processor.
    crop_area: fraction of the area kept by a centre crop, resized back (0.9 for recipes trained with random crops).
    hidden: black pictures instead, whatever is shown: the control that tells how far a task goes without seeing.
    """

    jpeg_quality: int = 0
    filter: Literal["none", "lanczos3"] = "none"
    crop_area: float = 1.0
    hidden: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality is {self.jpeg_quality}; expected 0 (no JPEG step) to 100")
        if not 0 < self.crop_area <= 1:
            raise ValueError(f"crop_area is {self.crop_area}; expected a fraction in (0, 1]")


class ImageProcessor:
    """Pictures of any size -> square bytes of the backbone's size."""

    def __init__(
        self,
        size: int,
        options: ImageOptions,
        strategy: str = "resize-naive",
        letterbox_fill: tuple[int, int, int] = (127, 127, 127),
    ) -> None:
        if strategy not in STRATEGIES:
            raise CheckpointError(
                f"image_resize_strategy is {strategy!r}. " + suggest(strategy, STRATEGIES, noun="strategies")
            )
        self.size = size
        self.options = options
        self.strategy = strategy
        self.letterbox_fill = letterbox_fill

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [B, V, H, W, 3] -> uint8 [B, V, size, size, 3]. Raises ConfigurationError for other types."""
        if images.dtype != torch.uint8 or images.ndim != 5 or images.shape[-1] != 3:
            raise ConfigurationError(
                f"Pictures must be uint8 [B, V, H, W, 3]; got {images.dtype} {tuple(images.shape)}."
            )
        options = self.options
        if options.hidden:
            return images.new_zeros(*images.shape[:2], self.size, self.size, 3, device="cpu")
        flat = images.flatten(0, 1).cpu()
        if options.jpeg_quality:
            flat = torch.stack([_jpeg(picture, options.jpeg_quality) for picture in flat])
        if options.filter == "lanczos3":
            flat = resize_lanczos3(flat, self.size)
        if options.crop_area < 1:
            flat = centre_crop(flat, options.crop_area)
        if flat.shape[1:3] != (self.size, self.size):
            flat = torch.stack([self._fit(picture) for picture in flat])
        return flat.unflatten(0, images.shape[:2])

    def _fit(self, picture: torch.Tensor) -> torch.Tensor:
        image = Image.fromarray(picture.numpy())
        width, height = image.size
        if self.strategy == "letterbox":
            side = max(width, height)
            square = Image.new("RGB", (side, side), self.letterbox_fill)
            square.paste(image, ((side - width) // 2, (side - height) // 2))
            image = square
        if self.strategy == "resize-crop":
            short = min(width, height)
            scaled = (int(self.size * width / short), int(self.size * height / short))
            image = image.resize(scaled, Image.Resampling.BICUBIC)
            left, top = round((scaled[0] - self.size) / 2), round((scaled[1] - self.size) / 2)
            image = image.crop((left, top, left + self.size, top + self.size))
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(image))


def _jpeg(picture: torch.Tensor, quality: int) -> torch.Tensor:
    buffer = io.BytesIO()
    Image.fromarray(picture.numpy()).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return torch.from_numpy(np.array(Image.open(buffer)))


def _lanczos3_weights(source: int, target: int) -> torch.Tensor:
    """float32 [target, source] resampling weights; the kernel widens when shrinking (antialiasing)."""
    scale = source / target
    stretch = max(scale, 1.0)
    centres = (torch.arange(target, dtype=torch.float64) + 0.5) * scale
    distance = (torch.arange(source, dtype=torch.float64) + 0.5 - centres[:, None]) / stretch
    weights = torch.where(distance.abs() < 3, torch.sinc(distance) * torch.sinc(distance / 3), 0.0)
    return (weights / weights.sum(1, keepdim=True)).float()


def resize_lanczos3(pictures: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [N, H, W, 3] -> uint8 [N, size, size, 3]: separable, in floats, rounded half to even at the end.

    The definition of `tf.image.resize(method="lanczos3", antialias=True)` followed by round and clip, which
    OpenVLA-OFT's LIBERO recipe uses.
    """
    rows = _lanczos3_weights(pictures.shape[1], size)
    columns = _lanczos3_weights(pictures.shape[2], size)
    resized = torch.einsum("th,nhwc->ntwc", rows, pictures.float())
    resized = torch.einsum("sw,ntwc->ntsc", columns, resized)
    return resized.round().clamp(0, 255).to(torch.uint8)


def centre_crop(pictures: torch.Tensor, area: float) -> torch.Tensor:
    """uint8 [N, H, W, 3], same size out: the central `area` of the picture, sampled bilinearly back to full size.

    The definition of `tf.image.crop_and_resize` on a centred box with sides sqrt(area): corner samples lie on the
    box's corners, and floats become bytes by truncating 255.5 x.
    """
    side = area**0.5
    height, width = pictures.shape[1:3]

    def grid(length: int) -> torch.Tensor:
        low, high = (1 - side) / 2, (1 + side) / 2
        return torch.linspace(low, high, length, dtype=torch.float64) * 2 - 1

    ys, xs = torch.meshgrid(grid(height), grid(width), indexing="ij")
    where = torch.stack([xs, ys], dim=-1).float().expand(len(pictures), -1, -1, -1)
    planes = pictures.permute(0, 3, 1, 2).float() / 255
    sampled = F.grid_sample(planes, where, mode="bilinear", padding_mode="border", align_corners=True)
    return (sampled.clamp(0, 1) * 255.5).floor().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


class Normaliser(nn.Module):
    """Bytes to the floats each vision transformer was trained on."""

    def __init__(self, constants: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
        super().__init__()
        mean = torch.tensor([mean for mean, _ in constants], dtype=torch.float32)
        std = torch.tensor([std for _, std in constants], dtype=torch.float32)
        self.register_buffer("mean", mean[:, :, None, None], persistent=False)
        self.register_buffer("std", std[:, :, None, None], persistent=False)

    @classmethod
    def from_preprocessor(cls, settings: dict[str, Any], timm_ids: tuple[str, ...]) -> Normaliser:
        """The constants of a checkpoint's `preprocessor_config.json`; the timm ids' own where it has none.

        `tvf_normalize_params`, which converted checkpoints carry rounded to bfloat16, come before `means` and
        `stds`: the published processor applies them, so the weights expect them.
        """
        try:
            if "tvf_normalize_params" in settings:
                chosen = [(tuple(p["mean"]), tuple(p["std"])) for p in settings["tvf_normalize_params"]]
            elif "means" in settings:
                pairs = zip(settings["means"], settings["stds"], strict=True)
                chosen = [(tuple(mean), tuple(std)) for mean, std in pairs]
            else:
                chosen = [HALF if "siglip" in timm_id else IMAGENET for timm_id in timm_ids]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"preprocessor_config.json has no constants to normalise by ({type(error).__name__}: {error})."
            ) from error
        if len(chosen) != len(timm_ids):
            raise CheckpointError(
                f"preprocessor_config.json has constants for {len(chosen)} transformers; "
                f"config.json names {len(timm_ids)}."
            )
        return cls(chosen)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [B, V, H, W, 3] -> float32 [B, V, F, 3, H, W], one normalisation a transformer."""
        # contiguous while still bytes: every later pass then runs over memory in order
        planes = pictures.permute(0, 1, 4, 2, 3).contiguous().float().div_(255)[:, :, None]
        return (planes - self.mean).div_(self.std)


def preprocessor_settings(size: int, timm_ids: tuple[str, ...]) -> dict[str, Any]:
    """A `preprocessor_config.json` that the published processor reads, for a policy of ours."""
    constants = [HALF if "siglip" in timm_id else IMAGENET for timm_id in timm_ids]
    count = len(timm_ids)
    resize = {"antialias": True, "interpolation": 3, "max_size": None, "size": [size, size]}
    return {
        "auto_map": {"AutoImageProcessor": "processing_prismatic.PrismaticImageProcessor"},
        "image_processor_type": "PrismaticImageProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, size, size]] * count,
        "interpolations": ["bicubic"] * count,
        "means": [list(mean) for mean, _ in constants],
        "stds": [list(std) for _, std in constants],
        "processor_class": "PrismaticProcessor",
        "tvf_crop_params": [{"output_size": [size, size]}] * count,
        "tvf_do_letterbox": False,
        "tvf_letterbox_fill": None,
        "tvf_normalize_params": [{"inplace": False, "mean": list(m), "std": list(s)} for m, s in constants],
        "tvf_resize_params": [resize] * count,
        "use_fused_vision_backbone": count == 2,
    }
