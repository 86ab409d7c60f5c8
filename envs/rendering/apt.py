"""The rendering packages of Debian and Ubuntu, and the two ways to get them: apt as root, or unpacked into a cache.

Knows nothing of what the renderers need at run time (see `vulkan.py`, `egl.py`) nor when to install (`install.py`).
Unpacking uses apt itself with private folders, so it downloads and verifies exactly as root's apt would.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from embodied.errors import SimulatorError

Report = Callable[[str], None]

MESA_PACKAGES = ("mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1")
_BACKPORTS = {"bookworm": "bookworm-backports"}  # releases whose own Mesa is too old, and where a newer one is
_SYSTEM_SOURCES = Path("/etc/apt/sources.list.d/embodied-backports.sources")
_LISTS = Path("/var/lib/apt/lists")
_LISTS_TOO_OLD_SECONDS = 7 * 24 * 3600
_APT_SECONDS = 1200
_INSTALL_OPTIONS = ("-y", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=300")


@dataclasses.dataclass(frozen=True)
class Distribution:
    """What /etc/os-release says: `id` ("debian", "ubuntu"), `codename` ("bookworm"), and whether apt is there."""

    id: str
    codename: str
    has_apt: bool

    @property
    def backports(self) -> str | None:
        """The suite with a new enough Mesa, when the release's own is too old."""
        return _BACKPORTS.get(self.codename) if self.id == "debian" else None


def distribution(os_release: Path = Path("/etc/os-release")) -> Distribution:
    """Read the distribution; an unknown one has empty names."""
    fields = {}
    if os_release.exists():
        for line in os_release.read_text().splitlines():
            key, _, value = line.partition("=")
            fields[key] = value.strip().strip('"')
    has_apt = all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb"))
    return Distribution(fields.get("ID", ""), fields.get("VERSION_CODENAME", ""), has_apt)


def install(packages: Sequence[str], report: Report) -> None:
    """Install packages system-wide; must be root. Mesa's come from backports where the release's own are too old.

    Raises:
        SimulatorError: apt failed; the message ends with the last lines it printed.
    """
    system = distribution()
    newer = [p for p in packages if p in MESA_PACKAGES] if system.backports else []
    plain = [p for p in packages if p not in newer]
    added = bool(newer) and _add_backports(system, report)
    if added or _lists_are_old():
        report("refreshing apt's package lists")
        _run(["apt-get", "update"], tolerate_failure=True)
    for names, extra in ((plain, []), (newer, ["-t", system.backports or ""])):
        if names:
            report(f"installing {' '.join(names)}")
            _run(["apt-get", "install", *_INSTALL_OPTIONS, *extra, *names])


def unpack(packages: Sequence[str], folder: Path, report: Report) -> None:
    """Download packages with all dependencies the system lacks and unpack them into `folder`; needs no root.

    Raises:
        SimulatorError: apt failed; the message ends with the last lines it printed.
    """
    system = distribution()
    apt = _private_apt(folder.parent / "apt", system)
    report("fetching apt's package lists into the cache")
    _run([*apt, "update"], tolerate_failure=True)
    target = ["-t", system.backports] if system.backports else []
    plan = _run([*apt, "-s", "install", "--no-install-recommends", "--reinstall", *target, *packages])
    wanted = {f"{m[1]}={m[2]}" for m in re.finditer(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+) ", plan, re.MULTILINE)}
    downloads = folder.parent / "debs"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir(parents=True)
    report(f"downloading {len(wanted)} packages")
    _run([*apt, "download", *sorted(wanted)], cwd=downloads)
    for archive in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(folder)])
    shutil.rmtree(downloads)
    shutil.rmtree(folder.parent / "apt")


