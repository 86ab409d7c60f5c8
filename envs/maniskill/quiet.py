"""Scopes around ManiSkill's construction: without questions on stdin, without noise, and without a graphics driver.

Everything changed here is restored when the scope ends.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from embodied.errors import AssetError

logger = logging.getLogger("envs.maniskill")


class _NoAnswers(io.TextIOBase):
    """Standard input of somebody who is not there."""

    def readline(self, size: int | None = -1, /) -> str:
        raise EOFError("no questions are answered here")

    read = readline


@contextlib.contextmanager
def without_questions(task: str) -> Iterator[None]:
    """Turn a download prompt, and the exit that follows it, into AssetError; log what the simulator prints."""
    printed = io.StringIO()
    stdin = sys.stdin
    sys.stdin = _NoAnswers()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except (EOFError, SystemExit, FileNotFoundError) as error:
        said = " ".join(printed.getvalue().split()) or str(error)
        raise AssetError(
            f"{task} needs files that are not on this machine. The simulator says: {said} "
            f"Fetch them with `embodied assets fetch maniskill/{task}`."
        ) from error
    finally:
        sys.stdin = stdin
        if printed.getvalue().strip():
            logger.debug("%s: %s", task, printed.getvalue().strip())


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Hold back warnings that concern the simulator's own code and assets; its errors stay visible."""
    sapien = importlib.import_module("sapien")
    names = ("mani_skill ", "mani_skill", "pytorch_kinematics", "trimesh")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    sapien.set_log_level("error")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        sapien.set_log_level("warning")


class _Blank:
    """Takes the place of a render material, texture or shape where nothing will ever be drawn."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __setattr__(self, name: str, value: Any) -> None:
        pass


@contextlib.contextmanager
def without_graphics() -> Iterator[None]:
    """Build scenes without touching the graphics driver: materials and shapes of visuals become blanks."""
    render = importlib.import_module("sapien.render")
    builder = importlib.import_module("sapien.wrapper.actor_builder").ActorBuilder
    repeated_plane = importlib.import_module("mani_skill.utils.building.actor_builder").ActorBuilder
    native = importlib.import_module("sapien").pysapien.render
    blank_names = [
        name for name in dir(native) if name.startswith(("RenderShape", "RenderMaterial", "RenderTexture2D"))
    ]
    changes: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        changes.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def unchanged(self: Any, *_: Any, **__: Any) -> Any:
        return self

    try:
        for name in blank_names:
            for module in (render, native):
                put(module, name, _Blank)
        for module_name in ("sapien.wrapper.urdf_loader", "mani_skill.utils.building._mjcf_loader"):
            module = importlib.import_module(module_name)
            for name in blank_names:
                if hasattr(module, name):
                    put(module, name, _Blank)
        for name in [n for n in vars(builder) if n.startswith("add_") and "visual" in n]:
            put(builder, name, unchanged)
        put(repeated_plane, "add_plane_repeated_visual", unchanged)
        yield
    finally:
        for owner, name, value in reversed(changes):
            setattr(owner, name, value)
