"""The example in docs/scheduler.md runs as it stands, under both launchers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "scheduler.md"


@pytest.mark.parametrize("launcher", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_guides_example_runs_under_both_launchers(tmp_path, launcher):
    code = re.search(r"```python\n(# primes\.py.*?)```", GUIDE.read_text(), re.S)[1]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= 60
    (tmp_path / "primes.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "primes.py", launcher], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert "1229 primes below 10000" in done.stdout, done.stderr
