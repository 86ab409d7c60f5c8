"""Have each simulator draw one frame on each device, in child processes with a deadline, and say how it went.

The children run two at a time. What comes back is findings for the doctor's table and the pictures on disk; the drawing
itself is in `frames.py`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embodied.errors import EmbodiedError
from embodied.system.checks import Finding, State, mend_vulkan
from embodied.system.frames import Simulator
from envs.rendering import VulkanKind, egl, libraries, vulkan

AT_ONCE = 2  # a simulator takes one core and up to 2 GB while it starts


def draw_all(out: Path, deadline: float) -> list[Finding]:
    """Draw with every simulator on every device that was found; pictures are saved in `out`.

    One frame may take `deadline` seconds.

    A simulator for which no device was found is drawn on the processor all the same: its own words say what is wrong.
    """
    jobs = [(Simulator.MANISKILL, device) for device in _maniskill_devices()]
    jobs += [(Simulator.LIBERO, device) for device in _libero_devices()]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(lambda job: draw(*job, out, deadline), jobs))


def draw(simulator: Simulator, device: str, out: Path, deadline: float) -> Finding:
    """Draw one frame in a child process; seconds of `deadline` are wall-clock."""
    name = f"frame: {simulator.value} on {device if device.startswith(('cpu', 'cuda', 'osmesa')) else f'EGL {device}'}"
    picture = out / f"{simulator.value}-{device.replace(':', '')}.png"
    picture.unlink(missing_ok=True)
    mend = mend_vulkan() if simulator is Simulator.MANISKILL else vulkan.MEND
    command = [sys.executable, "-m", "embodied.system.frames", simulator.value, str(picture), "--device", device]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline, check=False
        )
    except subprocess.TimeoutExpired:
        longer = f"embodied doctor --deadline {2 * deadline:g}"  # on a busy machine nothing else is wrong
        return Finding(name, State.FAILED, f"no picture within {deadline:g} s", longer)
    if result.returncode == 0:
        return Finding(name, State.RIGHT, str(picture))
    lines = [line for text in (result.stderr, result.stdout) for line in text.splitlines() if line.strip()]
    reason = lines[-1] if lines else "without a word"
    if result.returncode < 0:
        reason = f"killed by {signal.Signals(-result.returncode).name}; last words: {reason}"
    return Finding(name, State.FAILED, reason, mend)


def _maniskill_devices() -> list[str]:
    try:
        device = vulkan.find_vulkan()
    except EmbodiedError:
        return ["cpu"]
    if device.kind is VulkanKind.SOFTWARE:
        return ["cpu"]
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    return [f"cuda:{index}" for index in range(max(1, len(listing.splitlines())))]


def _libero_devices() -> list[str]:
    try:
        working = [str(device.index) for device in egl.egl_devices() if device.vendor is not None]
    except EmbodiedError:
        working = []
    if working:
        return working
    return ["osmesa"] if libraries.has_library("libOSMesa.so.8") else ["0"]
