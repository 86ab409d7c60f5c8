"""`embodied assets list|where|fetch|verify`: what simulators need besides code, where it lies, whether it is whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb
from embodied.errors import EXIT_DONE, EXIT_FAILED, AssetError, RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "assets",
        "list, find, fetch and verify meshes, scenes, task files and bundled checkpoints",
        [
            "embodied assets list",
            "embodied assets where libero",
            "embodied assets fetch maniskill/PickSingleYCB-v1",
            "embodied assets fetch rl4vla-put-on-plate --from ~/downloads/maniskill_assets",
            "embodied assets verify libero",
        ],
    )
    parser.add_argument("action", choices=("list", "where", "fetch", "verify"), help="what to do")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="assets, or environment ids for what those need; verify: default all"
    )
    parser.add_argument(
        "--from", dest="given", type=Path, metavar="PATH", help="fetch: a folder or archive that you have already"
    )
    parser.add_argument("--json", action="store_true", help="list and where: print JSON")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.given is not None and (args.action != "fetch" or len(args.names) != 1):
        raise RefusedInput("--from is for `embodied assets fetch` of exactly one asset")
    if args.action in ("where", "fetch") and not args.names:
        raise RefusedInput(
            f"name an asset, e.g. `embodied assets {args.action} libero`; `embodied assets list` has all"
        )
    return {"list": _list, "where": _where, "fetch": _fetch, "verify": _verify}[args.action](args)


def _chosen(names: list[str]) -> list[Any]:
    """The assets that names and environment ids mean, each once."""
    from sim_assets import all_assets, find_asset, needed_by

    if not names:
        return list(all_assets())
    chosen = []
    for name in names:
        if "/" not in name:
            chosen.append(find_asset(name))
            continue
        needed = needed_by(name)
        if not needed:
            raise AssetError(
                f"The registry lists no asset for {name!r}: it needs none, or there is no such environment."
            )
        chosen += needed
    return list(dict.fromkeys(chosen))


def _state(asset: Any) -> str:
    from sim_assets import locate

    try:
        found = locate(asset)
    except AssetError as error:
        return str(error)
    return found.how if found else "missing"


def _list(args: argparse.Namespace) -> int:
    assets = _chosen(args.names)
    if args.json:
        print(json.dumps([_plain(asset, lenient=True) for asset in assets], indent=2))
        return EXIT_DONE
    lines = [("asset", "here", "size", "licence", "needed by"), *(_row(asset) for asset in assets)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        print("  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[4]]).rstrip())
    return EXIT_DONE


def _row(asset: Any) -> tuple[str, ...]:
    needed = asset.needed_by[0] if asset.needed_by else ""
    if len(asset.needed_by) > 1:
        needed += f" and {len(asset.needed_by) - 1} more"
    size = "?" if asset.size is None else f"{asset.size / 1e6:.1f} MB"
    return asset.name, _state(asset), size, asset.licence, needed


def _plain(asset: Any, *, lenient: bool = False) -> dict[str, Any]:
    """The asset in JSON's types. lenient: what keeps it from being found, as `problem`, instead of AssetError."""
    from sim_assets import locate

    problem = None
    try:
        found = locate(asset)
    except AssetError as error:
        if not lenient:
            raise
        found, problem = None, str(error)
    return {
        "name": asset.name,
        "title": asset.title,
        "licence": asset.licence,
        "size": asset.size,
        "sha256": asset.sha256,
        "needed_by": list(asset.needed_by),
        "source": asset.source.describe(),
        "variable": asset.variable,
        "here": found.how if found else None,
        "paths": [str(path) for path in found.paths] if found else [],
        "problem": problem,
    }


def _where(args: argparse.Namespace) -> int:
    from sim_assets.resolve import how_to_get

    assets = [_plain(asset) for asset in _chosen(args.names)]
    if args.json:
        print(json.dumps(assets, indent=2))
    missing = [record["name"] for record in assets if not record["paths"]]
    for record, asset in zip(assets, _chosen(args.names), strict=True):
        if args.json:
            continue
        for path in record["paths"]:
            print(path)
        if not record["paths"]:
            print(f"{asset.name} is not on this machine. {how_to_get(asset)}")
    return EXIT_FAILED if missing else EXIT_DONE


def _fetch(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from sim_assets import locate
    from sim_assets.fetch import fetch

    for asset in _chosen(args.names):
        if args.given is None and (found := locate(asset)):
            print(f"{asset.name} is here already ({found.how}): {found.paths[0]}")
            continue
        print(f"{asset.name}: from {args.given or asset.source.describe()}; licence: {asset.licence}")
        columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as screen:
            tasks: dict[str, Any] = {}

            def show(what: str, done: int, total: int, screen: Any = screen, tasks: dict[str, Any] = tasks) -> None:
                if what not in tasks:
                    tasks[what] = screen.add_task(what, total=total or None)
                screen.update(tasks[what], completed=done)

            found = fetch(asset, args.given, show)
        print(f"{asset.name}: {found.paths[0]}")
    return EXIT_DONE


def _verify(args: argparse.Namespace) -> int:
    from sim_assets import locate
    from sim_assets.fetch import check

    wrong = 0
    for asset in _chosen(args.names):
        if not args.names and locate(asset) is None:
            continue  # asked for all: those that are here
        found = check(asset)
        if found is None:
            print(f"{asset.name}: not checked; no record says what its files should be")
        elif found:
            wrong += 1
            print(f"{asset.name}: {len(found)} faults")
            for fault in found[:10]:
                print(f"  {fault}")
        else:
            print(f"{asset.name}: all files are what they should be")
    return EXIT_FAILED if wrong else EXIT_DONE
