"""What is written around a picture: instruction above it, step, reward, value, outcome and action bars below it.

The text stands in strips of its own, so it never hides the scene, and small pictures are enlarged by a whole factor
until the text is readable. The font comes with matplotlib: a machine without any font draws the same pixels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_BACKGROUND = (16, 18, 24)
_INK = (236, 239, 244)
_FAINT = (138, 147, 163)
_TRACK = (44, 49, 61)
SUCCESS_COLOUR = (61, 203, 127)
FAILURE_COLOUR = (240, 100, 95)
_POSITIVE = (86, 156, 255)
_NEGATIVE = (255, 170, 80)
READABLE_SIDE = 256  # pixels the shorter side of a picture has at least once text stands around it ...
LONGEST_SIDE = 1920  # ... unless the longer one would come to more than this: players refuse what is much larger


@dataclasses.dataclass(frozen=True)
class Overlay:
    """What to write on one frame; what is None or empty is left out.

    action: the executed action [A], shown as one bar a dimension about zero; full height is |a| = max(1, largest).
    value: the critic's estimate.
    success: None while it is not known, else drawn as a word and as the colour of the frame's edge.
    """

    instruction: str = ""
    step: int | None = None
    reward: float | None = None
    success: bool | None = None
    action: Sequence[float] | None = None
    value: float | None = None


def enlarge(frame: np.ndarray) -> np.ndarray:
    """Repeat pixels by the whole factor that brings the shorter side of [H, W, 3] to at least READABLE_SIDE, and the
    longer to no more than LONGEST_SIDE."""
    factor = min(math.ceil(READABLE_SIDE / min(frame.shape[:2])), LONGEST_SIDE // max(frame.shape[:2]))
    return frame if factor <= 1 else frame.repeat(factor, axis=0).repeat(factor, axis=1)


def draw_overlay(frame: np.ndarray, overlay: Overlay) -> np.ndarray:
    """`frame` uint8 [H, W, 3], enlarged, between its two strips; the result's size depends on H and W alone."""
    frame = enlarge(frame)
    height, width = frame.shape[:2]
    unit = max(11, width // 26)  # text height; about 40 characters a line
    top, bottom = round(2.9 * unit), round(3.0 * unit)
    canvas = Image.new("RGB", (width, top + height + bottom), _BACKGROUND)
    canvas.paste(Image.fromarray(frame), (0, top))
    draw = ImageDraw.Draw(canvas)
    pad = unit // 2
    _text_block(draw, overlay.instruction, unit, (pad, 0, width - pad, top))
    _status(draw, overlay, unit, (pad, top + height, width - pad, top + height + bottom))
    if overlay.success is not None:
        colour = SUCCESS_COLOUR if overlay.success else FAILURE_COLOUR
        draw.rectangle((0, top, width - 1, top + height - 1), outline=colour, width=max(2, unit // 5))
    return np.asarray(canvas)


def title_bar(title: str, width: int, height: int) -> np.ndarray:
    """A strip uint8 [h, width, 3] with `title` in its middle, sized for a picture of `height` pixels."""
    unit = max(13, min(height, width) // 18)
    canvas = Image.new("RGB", (width, 2 * unit), _BACKGROUND)
    ImageDraw.Draw(canvas).text((width / 2, unit), title, fill=_INK, font=_font(unit, "Bold"), anchor="mm")
    return np.asarray(canvas)


def _status(draw: ImageDraw.ImageDraw, overlay: Overlay, unit: int, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    font, bold = _font(unit), _font(unit, "Bold")
    first, second = top + round(0.85 * unit), top + round(2.15 * unit)
    x = left
    for label, text in _numbers(overlay):
        draw.text((x, first), label, fill=_FAINT, font=font, anchor="lm")
        x += draw.textlength(label, font=font) + unit * 0.3
        draw.text((x, first), text, fill=_INK, font=bold, anchor="lm")
        x += draw.textlength(text, font=bold) + unit * 0.8
    if overlay.success is not None:
        word, colour = ("success", SUCCESS_COLOUR) if overlay.success else ("failure", FAILURE_COLOUR)
        draw.text((left, second), word, fill=colour, font=bold, anchor="lm")
    if overlay.action is not None and len(overlay.action):
        space = right - left - 5 * unit
        _bars(draw, overlay.action, (right - min(space, 2 * unit * len(overlay.action)), second, right, bottom), unit)


def _numbers(overlay: Overlay) -> list[tuple[str, str]]:
    shown = []
    if overlay.step is not None:
        shown.append(("step", f"{overlay.step}"))
    if overlay.reward is not None:
        shown.append(("reward", _short(overlay.reward)))
    if overlay.value is not None:
        shown.append(("value", _short(overlay.value)))
    return shown


def _bars(
    draw: ImageDraw.ImageDraw, action: Sequence[float], box: tuple[float, float, float, float], unit: int
) -> None:
    left, middle, right, _ = box
    half = 0.6 * unit
    pitch = (right - left) / len(action)
    largest = max([1.0, *(abs(a) for a in action if math.isfinite(a))])
    for index, a in enumerate(action):
        x0, x1 = left + index * pitch + pitch * 0.15, left + (index + 1) * pitch - pitch * 0.15
        draw.rectangle((x0, middle - half, x1, middle + half), fill=_TRACK)
        if not math.isfinite(a):
            draw.rectangle((x0, middle - half, x1, middle + half), fill=FAILURE_COLOUR)
            continue
        reach = half * a / largest
        low, high = sorted((middle, middle - reach))
        draw.rectangle((x0, low, x1, high), fill=_POSITIVE if a >= 0 else _NEGATIVE)
    draw.line((left, middle, right, middle), fill=_FAINT)


def _text_block(draw: ImageDraw.ImageDraw, text: str, unit: int, box: tuple[int, int, int, int]) -> None:
    """At most two lines, cut with an ellipsis."""
    left, top, right, bottom = box
    font = _font(unit)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and draw.textlength(longer, font=font) <= right - left:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > 2:
        lines = [lines[0], lines[1] + " …"]
    for index, line in enumerate(lines):
        while draw.textlength(line, font=font) > right - left and len(line) > 2:
            line = line.rstrip(" …")[:-1] + "…"
        y = (top + bottom) / 2 + (index - (len(lines) - 1) / 2) * 1.25 * unit
        draw.text((left, y), line, fill=_INK, font=font, anchor="lm")


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.2f}"


@functools.cache
def _font(size: int, weight: str = "") -> ImageFont.FreeTypeFont:
    import importlib.util

    # found without importing matplotlib, which takes longer than starting the encoder
    spec = importlib.util.find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"DejaVuSans{'-' + weight if weight else ''}.ttf"), size)
