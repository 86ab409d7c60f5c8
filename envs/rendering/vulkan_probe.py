"""Ask a Vulkan loader which devices it finds and whether they have what sapien's renderer needs; print JSON.

Run as a program in a child process (`python vulkan_probe.py LOADER`), because a broken driver may crash the
process that loads it. It uses nothing but ctypes, so it starts in a few hundredths of a second. Structure layouts
and constants: the Vulkan 1.2 specification.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys

STRUCTURE_TYPE_APPLICATION_INFO = 0
STRUCTURE_TYPE_INSTANCE_CREATE_INFO = 1
STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2 = 1000059000
STRUCTURE_TYPE_DESCRIPTOR_INDEXING_FEATURES = 1000161001
API_VERSION_1_2 = (1 << 22) | (2 << 12)
DEVICE_TYPES = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}

# VkPhysicalDeviceFeatures is 55 booleans, VkPhysicalDeviceDescriptorIndexingFeatures 20, of which this is the 18th.
CORE_FEATURES = 55
INDEXING_FEATURES = 20
PARTIALLY_BOUND = 17


class ApplicationInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("application_name", ctypes.c_char_p),
        ("application_version", ctypes.c_uint32),
        ("engine_name", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class InstanceCreateInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.POINTER(ApplicationInfo)),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]


class IndexingFeatures(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("next", ctypes.c_void_p), ("values", ctypes.c_uint32 * INDEXING_FEATURES)]


class Features2(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("next", ctypes.c_void_p), ("values", ctypes.c_uint32 * CORE_FEATURES)]


def check(result: int, call: str) -> None:
    """Raise OSError when a Vulkan call did not return VK_SUCCESS."""
    if result != 0:
        raise OSError(f"{call} returned {result}")


def devices(loader: str) -> list[dict[str, object]]:
    """Name, type, API version and the needed feature of every device the loader at this path (or soname) finds."""
    vk = ctypes.CDLL(loader)
    application = ApplicationInfo(
        type=STRUCTURE_TYPE_APPLICATION_INFO, application_name=b"embodied", api_version=API_VERSION_1_2
    )
    create = InstanceCreateInfo(type=STRUCTURE_TYPE_INSTANCE_CREATE_INFO, application_info=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    check(vk.vkCreateInstance(ctypes.byref(create), None, ctypes.byref(instance)), "vkCreateInstance")
    count = ctypes.c_uint32()
    check(vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None), "vkEnumeratePhysicalDevices")
    handles = (ctypes.c_void_p * count.value)()
    check(vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles), "vkEnumeratePhysicalDevices")

    found = []
    for handle in handles:
        device = ctypes.c_void_p(handle)
        properties = ctypes.create_string_buffer(4096)  # VkPhysicalDeviceProperties is about 830 bytes
        vk.vkGetPhysicalDeviceProperties(device, properties)
        api_version, _driver_version, _vendor, _id, device_type = struct.unpack_from("5I", properties.raw)
        indexing = IndexingFeatures(type=STRUCTURE_TYPE_DESCRIPTOR_INDEXING_FEATURES)
        features = Features2(
            type=STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
            next=ctypes.cast(ctypes.pointer(indexing), ctypes.c_void_p),
        )
        if api_version >= API_VERSION_1_2:
            vk.vkGetPhysicalDeviceFeatures2(device, ctypes.byref(features))
        found.append(
            {
                "name": properties.raw[20:276].split(b"\0")[0].decode(errors="replace"),
                "type": DEVICE_TYPES.get(device_type, "other"),
                "api_version": f"{api_version >> 22}.{(api_version >> 12) & 0x3FF}.{api_version & 0xFFF}",
                "partially_bound": bool(indexing.values[PARTIALLY_BOUND]),
            }
        )
    vk.vkDestroyInstance(instance, None)
    return found


def main(arguments: list[str]) -> int:
    """Print the devices as JSON; `arguments` are the loader, then libraries to load before it, in order."""
    loader, *preload = arguments
    try:
        for path in preload:
            ctypes.CDLL(path)
        print(json.dumps(devices(loader)))
    except (OSError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
