"""A foreign package under one of this project's names is named before it can do harm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.errors import ConfigurationError
from embodied.system.shadowing import check_shadowing, find_foreign

HOME = Path(__file__).resolve().parents[2]


def foreign_package(folder: Path, name: str) -> Path:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    return package


def test_nothing_is_foreign_when_the_project_comes_first() -> None:
    assert find_foreign([str(HOME)]) == []


def test_foreign_package_before_ours_is_named_with_both_places(tmp_path: Path) -> None:
    package = foreign_package(tmp_path, "envs")
    with pytest.raises(ConfigurationError) as raised:
        check_shadowing([str(tmp_path), str(HOME)])
    message = str(raised.value)
    assert str(package) in message
    assert str(HOME / "envs") in message
    assert f"Take {tmp_path} off the path" in message


def test_foreign_package_after_ours_does_no_harm(tmp_path: Path) -> None:
    foreign_package(tmp_path, "policies")
    assert find_foreign([str(HOME), str(tmp_path)]) == []


def test_folder_without_init_does_not_hide_a_package(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()  # as in most projects; a regular package later on the path wins
    assert find_foreign([str(tmp_path), str(HOME)]) == []


def test_every_foreign_package_is_listed(tmp_path: Path) -> None:
    for name in ("envs", "sim_assets"):
        foreign_package(tmp_path, name)
    assert [item.name for item in find_foreign([str(tmp_path), str(HOME)])] == ["envs", "sim_assets"]


def test_command_refuses_to_start_beside_a_foreign_package(tmp_path: Path) -> None:
    foreign_package(tmp_path, "configs")
    program = "import sys; from embodied.commands.main import main; sys.exit(main(['recipes']))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HOME.parent,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{HOME}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert str(tmp_path / "configs") in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.alone
def test_the_check_is_cheap_enough_for_every_start() -> None:
    check_shadowing([str(HOME)])
    times = []
    for _ in range(5):
        began = time.perf_counter()
        check_shadowing([str(HOME)])
        times.append(time.perf_counter() - began)
    assert min(times) < 0.1