def install_command(packages: Sequence[str]) -> str:
    """The shell commands an administrator would type to install these packages on this machine."""
    system = distribution()
    if not system.has_apt:
        return f"install with this system's package manager what Debian calls: {' '.join(packages)}"
    newer = [p for p in packages if p in MESA_PACKAGES] if system.backports else []
    plain = [p for p in packages if p not in newer]
    steps = []
    if newer:
        address, _ = mirror(system)
        steps.append(
            f"echo 'deb {address} {system.backports} main' | sudo tee /etc/apt/sources.list.d/embodied-backports.list"
        )
    steps.append("sudo apt-get update")
    if plain:
        steps.append(f"sudo apt-get install -y --no-install-recommends {' '.join(plain)}")
    if newer:
        steps.append(f"sudo apt-get install -y --no-install-recommends -t {system.backports} {' '.join(newer)}")
    return " && ".join(steps)


def _add_backports(system: Distribution, report: Report) -> bool:
    """Add the backports suite unless some source has it already; says whether it added it."""
    sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    if any(system.backports in path.read_text(errors="replace") for path in sources if path.is_file()):
        return False
    report(f"adding {system.backports} to apt's sources ({_SYSTEM_SOURCES})")
    _SYSTEM_SOURCES.write_text(_backports_source(system))
    return True


def _backports_source(system: Distribution) -> str:
    address, keyring = mirror(system)
    signed = f"Signed-By: {keyring}\n" if keyring else ""
    return f"Types: deb\nURIs: {address}\nSuites: {system.backports}\nComponents: main\n{signed}"


def mirror(system: Distribution, etc: Path = Path("/etc/apt")) -> tuple[str, str]:
    """The mirror, and the keyring if stated, of the source that serves this release: backports lie beside it.

    Raises:
        SimulatorError: no source of this release in `etc`.
    """
    parts = etc / "sources.list.d"
    for path in sorted(parts.glob("*.sources")):
        for stanza in path.read_text(errors="replace").split("\n\n"):
            fields = dict(re.findall(r"^(URIs|Suites|Signed-By):\s*(.+)$", stanza, re.MULTILINE))
            if system.codename in fields.get("Suites", "").split():
                return fields["URIs"].split()[0], fields.get("Signed-By", "").strip()
    for path in (etc / "sources.list", *sorted(parts.glob("*.list"))):
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s", line + " ")
            if match and match[2] == system.codename:
                return match[1], ""
    raise SimulatorError(
        f"Expected a source of {system.codename} in {etc}/sources.list or {parts}, to take its "
        f"{system.backports} from the same mirror, but found none."
    )


def _lists_are_old() -> bool:
    """Whether apt's lists are missing or were fetched over a week ago."""
    releases = [p for p in _LISTS.glob("*Release") if p.is_file()]
    packages = any(_LISTS.glob("*_Packages*"))
    stamp = Path("/var/lib/apt/lists/partial")
    if not releases or not packages:
        return True
    return time.time() - max(p.stat().st_ctime for p in [*releases, stamp] if p.exists()) > _LISTS_TOO_OLD_SECONDS


def _private_apt(folder: Path, system: Distribution) -> list[str]:
    """An apt-get command that reads the system's sources (plus backports) but keeps every file under `folder`."""
    sources = folder / "sources.list.d"
    for path in (folder / "lists" / "partial", folder / "cache" / "archives" / "partial", sources):
        path.mkdir(parents=True, exist_ok=True)
    for path in Path("/etc/apt/sources.list.d").glob("*"):
        if path.suffix in {".list", ".sources"} and os.access(path, os.R_OK):
            shutil.copy(path, sources / path.name)
    if system.backports:
        (sources / "zz-backports.sources").write_text(_backports_source(system))
    options = {
        "Dir::Etc::SourceParts": sources,
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "",
    }
    return ["apt-get", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]


def _run(command: Sequence[str], *, cwd: Path | None = None, tolerate_failure: bool = False) -> str:
    """Run a command without a terminal and return its output; a third-party source that fails may be tolerated."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_APT_SECONDS,
    )
    if result.returncode != 0 and not tolerate_failure:
        tail = "\n".join(result.stdout.strip().splitlines()[-8:])
        raise SimulatorError(f"`{' '.join(command)}` failed with code {result.returncode}:\n{tail}")
    return result.stdout
