"""`embodied report`: write the HTML report of a run, or one page that compares several."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "report",
        "write the HTML report of a run, finished or not, or compare several on one page",
        [
            "embodied report runs/maniskill_pushcube_ppo_mlp/latest --open",
            "embodied report runs/maniskill_pushcube_ppo_mlp/2026-*      # a report each, and comparison.html",
            "embodied report RUN1 RUN2 RUN3 --png success.png            # and the mean success curve as a picture",
        ],
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, runs/<recipe>/<time>")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where the comparison of several runs goes (default: beside them)"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw the success curve to this picture")


_PICTURES = (".png", ".svg", ".pdf", ".jpg")


def write(folder: Path) -> Path:
    """Write one run's report and return its path."""
    from embodied.report import build_report

    return build_report(folder)


def run(args: argparse.Namespace) -> int:
    """Write the pages, print where they are, return the exit code."""
    # imported here: `embodied --help` need not load plotting and video
    from embodied.report import build_comparison, build_report, success_curve_png

    if args.output and len(args.runs) == 1:
        raise RefusedInput("--output is for the comparison of several runs; one run's report goes into its own folder.")
    for target in filter(None, (args.output, args.png)):
        if not target.absolute().parent.is_dir():
            raise RefusedInput(f"{target} cannot be written: the folder {target.absolute().parent} does not exist.")
    # `latest` is a second name of a run that a pattern may have matched already
    runs = list({folder.resolve(): folder for folder in args.runs}.values())
    if args.output and len(runs) == 1:
        raise RefusedInput("--output is for the comparison of several runs, and the same run was named more than once.")
    if args.png and (args.png.is_dir() or args.png.suffix not in _PICTURES):
        raise RefusedInput(f"--png is {args.png}; name a file that ends in {', '.join(_PICTURES)}")
    pages = [build_report(folder) for folder in runs]
    if len(runs) > 1:
        pages.append(build_comparison(runs, args.output))
    for page in pages:
        print(f"report  {relative(page)}")
    if args.png:
        print(f"curve   {relative(success_curve_png(runs, args.png))}")
    if args.open and not webbrowser.open(pages[-1].resolve().as_uri()):
        print("No browser could be started; open the file above.")
    return EXIT_DONE
