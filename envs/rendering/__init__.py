"""Headless rendering: find a driver, point this process at it, and install what is missing.

`prepare_vulkan()` before sapien (ManiSkill) is imported, `prepare_mujoco()` before mujoco, robosuite or LIBERO is;
both are cheap and leave their finding in the environment for child processes. Nothing here draws: the simulators do.
"""

from envs.rendering.egl import MujocoGL, MujocoRenderer, cuda_devices_hidden, prepare_mujoco, silence_exit
from envs.rendering.vulkan import VulkanDevice, VulkanKind, find_vulkan, prepare_vulkan

__all__ = [
    "MujocoGL",
    "MujocoRenderer",
    "VulkanDevice",
    "VulkanKind",
    "cuda_devices_hidden",
    "find_vulkan",
    "prepare_mujoco",
    "prepare_vulkan",
    "silence_exit",
]
