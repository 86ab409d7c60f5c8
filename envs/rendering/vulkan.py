"""Find a Vulkan device that sapien (ManiSkill's engine) can render with, and point this process at it.

Two drivers count: NVIDIA's, and Mesa's software rasteriser lavapipe, if new enough (sapien binds descriptor arrays
partially, which lavapipe of Debian 12, 22.3, cannot). Call `prepare_vulkan` before sapien is imported: the loader
reads the environment once. Nothing here renders or installs; see `install.py` and `embodied doctor` for that.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

from embodied.errors import SimulatorError
from envs.rendering import libraries

MEND = "python -m envs.rendering.install"
# Both names are read: VK_DRIVER_FILES by current loaders, VK_ICD_FILENAMES by old ones and by sapien itself.
DRIVER_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
_CHOICE_VARIABLE = "EMBODIED_VULKAN"  # how a parent tells its child processes what it found
_PROBE_SECONDS = 30
_MANIFEST_FOLDERS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
_SOFTWARE_THREADS_AT_MOST = 4


class VulkanKind(Enum):
    """What draws: a graphics card or the processor."""

    GPU = "gpu"
    SOFTWARE = "software"


@dataclasses.dataclass(frozen=True)
class VulkanDevice:
    """A device that was probed and found usable, and how to reach it.

    `manifest` is the driver's JSON file, or several joined by colons, as the loader takes them; `remarks` says what
    was tried before and why it was passed over.
    """

    name: str
    kind: VulkanKind
    api_version: str
    manifest: str
    remarks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Candidate:
    label: str
    manifest: str


def find_vulkan() -> VulkanDevice:
    """The first usable device: what the environment names, else NVIDIA's driver, else lavapipe (cache, then system).

    Each candidate is probed in a child process (about 0.2 s). A driver named by the user in VK_ICD_FILENAMES or
    VK_DRIVER_FILES is the only candidate: it is never replaced silently.

    Raises:
        SimulatorError: no usable device; the message lists what was tried and the command that installs one.
    """
    named = next((os.environ[v] for v in DRIVER_VARIABLES if os.environ.get(v)), None)
    candidates = [_Candidate("the environment's driver", named)] if named else _candidates()
    remarks: list[str] = []
    for candidate in candidates:
        device = _probe(candidate, remarks)
        if device is not None:
            return dataclasses.replace(device, remarks=tuple(remarks))
    tried = "; ".join(remarks) if remarks else "no driver manifest of NVIDIA or lavapipe exists on this machine"
    if named:
        raise SimulatorError(
            f"Expected a usable Vulkan driver in VK_ICD_FILENAMES/VK_DRIVER_FILES, which is set to {named!r}, "
            f"but {tried}. Unset the variable to let one be found, or name a working driver."
        )
    raise SimulatorError(f"Rendering in ManiSkill needs a Vulkan device, but {tried}. To install one: {MEND}")


def prepare_vulkan(*, processes: int = 1) -> VulkanDevice:
    """Choose a device and set this process's environment for it; call before sapien is imported.

    Args:
        processes: how many processes will render at once on this machine; software rendering shares the cores
            among them unless LP_NUM_THREADS is already set.

    Raises:
        SimulatorError: no usable device, or sapien was imported before with another environment.
    """
    handed_down = os.environ.get(_CHOICE_VARIABLE)
    device = _from_text(handed_down) if handed_down else None
    if device is None or device.manifest != os.environ.get(DRIVER_VARIABLES[0]):
        device = find_vulkan()
        before = os.environ.get(DRIVER_VARIABLES[0])
        if before != device.manifest and "sapien" in sys.modules:
            raise SimulatorError(
                "The Vulkan driver must be chosen before sapien is imported, but it was imported already. "
                "Call envs.rendering.prepare_vulkan() first in this process."
            )
        for variable in DRIVER_VARIABLES:
            os.environ[variable] = device.manifest
        os.environ[_CHOICE_VARIABLE] = _to_text(device)
    libraries.preload()
    if device.kind is VulkanKind.SOFTWARE:
        share_cores(processes)
    return device


def share_cores(processes: int) -> int:
    """Set LP_NUM_THREADS, the rasteriser's thread count, unless it is set; returns the value in force."""
    cores = len(os.sched_getaffinity(0))
    threads = max(1, min(cores // max(1, processes), _SOFTWARE_THREADS_AT_MOST))
    return int(os.environ.setdefault("LP_NUM_THREADS", str(threads)))


def loader_path() -> str | None:
    """The Vulkan loader to use: the system's, the cache's, or the one inside the sapien package; None without any."""
    libraries.preload()
    if libraries.has_library("libvulkan.so.1"):
        return "libvulkan.so.1"
    sapien = find_spec("sapien")
    if sapien is None or not sapien.submodule_search_locations:
        return None
    bundled = sorted(Path(sapien.submodule_search_locations[0], "vulkan_library").glob("libvulkan.so.*"))
    return str(bundled[-1]) if bundled else None


def _candidates() -> list[_Candidate]:
    nvidia, software = [], []
    cached = libraries.cache_folder() / "lvp_icd.json"
    if cached.exists():
        software.append(_Candidate("lavapipe in the user's cache", str(cached)))
    folders = [Path(f) for f in _MANIFEST_FOLDERS]
    for manifest in sorted(m for folder in folders if folder.is_dir() for m in folder.glob("*.json")):
        if "nvidia" in manifest.name:
            nvidia.append(_Candidate("NVIDIA's driver", str(manifest)))
        elif manifest.name.startswith("lvp_icd"):
            software.append(_Candidate("the system's lavapipe", str(manifest)))
    if not nvidia and _has_nvidia_driver():
        bundled = find_spec("sapien")
        if bundled is not None and bundled.submodule_search_locations:
            manifest = Path(bundled.submodule_search_locations[0], "vulkan_library", "nvidia_icd.json")
            if manifest.exists():  # containers often have the driver but not its manifest
                nvidia.append(_Candidate("NVIDIA's driver through sapien's manifest", str(manifest)))
    return nvidia + software


def _has_nvidia_driver() -> bool:
    return libraries.has_library("libGLX_nvidia.so.0")


def _probe(candidate: _Candidate, remarks: list[str]) -> VulkanDevice | None:
    loader = loader_path()
    if loader is None:
        remarks.append("there is no Vulkan loader (libvulkan.so.1)")
        return None
    environment = os.environ | dict.fromkeys(DRIVER_VARIABLES, candidate.manifest)
    program = Path(__file__).with_name("vulkan_probe.py")
    preload = [str(path) for path in libraries.unpacked_libraries()]
    try:
        result = subprocess.run(
            [sys.executable, "-I", "-S", str(program), loader, *preload],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        remarks.append(f"{candidate.label} did not answer within {_PROBE_SECONDS} s")
        return None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with code {result.returncode}"
        remarks.append(f"{candidate.label} ({candidate.manifest}) failed: {reason}")
        return None
    found = json.loads(result.stdout)
    for entry in found:
        if entry["partially_bound"]:
            kind = VulkanKind.SOFTWARE if entry["type"] == "cpu" else VulkanKind.GPU
            return VulkanDevice(entry["name"], kind, entry["api_version"], candidate.manifest)
    if found:
        names = ", ".join(str(entry["name"]) for entry in found)
        remarks.append(f"{candidate.label} ({names}) is too old: it lacks descriptorBindingPartiallyBound")
    else:
        remarks.append(f"{candidate.label} ({candidate.manifest}) finds no device")
    return None


def _to_text(device: VulkanDevice) -> str:
    return json.dumps(dataclasses.asdict(device) | {"kind": device.kind.value})


def _from_text(text: str) -> VulkanDevice:
    fields = json.loads(text)
    return VulkanDevice(**(fields | {"kind": VulkanKind(fields["kind"]), "remarks": tuple(fields["remarks"])}))
