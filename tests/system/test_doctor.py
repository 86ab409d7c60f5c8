"""`embodied doctor`, whole, in a process of its own, with the machine's real drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embodied.commands.main import main
from embodied.system.checks import State, shared_memory
from embodied.system.drawing import draw
from embodied.system.frames import SIZE, Simulator

HOME = Path(__file__).resolve().parents[2]
DOCTOR = "import sys; from embodied.commands.main import main; sys.exit(main(['doctor', *sys.argv[1:]]))"


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VK_", "EMBODIED_", "MUJOCO_", "PYOPENGL"))}
    return subprocess.run(
        [sys.executable, "-c", DOCTOR, *arguments],
        cwd=HOME,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_missing_vulkan_driver_fails_with_its_remedy_while_the_rest_is_fine(tmp_path: Path) -> None:
    result = doctor("--json", "--out", str(tmp_path), VK_ICD_FILENAMES="/nowhere/icd.json")
    assert result.returncode == 1, result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is False
    findings = {finding["name"]: finding for finding in report["findings"]}
    failed = {name for name, finding in findings.items() if finding["state"] == "failed"}
    assert failed == {"Vulkan", "frame: maniskill on cpu"}
    assert findings["Vulkan"]["mend"] == "unset VK_ICD_FILENAMES"
    assert "/nowhere/icd.json" in findings["frame: maniskill on cpu"]["detail"]
    assert {"Python", "packages", "memory", "shared memory", "disk", "EGL", "ffmpeg", "Ray"} <= findings.keys()

    (libero,) = (finding for name, finding in findings.items() if name.startswith("frame: libero"))
    picture = np.asarray(Image.open(libero["detail"]))
    assert picture.shape == (SIZE, SIZE, 3)
    assert picture.std() > 20  # a lit scene with a robot in it, not a flat colour


@pytest.mark.slow
def test_table_lists_every_check_and_says_that_all_is_right(tmp_path: Path) -> None:
    result = doctor("--out", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("Python", "packages", "processor", "Vulkan", "EGL", "frame: maniskill", "frame: libero"):
        assert name in result.stdout
    assert "all right" in result.stdout
    assert len(list(tmp_path.glob("*.png"))) >= 2


def test_simulator_that_hangs_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    finding = draw(Simulator.MANISKILL, "cpu", tmp_path, deadline=0.3)
    assert finding.state is State.FAILED
    assert finding.detail == "no picture within 0.3 s"
    assert finding.mend == "embodied doctor --deadline 0.6"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--deadline", "0", "above 0"),
        ("--deadline", "-3", "above 0"),
        ("--deadline", "nan", "above 0"),
        ("--out", __file__, "cannot be written: File exists; choose another with --out"),
    ],
)
def test_what_cannot_be_is_refused_at_once(option: str, value: str, said: str, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", option, value]) == 2
    assert said in capsys.readouterr().err


def test_reason_of_a_failed_drawing_is_the_simulators_own(tmp_path: Path) -> None:
    finding = draw(Simulator.LIBERO, "63", tmp_path, deadline=120)  # there is no such EGL device
    assert finding.state is State.FAILED
    assert "63" in finding.detail


def test_missing_shared_memory_is_a_fault(tmp_path: Path) -> None:
    (finding,) = shared_memory(tmp_path / "shm")
    assert finding.state is State.FAILED
    assert "mount" in finding.mend
