"""The set-up program: refuses what cannot work, never repeats finished work, recovers from a half-made environment.

The end-to-end tests run the real program, with the real venv and pip, on a small project that needs no download.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.system import bootstrap

HOME = Path(__file__).resolve().parents[2]

# A complete build backend, so that pip installs the small project without fetching one.
BACKEND = """
import pathlib, zipfile
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        wheel.writestr("small.pth", str(pathlib.Path.cwd()))
        info = "small-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\nProvides-Extra: dev\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1.0"
description = "{description}"

[tool.ruff]
line-length = {line_length}
"""


def write_project(root: Path, description: str = "first", line_length: int = 80) -> None:
    (root / "pyproject.toml").write_text(PROJECT.format(description=description, line_length=line_length))


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    root = tmp_path / "small project"  # a space in the path, on purpose
    (root / "embodied" / "system").mkdir(parents=True)
    shutil.copy(bootstrap.__file__, root / "embodied" / "system")
    (root / "envs" / "rendering").mkdir(parents=True)
    (root / "envs" / "rendering" / "install.py").write_text("print('rendering looked after')")
    (root / "backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("")
    write_project(root)
    return root


def set_up(root: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    program = root / "embodied" / "system" / "bootstrap.py"
    return subprocess.run([python, "-I", str(program)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 13, 0)])
def test_other_pythons_are_refused_with_the_version_found(version: tuple[int, ...]) -> None:
    with pytest.raises(bootstrap.SetupError, match=rf"3\.11 or 3\.12, but /usr/bin/python3 is 3\.{version[1]}"):
        bootstrap.check_python(version, True, "/usr/bin/python3")


def test_python_without_ensurepip_is_told_which_package_brings_it() -> None:
    with pytest.raises(bootstrap.SetupError, match=r"apt-get install python3\.11-venv"):
        bootstrap.check_python((3, 11, 2), False, "/usr/bin/python3")


def test_key_follows_dependencies_pins_python_and_place_but_not_linter_rules(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("numpy==2.4.6\n")
    write_project(tmp_path)
    key = bootstrap.installation_key(tmp_path, "3.11.7")
    write_project(tmp_path, line_length=120)
    assert bootstrap.installation_key(tmp_path, "3.11.7") == key
    assert bootstrap.installation_key(tmp_path, "3.11.8") != key
    write_project(tmp_path, description="second")
    assert bootstrap.installation_key(tmp_path, "3.11.7") != key
    write_project(tmp_path)
    (tmp_path / "constraints.txt").write_text("numpy==2.4.5\n")
    assert bootstrap.installation_key(tmp_path, "3.11.7") != key
    moved = shutil.copytree(tmp_path, tmp_path / "moved")
    (moved / "constraints.txt").write_text("numpy==2.4.6\n")
    assert bootstrap.installation_key(moved, "3.11.7") != key


def test_half_written_stamp_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / bootstrap.STAMP).write_text('{"key": "a')
    assert not bootstrap.is_set_up(tmp_path, "a")
    (tmp_path / bootstrap.STAMP).write_text('{"key": "a"}')
    assert bootstrap.is_set_up(tmp_path, "a")


def test_environment_whose_python_is_gone_is_not_set_up(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(tmp_path / "uninstalled" / "python")
    (tmp_path / bootstrap.STAMP).write_text('{"key": "a"}')
    assert not bootstrap.is_set_up(tmp_path, "a")


@pytest.mark.alone
def test_finished_work_is_not_repeated(small_project: Path) -> None:
    first = set_up(small_project)
    assert first.returncode == 0, first.stderr
    assert "creating .venv" in first.stdout
    log = small_project / ".venv" / bootstrap.LOG
    assert "Successfully installed small-1.0" in log.read_text()

    log.unlink()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        second = set_up(small_project)
        times.append(time.perf_counter() - began)
    assert min(times) < 2
    assert second.returncode == 0
    assert not log.exists()  # pip did not run
    assert "[setup]" not in second.stdout
    assert "rendering looked after" in second.stdout  # system libraries are looked at each time


@pytest.mark.slow
def test_failed_installation_shows_its_end_and_is_taken_up_again(small_project: Path) -> None:
    (small_project / "backend.py").write_text("raise RuntimeError('the backend is broken')")
    failed = set_up(small_project)
    assert failed.returncode == 1
    assert "the backend is broken" in failed.stderr
    assert bootstrap.LOG in failed.stderr
    assert not (small_project / ".venv" / bootstrap.STAMP).exists()

    (small_project / "backend.py").write_text(BACKEND)
    again = set_up(small_project)
    assert again.returncode == 0, again.stderr
    assert "creating" not in again.stdout  # the environment was whole and is kept


@pytest.mark.slow
def test_moved_checkout_gets_an_environment_of_its_own_place(small_project: Path) -> None:
    assert set_up(small_project).returncode == 0
    moved = small_project.rename(small_project.with_name("moved"))
    result = set_up(moved, python=str(moved / ".venv" / "bin" / "python"))  # as with .venv activated
    assert result.returncode == 0, result.stderr
    assert "rebuilding .venv" in result.stdout
    pip = subprocess.run([str(moved / ".venv" / "bin" / "pip"), "show", "small"], capture_output=True, text=True)
    assert "Version: 1.0" in pip.stdout


@pytest.mark.slow
def test_killed_set_up_leaves_no_stamp_and_the_next_one_finishes(small_project: Path) -> None:
    slow_backend = f"import time; time.sleep(60)\n{BACKEND}"
    (small_project / "backend.py").write_text(slow_backend)
    program = small_project / "embodied" / "system" / "bootstrap.py"
    process = subprocess.Popen([sys.executable, "-I", str(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "installing" in line:
            break
    time.sleep(1)
    process.kill()
    process.wait()
    assert not (small_project / ".venv" / bootstrap.STAMP).exists()
    (small_project / "backend.py").write_text(BACKEND)
    assert set_up(small_project).returncode == 0
    assert json.loads((small_project / ".venv" / bootstrap.STAMP).read_text())["key"]


def test_pins_are_exact_and_name_no_place() -> None:
    lines = (HOME / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 100
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name
        assert version
        assert not set(version) & set("+/@ "), f"{pin} holds only where it was made"
