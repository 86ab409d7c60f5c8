"""`embodied doctor`: look at the machine, draw one frame with each simulator, and say what to do about each fault.

Only presents and decides the exit code; what is looked at is in `embodied.system`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.commands.common import add_verb
from embodied.errors import EXIT_DONE, EXIT_FAILED, EmbodiedError, RefusedInput
from embodied.runs.files import require_writable

if TYPE_CHECKING:
    from rich.console import Console

    from embodied.system.checks import Finding

FRAME_SECONDS = 180.0  # how long one frame may take: a cold first import is most of it
_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "doctor",
        "check this machine, draw one frame with each simulator, and say what mends each fault",
        ["embodied doctor", "embodied doctor --mend", "embodied doctor --json --out /tmp/doctor"],
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of a table")
    parser.add_argument(
        "--mend",
        action="store_true",
        help="first install missing rendering libraries: by apt as root, else into ~/.cache",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/doctor"), metavar="DIR", help="where pictures go (default: runs/doctor)"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=FRAME_SECONDS,
        metavar="SECONDS",
        help=f"how long one frame may take (default: {FRAME_SECONDS:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Check, print, and return 0 when nothing essential fails, else 1."""
    from rich.console import Console

    from embodied.system.checks import State, all_checks
    from embodied.system.drawing import draw_all

    if not 0 < args.deadline < math.inf:
        raise RefusedInput(f"--deadline is {args.deadline:g}; expected a number of seconds above 0")
    require_writable(args.out, "--out")
    console = Console(stderr=args.json, highlight=False)
    findings: list[Finding] = []
    if args.mend:
        findings += mend(console)
    with console.status("looking at this machine ..."):
        for check in all_checks(args.out):
            findings += check()
    with console.status("each simulator draws one frame (about 15 s) ..."):
        findings += draw_all(args.out, args.deadline)
    failed = any(finding.state is State.FAILED for finding in findings)
    if args.json:
        entries = [dataclasses.asdict(finding) | {"state": finding.state.value} for finding in findings]
        print(json.dumps({"ok": not failed, "findings": entries}, indent=2))
    else:
        show(findings, console)
    return EXIT_FAILED if failed else EXIT_DONE


def mend(console: Console) -> list[Finding]:
    """Install missing rendering libraries; what could not be installed becomes a finding."""
    from embodied.system.checks import Finding, State
    from envs.rendering import install

    try:
        install.ensure(report=lambda line: console.print(line, markup=False))
    except EmbodiedError as error:
        return [Finding("installation", State.FAILED, str(error))]
    return []


def show(findings: list[Finding], console: Console) -> None:
    """Print the table, then each fault with the command that mends it on a line of its own, ready to copy."""
    from rich.markup import escape
    from rich.table import Table

    from embodied.system.checks import State

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in findings:
        table.add_row(finding.name, f"[{_STYLES[finding.state.value]}]{finding.state.value}[/]", escape(finding.detail))
    console.print(table)
    faults = [finding for finding in findings if finding.state is not State.RIGHT]
    for finding in faults:
        if finding.mend:
            console.print(f"\nto mend {finding.name}:", style=_STYLES[finding.state.value])
            console.print(f"  {finding.mend}", soft_wrap=True, markup=False)
    if not any(finding.state is State.FAILED for finding in faults):
        console.print("\nall right" + (", with warnings" if faults else ""), style="green")
