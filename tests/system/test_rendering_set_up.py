"""Choosing a driver and preparing the process: with the machine's own drivers, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embodied.errors import ConfigurationError, SimulatorError
from envs.rendering import VulkanKind, egl, find_vulkan, vulkan
from envs.rendering.egl import EglDevice, MujocoGL, choose_device, prepare_mujoco

HOME = Path(__file__).resolve().parents[2]
DRIVER_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "EMBODIED_VULKAN", "MUJOCO_GL", "PYOPENGL_PLATFORM")


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in DRIVER_VARIABLES and not k.startswith("LP_")}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, env=clean | environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for variable in (*DRIVER_VARIABLES, "EMBODIED_EGL", "MUJOCO_EGL_DEVICE_ID", "LP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def test_driver_of_this_machine_can_bind_descriptors_partially(clean_environment: pytest.MonkeyPatch) -> None:
    device = find_vulkan()
    assert device.name
    assert device.kind in VulkanKind
    assert all(Path(part).exists() for part in device.manifest.split(":"))


def test_driver_named_by_the_user_is_never_replaced(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("VK_ICD_FILENAMES", "/nowhere/icd.json")
    with pytest.raises(SimulatorError, match=r"set to '/nowhere/icd\.json'.*Unset the variable"):
        find_vulkan()


def test_prepared_environment_names_the_driver_and_shares_the_cores() -> None:
    program = """
import json, os
from envs.rendering import prepare_vulkan
device = prepare_vulkan(processes=64)
print(json.dumps([device.kind.value, device.manifest, os.environ["VK_ICD_FILENAMES"], os.environ["VK_DRIVER_FILES"],
                  os.environ.get("LP_NUM_THREADS")]))
"""
    result = run_python(program)
    assert result.returncode == 0, result.stderr
    kind, manifest, old_name, new_name, threads = json.loads(result.stdout)
    assert manifest == old_name == new_name
    assert threads == ("1" if kind == "software" else None)


def test_child_process_takes_over_the_finding_without_probing() -> None:
    # The handed-down device does not exist: a probe would refuse it.
    handed_down = json.dumps(
        {"name": "handed down", "kind": "gpu", "api_version": "1.3", "manifest": "/nowhere.json", "remarks": []}
    )
    result = run_python(
        "from envs.rendering import prepare_vulkan; print(prepare_vulkan().name)",
        EMBODIED_VULKAN=handed_down,
        VK_ICD_FILENAMES="/nowhere.json",
    )
    assert result.stdout.strip() == "handed down", result.stderr


def test_choosing_after_sapien_was_imported_is_refused() -> None:
    result = run_python("import sapien\nfrom envs.rendering import prepare_vulkan\nprepare_vulkan()")
    assert "SimulatorError: The Vulkan driver must be chosen before sapien is imported" in result.stderr


def test_thread_count_set_by_the_user_is_kept(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("LP_NUM_THREADS", "3")
    assert vulkan.share_cores(processes=1) == 3


# Two cards whose EGL order is the reverse of CUDA's, and Mesa's software device.
DEVICES = [EglDevice(0, 1, "NVIDIA"), EglDevice(1, 0, "NVIDIA"), EglDevice(2, None, "Mesa Project")]


@pytest.mark.parametrize(
    ("cuda_index", "visible", "expected"),
    [
        (0, None, 1),
        (1, None, 0),
        (0, "1", 0),  # the process's first card is the machine's second
        (1, "1,0", 1),
        (None, None, 0),  # any: a card, before the software device
    ],
)
def test_cuda_index_is_mapped_to_egl_index(cuda_index: int | None, visible: str | None, expected: int) -> None:
    assert choose_device(DEVICES, cuda_index, visible).index == expected


def test_software_device_is_used_where_no_card_can_be_initialised() -> None:
    broken = [EglDevice(0, 0, None), EglDevice(1, None, "Mesa Project")]
    assert choose_device(broken, None, None).index == 1


def test_card_without_egl_device_is_refused_with_what_there_is() -> None:
    with pytest.raises(SimulatorError, match=r"CUDA device 2 .*EGL 0 = CUDA 1 \(NVIDIA\), EGL 1 = CUDA 0"):
        choose_device(DEVICES, 2, None)
    with pytest.raises(SimulatorError, match=r"CUDA device 1 is not among CUDA_VISIBLE_DEVICES='0'"):
        choose_device(DEVICES, 1, "0")
    with pytest.raises(SimulatorError, match="none of the 1 EGL devices can be initialised"):
        choose_device([EglDevice(0, 0, None)], None, None)


def test_egl_of_this_machine_lists_a_device_that_works() -> None:
    assert any(device.vendor for device in egl.egl_devices())


def test_backend_that_needs_a_screen_is_refused(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(ConfigurationError, match=r"MUJOCO_GL is 'glfw'.*egl, osmesa"):
        prepare_mujoco()


def test_backend_chosen_by_the_user_is_kept(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("MUJOCO_GL", "osmesa")
    assert prepare_mujoco().backend is MujocoGL.OSMESA
    assert os.environ["PYOPENGL_PLATFORM"] == "osmesa"


OPEN_A_CONTEXT = """
from envs.rendering import prepare_mujoco, silence_exit
prepare_mujoco()
import OpenGL.error
from robosuite.renderers.context.egl_context import EGLGLContext
{silence}
context = EGLGLContext(64, 64)
context.make_current()
OpenGL.error.kept_to_the_end = context  # dies when modules are torn down, as the contexts of a whole simulator do
{end}
"""


def test_context_left_open_at_exit_is_noisy_by_itself_and_quiet_when_silenced() -> None:
    noisy = run_python(OPEN_A_CONTEXT.format(silence="", end=""), MUJOCO_GL="egl")
    # What there is to silence; when this fails, silence_exit has become superfluous.
    assert "Exception ignored in" in noisy.stderr
    quiet = run_python(OPEN_A_CONTEXT.format(silence="silence_exit()", end=""), MUJOCO_GL="egl")
    assert quiet.returncode == 0
    assert "Exception ignored in" not in quiet.stderr


def test_context_is_still_freed_before_exit_when_silenced() -> None:
    end = "context.free(); print(context._context)"
    result = run_python(OPEN_A_CONTEXT.format(silence="silence_exit()", end=end), MUJOCO_GL="egl")
    assert result.stdout.splitlines()[-1] == "None", result.stderr
