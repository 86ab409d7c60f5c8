"""Opens a page in a real headless Chromium and tells what it showed, said and asked for."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

PROGRAM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if p), None)
_OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever is asked for, nothing leaves the machine
]  # fmt: skip
_REPORT_RESOURCES = """
addEventListener("load", () => setTimeout(() => {
  const names = performance.getEntriesByType("resource").map((entry) => entry.name);
  document.documentElement.setAttribute("data-resources", JSON.stringify(names));
}, 200));
"""


@dataclasses.dataclass(frozen=True)
class Visit:
    """dom: the document after scripts ran. console: its messages. resources: what it loaded, inlined data left out."""

    dom: str
    console: list[str]
    resources: list[str]


def visit(page: Path, scratch: Path, *, script: str = "", width: int = 1200) -> Visit:
    """Load a copy of `page` beside it, to which `script` and a listing of its requests are added."""
    copy = page.with_name("visited.html")
    added = f"<script>{_REPORT_RESOURCES}</script><script>{script}</script></body>"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", added), encoding="utf-8")
    profile = scratch / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [
        PROGRAM, *_OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},900", "--virtual-time-budget=2000",
        "--dump-dom", copy.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    copy.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    listed = re.search(r'data-resources="([^"]*)"', done.stdout)
    assert listed, done.stderr[-2000:]
    resources = [name for name in json.loads(html.unescape(listed[1])) if not name.startswith("data:")]
    return Visit(done.stdout, re.findall(r"CONSOLE[^\]]*\]\s*(.*)", done.stderr), resources)
