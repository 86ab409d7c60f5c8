"""Choose how MuJoCo (LIBERO, gymnasium's MuJoCo tasks) draws without a screen, and on which device.

EGL first, on the graphics card or on Mesa's software device; OSMesa where no EGL device works. Both draw the same
pixels on a processor. Call `prepare_mujoco` before mujoco, robosuite or libero is imported, since they read MUJOCO_GL
once. `silence_exit` ends their harmless but alarming error lines when the interpreter stops.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

from embodied.errors import ConfigurationError, SimulatorError, suggest
from envs.rendering import libraries, vulkan

_CHOICE_VARIABLE = "EMBODIED_EGL"  # how a parent tells its child processes which devices it found
_PROBE_SECONDS = 30


class MujocoGL(Enum):
    """The values of MUJOCO_GL that need no screen."""

    EGL = "egl"
    OSMESA = "osmesa"


@dataclasses.dataclass(frozen=True)
class EglDevice:
    """One EGL device: its index among EGL's devices, the CUDA index it belongs to, and its driver's vendor.

    `cuda` counts all cards of the machine, whatever CUDA_VISIBLE_DEVICES says; None for a software device.
    `vendor` is None when the device's display could not be initialised.
    """

    index: int
    cuda: int | None
    vendor: str | None


@dataclasses.dataclass(frozen=True)
class MujocoRenderer:
    """What was chosen: the backend, and with EGL the device it draws on."""

    backend: MujocoGL
    device: EglDevice | None = None


def egl_devices() -> list[EglDevice]:
    """Every EGL device of the machine, asked of the library in a child process (0.1 s).

    Raises:
        SimulatorError: EGL is not installed, crashed or did not answer; the message says which.
    """
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("egl_probe.py"))]
    # CUDA numbers only the cards it may see; the map below must know all of them.
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | unpacked_environment()
    try:
        result = subprocess.run(
            [*command, *(str(path) for path in libraries.unpacked_libraries())],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SimulatorError(f"EGL did not answer within {_PROBE_SECONDS} s") from None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with code {result.returncode}"
        raise SimulatorError(f"EGL does not work: {reason}")
    return [EglDevice(**entry) for entry in json.loads(result.stdout)]


def choose_device(devices: list[EglDevice], cuda_index: int | None, visible: str | None) -> EglDevice:
    """The EGL device of a CUDA device, or of none.

    Args:
        devices: what `egl_devices` returned.
        cuda_index: the index as this process counts cards (after CUDA_VISIBLE_DEVICES); None for any device that
            works, cards first.
        visible: the value of CUDA_VISIBLE_DEVICES, or None when it is unset.

    Raises:
        SimulatorError: no device works, or none belongs to that CUDA device.
    """
    working = [device for device in devices if device.vendor is not None]
    if not working:
        raise SimulatorError(f"none of the {len(devices)} EGL devices can be initialised. To mend: {vulkan.MEND}")
    if cuda_index is None:
        return min(working, key=lambda device: (device.cuda is None, device.index))
    physical = _physical_index(cuda_index, visible)
    for device in working:
        if device.cuda == physical:
            return device
    listing = ", ".join(f"EGL {device.index} = CUDA {device.cuda} ({device.vendor})" for device in working)
    raise SimulatorError(
        f"No EGL device belongs to CUDA device {cuda_index} (card {physical} of the machine); found: {listing}. "
        "In a container, NVIDIA_DRIVER_CAPABILITIES must include graphics."
    )


def prepare_mujoco(*, cuda_index: int | None = None, processes: int = 1) -> MujocoRenderer:
    """Choose backend and device and set this process's environment; call before mujoco or robosuite is imported.

    MUJOCO_GL and MUJOCO_EGL_DEVICE_ID set by the user are kept as they are.

    Args:
        cuda_index: draw on this card (as this process counts them), or None for any.
        processes: how many processes will render at once; software rendering shares the cores among them.

    Raises:
        ConfigurationError: MUJOCO_GL is set to something that needs a screen or does not exist.
        SimulatorError: nothing works; the message holds the command that installs what is missing.
    """
    wanted = os.environ.get("MUJOCO_GL")
    valid = [backend.value for backend in MujocoGL]
    if wanted and wanted not in valid:
        raise ConfigurationError(f"MUJOCO_GL is {wanted!r}. {suggest(wanted, valid, noun='headless backends')}")
    libraries.preload()
    os.environ.update(unpacked_environment())
    renderer = _choose(MujocoGL(wanted) if wanted else None, cuda_index)
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = renderer.backend.value
    if renderer.device is not None:
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", str(renderer.device.index))
    if renderer.device is None or renderer.device.cuda is None:
        vulkan.share_cores(processes)
    return renderer


def unpacked_environment() -> dict[str, str]:
    """Variables that lead libEGL to the drivers unpacked into the user's cache; empty without them."""
    root = libraries.unpacked_root()
    manifest = libraries.cache_folder() / "egl_vendor.json"
    if root is None or not manifest.exists():
        return {}
    found = {"__EGL_VENDOR_LIBRARY_FILENAMES": str(manifest)}
    drivers = next(iter(sorted(root.glob("usr/lib/*/dri"))), None)
    return found | ({"LIBGL_DRIVERS_PATH": str(drivers)} if drivers else {})


