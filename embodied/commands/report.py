"""`embodied report`: write the HTML report of a run, or one page that compares several."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from embodied.errors import EXIT_DONE, RefusedInput

_EXAMPLES = """\
examples:
  embodied report runs/maniskill_pushcube_ppo_mlp/2026-01-31_12-00-00
      writes report.html into that folder; works while the run still goes on
  embodied report runs/maniskill_pushcube_ppo_mlp/2026-01-31_12-00-00 --open
      and shows it in the browser
  embodied report runs/maniskill_pushcube_ppo_mlp/*
      a report for each run, and comparison.html beside them: outcomes, curves, mean over seeds, what differs
  embodied report RUN1 RUN2 RUN3 --png docs/success.png
      draws the success curve (one run: with its interval; several: mean and range) as a picture as well
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "report",
        help="write the HTML report of a run, or compare several",
        description="Write a self-contained HTML report into each run folder; with several, compare them on one page.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, runs/<recipe>/<time>")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where the comparison of several runs goes (default: beside them)"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw the success curve to this picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the pages, print where they are, return the exit code."""
    # imported here: `embodied --help` need not load plotting and video
    from embodied.report import build_comparison, build_report, success_curve_png

    if args.output and len(args.runs) == 1:
        raise RefusedInput("--output is for the comparison of several runs; one run's report goes into its own folder.")
    for target in filter(None, (args.output, args.png)):
        if not target.absolute().parent.is_dir():
            raise RefusedInput(f"{target} cannot be written: the folder {target.absolute().parent} does not exist.")
    pages = [build_report(folder) for folder in args.runs]
    if len(args.runs) > 1:
        pages.append(build_comparison(args.runs, args.output))
    for page in pages:
        print(f"Report: {page}")
    if args.png:
        print(f"Curve:  {success_curve_png(args.runs, args.png)}")
    if args.open and not webbrowser.open(pages[-1].resolve().as_uri()):
        print("No browser could be started; open the file above.")
    return EXIT_DONE
