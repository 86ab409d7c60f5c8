"""List the EGL devices of this machine with the CUDA device each belongs to, as JSON, without any OpenGL package.

Run as a program in a child process (`python egl_probe.py [LIBRARY...]`, libraries to load first, in order), because
drivers crash and because a display once initialised stays. Constants: the EGL registry (EXT_device_base,
EXT_device_query, EXT_platform_device, NV_device_cuda).
"""

from __future__ import annotations

import ctypes
import json
import sys

EGL_VENDOR = 0x3053
EGL_CUDA_DEVICE_NV = 0x323A
EGL_PLATFORM_DEVICE_EXT = 0x313F
DEVICES_AT_MOST = 64


def extension(egl: ctypes.CDLL, name: str, result: type, arguments: list[type]) -> ctypes._CFuncPtr:
    """An extension function of the EGL library; raises OSError if the library does not have it."""
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(name.encode())
    if not address:
        raise OSError(f"this EGL library has no {name}")
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def devices() -> list[dict[str, object]]:
    """Index, CUDA index (or None) and vendor (None if the display cannot be initialised) of every EGL device."""
    egl = ctypes.CDLL("libEGL.so.1")
    pointer, integer, boolean = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32
    query = extension(egl, "eglQueryDevicesEXT", boolean, [integer, pointer, pointer])
    attribute = extension(egl, "eglQueryDeviceAttribEXT", boolean, [pointer, integer, pointer])
    platform_display = extension(egl, "eglGetPlatformDisplayEXT", pointer, [boolean, pointer, pointer])
    egl.eglInitialize.argtypes = [pointer, pointer, pointer]
    egl.eglQueryString.argtypes = [pointer, integer]
    egl.eglQueryString.restype = ctypes.c_char_p

    handles = (pointer * DEVICES_AT_MOST)()
    count = integer()
    if not query(DEVICES_AT_MOST, ctypes.cast(handles, pointer), ctypes.cast(ctypes.byref(count), pointer)):
        raise OSError("eglQueryDevicesEXT failed")
    found = []
    for index in range(count.value):
        value = ctypes.c_ssize_t(-1)
        has_cuda = attribute(handles[index], EGL_CUDA_DEVICE_NV, ctypes.cast(ctypes.byref(value), pointer))
        display = platform_display(EGL_PLATFORM_DEVICE_EXT, handles[index], None)
        vendor = egl.eglQueryString(display, EGL_VENDOR) if display and egl.eglInitialize(display, None, None) else None
        found.append(
            {
                "index": index,
                "cuda": value.value if has_cuda and value.value >= 0 else None,
                "vendor": vendor.decode(errors="replace") if vendor else None,
            }
        )
    return found


def main(arguments: list[str]) -> int:
    """Load the libraries named first, then print the devices as JSON."""
    try:
        for path in arguments:
            ctypes.CDLL(path)
        print(json.dumps(devices()))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