@contextlib.contextmanager
def cuda_devices_hidden() -> Iterator[None]:
    """Hide CUDA_VISIBLE_DEVICES while robosuite is imported.

    robosuite refuses an EGL index that does not appear among the CUDA indices, although the two count differently.
    """
    visible = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        yield
    finally:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _choose(wanted: MujocoGL | None, cuda_index: int | None) -> MujocoRenderer:
    reasons = []
    if wanted is not MujocoGL.OSMESA:
        try:
            device = choose_device(_known_devices(), cuda_index, os.environ.get("CUDA_VISIBLE_DEVICES"))
            return MujocoRenderer(MujocoGL.EGL, device)
        except SimulatorError as error:
            if wanted is MujocoGL.EGL or cuda_index is not None:
                raise
            reasons.append(str(error))
    if any(libraries.has_library(f"libOSMesa.so.{version}") for version in (8, 6)):
        return MujocoRenderer(MujocoGL.OSMESA)
    reasons.append("OSMesa (libOSMesa.so.8) is not installed")
    raise SimulatorError(f"MuJoCo cannot draw on this machine: {'; '.join(reasons)}. To mend: {vulkan.MEND}")


def _known_devices() -> list[EglDevice]:
    handed_down = os.environ.get(_CHOICE_VARIABLE)
    if handed_down:
        return [EglDevice(**entry) for entry in json.loads(handed_down)]
    devices = egl_devices()
    os.environ[_CHOICE_VARIABLE] = json.dumps([dataclasses.asdict(device) for device in devices])
    return devices


def _physical_index(cuda_index: int, visible: str | None) -> int:
    if not visible:
        return cuda_index
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if cuda_index >= len(entries):
        raise SimulatorError(f"CUDA device {cuda_index} is not among CUDA_VISIBLE_DEVICES={visible!r}")
    entry = entries[cuda_index]
    if entry.isdigit():
        return int(entry)
    listing = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
    )
    for line in listing.stdout.splitlines():
        index, _, uuid = line.partition(",")
        if uuid.strip().startswith(entry):
            return int(index)
    raise SimulatorError(f"nvidia-smi knows no card {entry!r}, which CUDA_VISIBLE_DEVICES={visible!r} names")


# Classes whose destructors talk to EGL: the module that holds them, the method that does, and the attribute that only
# a completely built object has.
_NOISY = (
    ("mujoco.egl", "GLContext", "free", "_context"),
    ("robosuite.renderers.context.egl_context", "EGLGLContext", "free", "_context"),
    ("robosuite.utils.binding_utils", "MjRenderContext", "__del__", "con"),
)
_exit_begun = threading.Event()
_silenced: set[type] = set()


def silence_exit() -> None:
    """Keep MuJoCo's and robosuite's rendering contexts from freeing themselves after EGL was shut down at exit.

    Both libraries end EGL in an exit handler; contexts that are still alive then fail in their destructors and print
    stack traces that hide whatever really happened; so do contexts that could not be built in the first place. Once
    the exit handlers run, freeing is left to the operating system; before that nothing changes for whole objects.
    Call it after the simulators were imported; calling again is harmless.
    """
    if not _silenced:
        atexit.register(_exit_begun.set)
    for module_name, class_name, method, built in _NOISY:
        owner = getattr(sys.modules.get(module_name), class_name, None)
        if owner is not None and owner not in _silenced:
            setattr(owner, method, _until_exit(getattr(owner, method), built))
            _silenced.add(owner)


def _until_exit(method: Callable[[object], None], built: str) -> Callable[[object], None]:
    @functools.wraps(method)
    def guarded(self: object) -> None:
        if hasattr(self, built) and not _exit_begun.is_set():
            method(self)

    return guarded
