"""The files that docs/bring-your-own.md shows run as they stand, in a package known by its entry points alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "bring-your-own.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the guide's files, and the metadata that installing them as a package would leave."""
    folder = tmp_path_factory.mktemp("own")
    text = GUIDE.read_text()
    for language, code in re.findall(r"^```(python|yaml)\n(.*?)^```", text, re.M | re.S):
        name = re.match(r"# (\w+\.\w+)\n", code)[1]
        if language == "python":
            assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) < 60, name
        (folder / name).write_text(code)
    points = re.search(r"^```toml\n(.*?)^```", text, re.M | re.S)[1]
    points = re.sub(r'\[project\.entry-points\."([\w.]+)"\]', r"[\1]", points).replace('"', "")
    information = folder / "own-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(points)
    return folder


def run(folder, *command):
    path = os.pathsep.join([str(folder), str(GUIDE.parents[1])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_environment_and_the_policy_pass_their_checks_and_learn(folder):
    last = run(folder, "check_and_train.py").splitlines()[-1]
    before, after = map(float, re.fullmatch(r"success ([\d.]+) -> ([\d.]+)", last).groups())
    assert after > before


@pytest.mark.slow
def test_the_data_is_written_and_learnt_from(folder):
    run(folder, "show_the_way.py")
    command = re.search(r"^embodied (sft .*)$", GUIDE.read_text(), re.M)[1].split()
    short = ["learner.epochs=1", "learner.global_batch=32", "logger.tensorboard=false"]
    said = run(folder, "-m", "embodied.commands.main", *command, *short)
    assert "next:" in said
