"""Make the project's environment in `.venv`: run by the Makefile with the system's Python, before anything is there.

A program of the standard library alone (`python3 -I embodied/system/bootstrap.py`): checks the Python, creates the
virtual environment, installs the project editable under constraints.txt, then the system libraries for rendering.
Finished work is never repeated: a stamp, written last, holds a key of everything the installation depends on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

SUPPORTED = ((3, 11), (3, 12))
ROOT = Path(__file__).resolve().parents[2]
STAMP = "embodied-setup.json"
LOG = "embodied-setup.log"
NOISE = ("is ignored: it is", "is ignored: it is neither", "Looking in links", "Looking in indexes")
PROGRESS_EVERY_SECONDS = 10
TAIL_LINES = 25


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def check_python(version: tuple[int, ...], has_ensurepip: bool, executable: str) -> None:
    """Refuse a Python that cannot make the environment, with the command that brings one that can."""
    found = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) not in SUPPORTED:
        raise SetupError(
            f"This project needs Python 3.11 or 3.12, but {executable} is {found}. Install one (Debian 12: apt-get "
            "install python3 python3-venv; elsewhere e.g. pyenv install 3.11) and name it: "
            "make setup PYTHON=/path/to/python3.11"
        )
    if not has_ensurepip:
        raise SetupError(
            f"{executable} ({found}) cannot create virtual environments: its module ensurepip is missing. "
            f"Install it: apt-get install python{version[0]}.{version[1]}-venv"
        )


def installation_key(root: Path, python: str) -> str:
    """Hash of all that decides what is installed: dependencies, pins, Python, and where the checkout lies.

    Of pyproject.toml only the tables that packaging reads count, so that editing a linter's rules costs nothing.
    """
    import tomllib  # Python 3.11, which check_python has made sure of

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packaging = {
        "build-system": project["build-system"],
        "project": project["project"],
        "hatch": project.get("tool", {}).get("hatch", {}),
    }
    parts = [
        json.dumps(packaging, sort_keys=True),
        (root / "constraints.txt").read_text(encoding="utf-8"),
        python,
        str(root),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_set_up(environment: Path, key: str) -> bool:
    """Whether the stamp holds this key and the environment's Python is still there (not moved, not uninstalled)."""
    try:
        stamp = json.loads((environment / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp.get("key") == key and os.access(environment / "bin" / "python", os.X_OK)


def make_environment(environment: Path) -> None:
    """Create the virtual environment, or keep it if it works and was made at this place."""
    python = environment / "bin" / "python"
    if python.exists() and _made_here(environment):
        works = subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False)
        if works.returncode == 0:
            return
    if environment.exists():
        say(f"rebuilding {environment.name}: it is incomplete, was made at another place, or its Python is gone")
        shutil.rmtree(environment)
    else:
        say(f"creating {environment.name} with Python {sys.version.split()[0]}")
    # With .venv activated, this program's own Python is the one just removed: the one behind it makes the new one.
    maker = getattr(sys, "_base_executable", sys.executable)
    result = subprocess.run([maker, "-m", "venv", str(environment)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SetupError(f"`python -m venv {environment}` failed:\n{result.stdout}{result.stderr}".rstrip())


def _made_here(environment: Path) -> bool:
    """Whether pip's start line names this environment: it goes stale when the checkout is moved or copied."""
    pip = environment / "bin" / "pip"
    if not pip.exists():
        return False
    with pip.open("rb") as script:
        head = script.read(1024).decode(errors="replace")
    return f"{environment}/bin/python" in head


def missing_build_tools() -> list[str]:
    """Debian packages for compiling: a few dependencies (pycosat) come as C source and need compiler and headers."""
    missing = [] if shutil.which("cc") or shutil.which("gcc") else ["gcc", "libc6-dev"]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append(f"python{sys.version_info[0]}.{sys.version_info[1]}-dev")
    return missing


def install_build_tools(packages: list[str]) -> None:
    """Bring the build tools by apt, as root; otherwise leave it to pip, which may find everything ready-made."""
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    say(f"installing {' '.join(packages)} (a few dependencies are compiled)")
    for command in (["update"], ["install", "-y", "--no-install-recommends", "--no-remove", *packages]):
        result = subprocess.run(
            ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if result.returncode != 0 and command != ["update"]:  # a third-party source may be down
            tail = "\n".join(result.stdout.strip().splitlines()[-TAIL_LINES:])
            raise SetupError(f"`apt-get {' '.join(command)}` failed with code {result.returncode}:\n{tail}")


def install(environment: Path, root: Path) -> None:
    """Install the project and its development tools, editable, under the pins; the whole output goes to a log."""
    log = environment / LOG
    say(f"installing the project and its dependencies (several GB the first time; full output in {log})")
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command += ["--constraint", str(root / "constraints.txt"), "--editable", f"{root}[dev]"]
    began = shown = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"},
        )
        try:
            for line in process.stdout:
                output.write(line)
                now = time.monotonic()
                if now - shown >= PROGRESS_EVERY_SECONDS and not is_noise(line):
                    say(f"{now - began:4.0f} s  {line.strip()[:100]}")
                    shown = now
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
    if code != 0:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line and not is_noise(line)]
        tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
        tools = missing_build_tools()
        remedy = f"\nIf a package failed to compile: sudo apt-get install -y {' '.join(tools)}" if tools else ""
        raise SetupError(f"pip failed with code {code}. The end of {log}:\n{tail}{remedy}")
    say(f"installed in {time.monotonic() - began:.0f} s")


def is_noise(line: str) -> bool:
    """Whether a line of pip's output says nothing about this installation."""
    return any(part in line for part in NOISE)


def install_rendering(environment: Path, root: Path) -> None:
    """Bring the system libraries for headless rendering; a failure is said, with its remedy, but does not stop set-up.

    State-only work on other parts of the project is possible without them.
    """
    command = [str(environment / "bin" / "python"), "-m", "envs.rendering.install", "--quiet"]
    result = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        say("the simulators cannot draw yet (reason above); mend it, then see: .venv/bin/embodied doctor")


def say(message: str) -> None:
    """One line of progress."""
    print(f"[setup] {message}", flush=True)


def main() -> int:
    """Do whatever is missing; returns the exit code."""
    environment = ROOT / ".venv"
    try:
        from importlib.util import find_spec

        check_python(sys.version_info, find_spec("ensurepip") is not None, sys.executable)
        lock = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second waits, then finds the work done
        key = installation_key(ROOT, ".".join(str(part) for part in sys.version_info[:3]))
        if not is_set_up(environment, key):
            make_environment(environment)
            (environment / STAMP).unlink(missing_ok=True)
            install_build_tools(missing_build_tools())
            install(environment, ROOT)
            (environment / STAMP).write_text(json.dumps({"key": key}), encoding="utf-8")
        install_rendering(environment, ROOT)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[setup] interrupted; the next call goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
