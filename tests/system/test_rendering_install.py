"""Bringing the rendering libraries: what apt would be asked, and the way without root, with real packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.errors import SimulatorError
from envs.rendering import apt, install

HOME = Path(__file__).resolve().parents[2]
BOOKWORM = apt.Distribution("debian", "bookworm", has_apt=True)
needs_bookworm = pytest.mark.skipif(apt.distribution() != BOOKWORM, reason="is about Debian 12's packages")


def test_only_debian_12_needs_a_newer_mesa_from_elsewhere(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    assert apt.distribution(release).backports == "bookworm-backports"
    release.write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    assert apt.distribution(release).backports is None
    release.write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    assert apt.distribution(release).backports is None
    assert apt.distribution(tmp_path / "missing").id == ""


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "sources.list.d/debian.sources",
            "Types: deb\nURIs: http://security.example/s\nSuites: bookworm-security\nSigned-By: /k/s.gpg\n\n"
            "Types: deb\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
            "Components: main\nSigned-By: /k/debian.gpg\n",
            ("http://mirror.example/debian", "/k/debian.gpg"),
        ),
        (
            "sources.list",
            "# deb http://old.example/debian bookworm main\ndeb http://mirror.example/debian bookworm main contrib\n",
            ("http://mirror.example/debian", ""),
        ),
        (
            "sources.list.d/local.list",
            "deb [arch=amd64 signed-by=/k] http://mirror.example/debian bookworm main\n",
            ("http://mirror.example/debian", ""),
        ),
    ],
)
def test_backports_are_taken_from_the_mirror_in_use(
    tmp_path: Path, file: str, text: str, expected: tuple[str, str]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / file).write_text(text)
    assert apt.mirror(BOOKWORM, tmp_path) == expected


def test_missing_mirror_is_said(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    with pytest.raises(SimulatorError, match="Expected a source of bookworm"):
        apt.mirror(BOOKWORM, tmp_path)


@needs_bookworm
def test_administrator_is_told_the_whole_command() -> None:
    command = apt.install_command(["libegl1", "mesa-vulkan-drivers"])
    assert "bookworm-backports main" in command
    assert "apt-get install -y --no-install-recommends libegl1 " in command
    assert command.endswith("-t bookworm-backports mesa-vulkan-drivers")


def test_nothing_is_done_when_everything_is_there() -> None:
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "envs.rendering.install"], cwd=HOME, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "rendering libraries: all there\n"
    assert time.perf_counter() - began < 5


DRAW = """
import json, sys
from envs.rendering import prepare_vulkan
device = prepare_vulkan()
import sapien
sapien.render.set_camera_shader_dir("minimal")
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem("cpu")])
scene.set_ambient_light([0.5, 0.5, 0.5])
builder = scene.create_actor_builder()
builder.add_box_visual(half_size=[0.2, 0.2, 0.2], material=[1.0, 0.0, 0.0])
builder.build_static()
camera = scene.add_camera("front", 64, 64, 1.0, 0.1, 10)
camera.entity.set_pose(sapien.Pose([-1, 0, 0]))
scene.update_render()
camera.take_picture()
picture = camera.get_picture("Color")
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libvulkan_lvp" in line}
print(json.dumps([device.manifest, sorted(libraries), float(picture[32, 32, 0]), float(picture[32, 32, 1])]))
"""


@pytest.mark.slow
@needs_bookworm
def test_unpacked_drivers_draw_without_root(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VK_", "EMBODIED_", "MUJOCO_"))}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    program = (
        "from envs.rendering import install; "
        "install.unpack_into_cache([p for need in install.NEEDS for p in need.packages], print)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, env=environment, capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stderr
    cache = tmp_path / "embodied" / "rendering"
    assert sorted(p.name for p in cache.iterdir()) == ["egl_vendor.json", "lvp_icd.json", "root"]  # nothing left over
    library = Path(json.loads((cache / "lvp_icd.json").read_text())["ICD"]["library_path"])
    assert library.is_relative_to(cache)
    assert library.exists()

    drawn = subprocess.run(
        [sys.executable, "-c", DRAW], cwd=HOME, env=environment, capture_output=True, text=True, timeout=120
    )
    assert drawn.returncode == 0, drawn.stderr
    manifest, loaded, red, green = json.loads(drawn.stdout)
    assert manifest == str(cache / "lvp_icd.json")
    assert loaded == [str(library)]  # the driver in use is the unpacked one, not the system's
    assert red > 0.2
    assert green < 0.1


@pytest.mark.slow
@needs_bookworm
def test_debian_12s_own_driver_is_found_too_old(tmp_path: Path) -> None:
    version = next(
        line.split()[2]
        for line in subprocess.run(
            ["apt-cache", "madison", "mesa-vulkan-drivers"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if "| 22.3" in line
    )
    subprocess.run(["apt-get", "download", f"mesa-vulkan-drivers={version}"], cwd=tmp_path, check=True)
    (archive,) = tmp_path.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(archive), str(tmp_path)], check=True)
    (library,) = tmp_path.glob("usr/lib/*/libvulkan_lvp.so")
    manifest = tmp_path / "lvp_icd.json"
    manifest.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": "1.3.224"}})
    )
    program = "from envs.rendering import find_vulkan; find_vulkan()"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HOME,
        env=os.environ | {"VK_ICD_FILENAMES": str(manifest)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "is too old: it lacks descriptorBindingPartiallyBound" in result.stderr


def test_a_browser_that_cannot_be_installed_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SimulatorError("there is no package chromium.")

    monkeypatch.setattr(install, "BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(install.os, "geteuid", lambda: 0)
    monkeypatch.setattr(install.apt, "distribution", lambda: BOOKWORM)
    monkeypatch.setattr(install.apt, "install", refused)
    said: list[str] = []
    assert install.ensure_browser(said.append) is False
    assert "there is no package chromium. Tests of the report's pages will be skipped" in said[0]
