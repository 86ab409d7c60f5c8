"""Install what headless rendering needs and this machine lacks: `python -m envs.rendering.install`.

As root through apt; without root by unpacking the packages into the user's cache; where neither is possible it prints
the command for an administrator. Looks before it acts: when everything is there it only says so, in about half a
second. Not a general package manager: the list of needs below is all it knows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from embodied.errors import EXIT_DONE, EmbodiedError, SimulatorError
from envs.rendering import apt, egl, libraries, vulkan


class Way(Enum):
    """How to install: by who asks (root or not), system-wide, or into the user's cache."""

    AUTO = "auto"
    SYSTEM = "system"
    USER = "user"


@dataclasses.dataclass(frozen=True)
class Need:
    """Something rendering needs: what it is for, the Debian packages that bring it, and how to see that it is there.

    `missing` returns None when all is well, else the reason in a few words.
    """

    name: str
    packages: tuple[str, ...]
    missing: Callable[[], str | None]


def _vulkan_missing() -> str | None:
    try:
        vulkan.find_vulkan()
    except SimulatorError as error:
        return str(error)
    return None


def _egl_missing() -> str | None:
    try:
        egl.choose_device(egl.egl_devices(), None, None)
    except SimulatorError as error:
        return str(error)
    return None


def _libraries_missing(*sonames: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        libraries.preload()
        absent = [soname for soname in sonames if not libraries.has_library(soname)]
        return f"{', '.join(absent)} not found" if absent else None

    return missing


NEEDS = (
    Need(
        "libraries of sapien and OpenCV",
        ("libgl1", "libglib2.0-0", "libx11-6", "libxcb1"),
        _libraries_missing("libGL.so.1", "libgthread-2.0.so.0", "libX11.so.6", "libxcb.so.1"),
    ),
    Need("Vulkan (ManiSkill)", ("libvulkan1", *apt.MESA_PACKAGES), _vulkan_missing),
    Need("EGL (LIBERO, MuJoCo)", ("libegl1", "libegl-mesa0", "libgl1-mesa-dri"), _egl_missing),
    Need("OSMesa (LIBERO, MuJoCo without EGL)", ("libosmesa6",), _libraries_missing("libOSMesa.so.8")),
)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing_needs() -> list[tuple[Need, str]]:
    """Every need that is not met, with the reason."""
    found = ((need, need.missing()) for need in NEEDS)
    return [(need, reason) for need, reason in found if reason is not None]


def ensure(way: Way = Way.AUTO, report: apt.Report = print) -> bool:
    """Install whatever is missing; returns whether anything was done.

    Raises:
        SimulatorError: it could not be installed, or is still missing afterwards; the message holds the command an
            administrator can run.
    """
    missing = missing_needs()
    if not missing:
        return False
    packages = [package for need, _ in missing for package in need.packages]
    for need, reason in missing:
        report(f"{need.name}: {reason}")
    system = apt.distribution()
    if not system.has_apt:
        raise SimulatorError(f"This system has no apt. Please {apt.install_command(packages)}.")
    if way is Way.AUTO:
        way = Way.SYSTEM if os.geteuid() == 0 else Way.USER
    try:
        if way is Way.SYSTEM:
            apt.install(packages, report)
        else:
            unpack_into_cache([package for need in NEEDS for package in need.packages], report)
    except SimulatorError as error:
        raise SimulatorError(f"{error}\nAn administrator can run: {apt.install_command(packages)}") from error
    still = missing_needs()
    if still:
        reasons = "; ".join(f"{need.name}: {reason}" for need, reason in still)
        raise SimulatorError(
            f"Installed {' '.join(packages)}, but rendering still lacks: {reasons}. "
            f"An administrator can run: {apt.install_command(packages)}"
        )
    return True


def unpack_into_cache(packages: Sequence[str], report: apt.Report) -> Path:
    """Unpack packages into the user's cache and write driver manifests with absolute paths; returns the cache folder.

    The folder appears whole or not at all: everything is made beside it and renamed.
    """
    cache = libraries.cache_folder()
    staging = cache.with_name(f"{cache.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        root = staging / "root"
        root.mkdir(parents=True)
        apt.unpack(packages, root, report)
        ordered = libraries.order_in_child(root)
        (root / "load-order.txt").write_text("".join(f"{path.relative_to(root)}\n" for path in ordered))
        _write_manifest(root, "usr/share/vulkan/icd.d/lvp_icd*.json", staging / "lvp_icd.json", cache)
        _write_manifest(root, "usr/share/glvnd/egl_vendor.d/*mesa*.json", staging / "egl_vendor.json", cache)
        shutil.rmtree(cache, ignore_errors=True)
        staging.rename(cache)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    report(f"unpacked into {cache}")
    return cache


def ensure_browser(report: apt.Report = print) -> bool:
    """Bring Chromium, which the tests of the report's pages drive; returns whether there is a browser afterwards.

    Not needed to use the project, so without root it only says what to run.
    """
    if any(shutil.which(name) for name in BROWSERS):
        return True
    if os.geteuid() != 0 or not apt.distribution().has_apt:
        report(
            f"no browser: tests of the report's pages will be skipped. To add one: {apt.install_command(['chromium'])}"
        )
        return False
    try:
        apt.install(["chromium"], report)
    except SimulatorError as error:
        report(f"no browser: {error} Tests of the report's pages will be skipped.")
    return any(shutil.which(name) for name in BROWSERS)


def _write_manifest(root: Path, pattern: str, target: Path, cache: Path) -> None:
    """Copy a driver's manifest with its library as an absolute path in the folder's final place."""
    manifests = sorted(root.glob(pattern))
    if not manifests:
        raise SimulatorError(f"Expected a driver manifest {pattern} among the unpacked packages, but there is none.")
    manifest = json.loads(manifests[0].read_text())
    name = Path(manifest["ICD"]["library_path"]).name
    library = next(iter(sorted(root.glob(f"**/{name}"))), None)
    if library is None:
        raise SimulatorError(f"{manifests[0].name} names {name}, which is not among the unpacked packages.")
    manifest["ICD"]["library_path"] = str(cache / "root" / library.relative_to(root))
    target.write_text(json.dumps(manifest, indent=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.rendering.install",
        description="Install the system libraries that headless rendering needs, if any is missing.",
    )
    parser.add_argument("--check", action="store_true", help="only say what is missing (exit code 1 if anything is)")
    parser.add_argument(
        "--into",
        type=Way,
        choices=list(Way),
        default=Way.AUTO,
        metavar="|".join(way.value for way in Way),
        help="system: apt, as root; user: unpacked into ~/.cache/embodied; auto: system for root, user otherwise",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing when everything is there")
    parser.add_argument("--browser", action="store_true", help="bring the browser that the report's tests use, instead")
    options = parser.parse_args(arguments)
    if options.check:
        missing = missing_needs()
        for need, reason in missing:
            print(f"missing: {need.name}: {reason}")
        return 1 if missing else EXIT_DONE
    try:
        if options.browser:
            ensure_browser()
            return EXIT_DONE
        changed = ensure(options.into)
    except EmbodiedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if changed or not options.quiet:
        print("rendering libraries: installed" if changed else "rendering libraries: all there")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
