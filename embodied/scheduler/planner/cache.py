"""Profiles that were measured here, kept in the user's cache folder by what they hold for.

A profile holds for one recipe (what its stages compute), on this hardware, with this code. Whatever changes one of the
three changes the file's name, so an old profile is never taken for a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import platformdirs
import psutil
import torch

from embodied import __version__
from embodied.errors import ConfigurationError
from embodied.scheduler.planner.profile import FlowProfile, load_profile

_DIGITS = 16


def cache_folder() -> Path:
    """Where measured profiles are kept: `profiles` in the user's cache folder (`$XDG_CACHE_HOME/embodied`)."""
    return Path(platformdirs.user_cache_dir("embodied", appauthor=False)) / "profiles"


def cached_profile_path(recipe: str, costs: dict[str, Any], packages: tuple[Path, ...]) -> Path:
    """The file of a recipe's profile. costs: everything of the recipe that decides what its stages cost, as plain
    values. packages: folders of the code that runs it."""
    told = json.dumps([costs, hardware(), code_version(packages)], sort_keys=True, default=str)
    return cache_folder() / f"{recipe}_{hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]}.json"


def read_cached(path: Path) -> FlowProfile | None:
    """The profile, if it was measured and is sound; a damaged file is as good as none."""
    if not path.is_file():
        return None
    try:
        return load_profile(path)
    except ConfigurationError:
        return None


def write_cached(profile: FlowProfile, path: Path) -> None:
    """Keep a profile; replaces the file in one step. Raises ConfigurationError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(profile.to_json())
        partial.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"the profile cannot be kept in {path}: {error.strerror or error}. "
            "Name another cache folder by XDG_CACHE_HOME, or a file by --output"
        ) from None


def hardware() -> str:
    """This machine in words: processor, cores that may be used, memory, GPUs."""
    parts = [f"{len(os.sched_getaffinity(0))} cores of {_processor()}", f"{psutil.virtual_memory().total >> 30} GiB"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        parts.append(f"{properties.name} {properties.total_memory >> 30} GiB")
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def code_version(packages: tuple[Path, ...]) -> str:
    """The version, and a fingerprint of the source files of `packages`, beside the versions of torch and NumPy."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\0".encode())
            digest.update(path.read_bytes())
    return f"{__version__} {digest.hexdigest()[:_DIGITS]} torch {torch.__version__}"
