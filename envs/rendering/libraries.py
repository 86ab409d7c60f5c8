"""Shared libraries for rendering that were unpacked into the user's cache instead of installed system-wide.

`install.py` puts them there when it may not use apt as root. They are loaded into this process by absolute path:
the dynamic linker then satisfies later requests for the same soname with them, so nothing has to be set before the
process starts. What the system has is never replaced, except by a newer library that came along with the driver.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

# Loaded by the Vulkan and OpenGL loaders through their manifests, never by soname.
_DRIVER_PREFIXES = ("libvulkan_", "libEGL_mesa", "libGLX_mesa", "libVkLayer_")


def cache_folder() -> Path:
    """Where unpacked rendering libraries live: `$XDG_CACHE_HOME/embodied/rendering`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "embodied" / "rendering"


def unpacked_root() -> Path | None:
    """The folder that holds the unpacked packages (with `usr/`, `lib/` inside), or None when there is none."""
    root = cache_folder() / "root"
    return root if root.is_dir() else None


def unpacked_libraries() -> list[Path]:
    """The unpacked libraries in an order in which each one's dependencies come before it."""
    root = unpacked_root()
    if root is None:
        return []
    order = root / "load-order.txt"
    return [root / line for line in order.read_text().splitlines()] if order.exists() else []


def loadable_by_soname(root: Path) -> list[Path]:
    """Libraries under `root` that others ask for by soname: one path a soname, drivers and plug-ins left out."""
    found: dict[str, Path] = {}
    for path in sorted(root.glob("**/lib*.so*")):
        if path.name.startswith(_DRIVER_PREFIXES) or path.parent.name in {"dri", "gbm", "vdpau"}:
            continue
        found.setdefault(str(path.resolve()), path)
    return sorted(found.values())


def order_by_dependency(paths: list[Path]) -> list[Path]:
    """Load each library once, dependencies first, and return the order that worked; ones that never load are dropped.

    Loads them into this process for good, which is why `order_in_child` exists.
    """
    ordered: list[Path] = []
    waiting = list(paths)
    while waiting:
        blocked = []
        for path in waiting:
            try:
                ctypes.CDLL(str(path))
            except OSError:
                blocked.append(path)
            else:
                ordered.append(path)
        if len(blocked) == len(waiting):
            break
        waiting = blocked
    return ordered


def order_in_child(root: Path) -> list[Path]:
    """`order_by_dependency` of all libraries under `root`, worked out in a child process."""
    program = (
        "import sys, pathlib; from envs.rendering import libraries as l; "
        "print(*l.order_by_dependency(l.loadable_by_soname(pathlib.Path(sys.argv[1]))), sep='\\n')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(root)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in result.stdout.splitlines() if line]


def preload() -> list[Path]:
    """Load the unpacked libraries into this process; returns them. Repeating it costs nothing."""
    unpacked = unpacked_libraries()
    for path in unpacked:
        ctypes.CDLL(str(path))
    return unpacked


def has_library(soname: str) -> bool:
    """Whether the dynamic linker finds this library, in the system or among those already loaded."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True
