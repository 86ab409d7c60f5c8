"""What a user gets from the wheel: every file of the packages, nothing else, and commands that work from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
PACKAGES = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(HOME)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr[-2000:]
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_every_tracked_file_of_the_packages(wheel: Path) -> None:
    listing = subprocess.run(["git", "ls-files", *PACKAGES], cwd=HOME, capture_output=True, text=True, check=True)
    tracked = {name for name in listing.stdout.splitlines() if (HOME / name).exists()}
    assert {"configs/__init__.py", "sim_assets/__init__.py"} <= tracked
    shipped = set(zipfile.ZipFile(wheel).namelist())
    assert tracked - shipped == set()


def test_wheel_holds_the_recipes(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    recipes = {str(path.relative_to(HOME)) for path in (HOME / "configs").rglob("*.yaml")}
    assert "configs/gym_cartpole_ppo_mlp.yaml" in recipes
    assert recipes <= shipped


def test_wheel_holds_nothing_beside_the_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.slow
def test_installed_wheel_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    # The dependencies are those of this environment; not its editable project, since a .pth inside a .pth is not read.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=elsewhere, env=clean, capture_output=True, text=True, timeout=200)

    where = run(python, "-c", "import embodied, envs, policies, configs, sim_assets; print(embodied.__file__)")
    assert where.stdout.startswith(str(site)), where.stderr
    embodied = str(environment / "bin" / "embodied")
    assert "examples" in run(embodied, "train", "--help").stdout
    recipes = run(embodied, "recipes")
    assert recipes.returncode == 0, recipes.stderr
    assert "maniskill_pushcube_ppo_mlp" in recipes.stdout
    plan = run(embodied, "train", "gym_cartpole_ppo_mlp", "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "policy:" in plan.stdout
    assert list(elsewhere.iterdir()) == []  # looking leaves nothing behind
