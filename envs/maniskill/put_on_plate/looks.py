"""What the table looks like: plain or grained surfaces in training, patterns that are held out.

A look is an image made by a formula, the same on every machine.
"""

from __future__ import annotations

import numpy as np

_SIZE = 512  # pixels of an image's side; it covers the whole table once
_PLAIN = {
    "oak": (0.72, 0.55, 0.36),
    "walnut": (0.34, 0.23, 0.16),
    "slate": (0.30, 0.33, 0.36),
    "linen": (0.82, 0.80, 0.74),
    "sand": (0.76, 0.66, 0.48),
    "sage": (0.52, 0.60, 0.50),
}
_GRAINED = ("oak", "walnut")


def table_image(look: str) -> np.ndarray:
    """uint8 [512, 512, 4] RGBA, the colours of the table's surface."""
    y, x = np.mgrid[0:_SIZE, 0:_SIZE] / _SIZE
    if look in _PLAIN:
        colour = np.array(_PLAIN[look])
        wave = np.sin(2 * np.pi * (45 * y + 0.6 * np.sin(2 * np.pi * 3 * x) + 0.25 * np.sin(2 * np.pi * 11 * x)))
        strength = 0.10 if look in _GRAINED else 0.015
        rgb = colour * (1 + strength * wave)[..., None]
    else:
        first, second, mix = _pattern(look, x, y)
        rgb = np.array(first) * (1 - mix[..., None]) + np.array(second) * mix[..., None]
    rgba = np.concatenate([rgb, np.ones((_SIZE, _SIZE, 1))], axis=2)
    return (np.clip(rgba, 0, 1) * 255).round().astype(np.uint8)


def _pattern(look: str, x: np.ndarray, y: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...], np.ndarray]:
    """Two colours and how much of the second there is at each place, in [0, 1]."""
    match look:
        case "checkers":
            return (0.90, 0.88, 0.80), (0.55, 0.12, 0.12), ((x * 24).astype(int) + (y * 48).astype(int)) % 2 * 1.0
        case "stripes":
            return (0.95, 0.90, 0.60), (0.10, 0.25, 0.55), (np.sin(2 * np.pi * (12 * x + 24 * y)) > 0) * 1.0
        case "dots":
            distance = np.hypot(x * 20 % 1 - 0.5, y * 40 % 1 - 0.5)
            return (0.20, 0.50, 0.45), (0.98, 0.92, 0.35), (distance < 0.3) * 1.0
        case "marble":
            waves = (np.sin(2 * np.pi * (2 * k * x + 5 * (k + 1) * y + 0.37 * k * k)) / k for k in (1, 2, 3, 5, 8))
            return (0.88, 0.88, 0.92), (0.15, 0.10, 0.25), np.abs(np.sin(3 * sum(waves))) ** 3
        case _:
            raise ValueError(f"there is no table look {look!r}")
