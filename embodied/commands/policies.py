"""`embodied policies [NAME]`: the policies there are, and the memory, pictures and statistics they need."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from embodied.commands.common import add_verb
from embodied.errors import EXIT_DONE

if TYPE_CHECKING:
    from policies.footprint import Footprint


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "policies",
        "list policies with their parameters and the memory they need",
        [
            "embodied policies",
            "embodied policies openvla-oft-7b",
            "embodied policies --json",
            "embodied policies openvla/tiny --measure",
        ],
    )
    parser.add_argument("name", nargs="?", help="one policy, e.g. openvla/7b or openvla-7b")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON, bytes unrounded")
    parser.add_argument("--measure", action="store_true", help="count anew instead of telling; minutes for 7B")


def run(args: argparse.Namespace) -> int:
    """Print a table, or JSON."""
    import dataclasses
    import json

    from policies import footprint

    names = footprint.NAMES if args.name is None else (footprint.find(args.name),)
    if args.measure:
        from policies.measuring import measure

        found = [measure(name) for name in names]
    else:
        found = [needs for needs in footprint.shipped() if needs.name in names]
    if args.json:
        print(json.dumps([dataclasses.asdict(needs) for needs in found], indent=2))
        return EXIT_DONE
    print(_table(found))
    if args.name is None:
        others = footprint.of_other_packages()
        if others:
            print(f"of other packages: {', '.join(others)}")
    print(
        "\nMemory: peak of weights, gradients, optimiser state, activations and temporaries; allocators add to it."
        "\nlearn: one AdamW step, all weights in float32 or LoRA of rank 32. Details: docs/policies.md"
    )
    return EXIT_DONE


def _table(found: list[Footprint]) -> str:
    from policies.names import other_spelling

    rows = [("policy", "also", "parameters", "pictures", "cameras", "act", "learn, all", "learn, LoRA")]
    for needs in found:
        pictures = {0: "-", None: "any size"}.get(needs.pictures, f"{needs.pictures} px")
        also = other_spelling(needs.name)
        rows.append(
            (
                needs.name,
                also if also != needs.name else "",
                spoken_count(needs.parameters),
                pictures,
                needs.cameras,
                f"{spoken_bytes(needs.act)} ({needs.act_batch} obs, {needs.precision})",
                f"{spoken_bytes(needs.full)} ({needs.learn_batch} decisions)",
                "-" if needs.lora is None else f"{spoken_bytes(needs.lora)} ({needs.learn_batch} decisions)",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    statistics: dict[str, list[str]] = {}
    for needs in found:
        statistics.setdefault(needs.statistics, []).append(needs.name)
    notes = [f"{', '.join(names)}: normalised by {text}" for text, names in statistics.items()]
    return "\n".join([*lines, "", *notes])


def spoken_bytes(count: int) -> str:
    """ "11 MB", "15.4 GB", in powers of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def spoken_count(count: int) -> str:
    """ "1.4 M", "7.54 G"."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} k"
