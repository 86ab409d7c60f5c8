"""The pictures of docs/results.md: success in the evaluations of training runs, over environment steps.

    python benchmarks/success_curves.py docs/images/plate_vla.png --title "Put on plate from pictures" \\
        "seed 0=runs/plate" "blind=runs/plate_blind"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def evaluations(run: Path) -> list[tuple[int, float, float, float]]:
    """(environment steps, success, lower and upper end of its 95 % interval) of each evaluation, in percent."""
    found = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        values = [record["metrics"].get(f"eval/success_once{end}") for end in ("", "_low", "_high")]
        if values[0] is not None:
            found.append((record["env_steps"], *(100 * value for value in values)))
    return found


def draw(runs: dict[str, Path], title: str, out: Path) -> None:
    """One line a run with its interval as a band. Raises SystemExit for a run without evaluations."""
    figure, axes = plt.subplots(figsize=(7, 4), dpi=110)
    for label, run in runs.items():
        rows = evaluations(run)
        if not rows:
            raise SystemExit(f"{run} holds no evaluation")
        steps, success, low, high = zip(*rows, strict=True)
        (line,) = axes.plot(steps, success, marker="o", markersize=3, label=label)
        axes.fill_between(steps, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.set(xlabel="environment steps", ylabel="success, greedy (%)", ylim=(0, 101), title=title)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    draw({label: Path(folder) for label, folder in (run.split("=", 1) for run in args.runs)}, args.title, args.out)


if __name__ == "__main__":
    main()
