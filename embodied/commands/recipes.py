"""`embodied recipes`: what can be trained, what it needs, and what it reached here."""

from __future__ import annotations

import argparse
from typing import Any

from embodied.commands.common import add_verb
from embodied.errors import EXIT_DONE


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "recipes",
        "list the recipes that ship",
        ["embodied recipes", "embodied recipes --show maniskill_pushcube_ppo_mlp"],
    )
    parser.add_argument("--show", metavar="RECIPE", help="print one recipe's file")


def run(args: argparse.Namespace) -> int:
    """Print names, descriptions and notes, or one recipe."""
    from embodied.config.compose import find_recipe, recipe_description, recipe_names, recipe_notes

    if args.show:
        print(find_recipe(args.show).read_text(), end="")
        return EXIT_DONE
    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {recipe_description(name)}")
        for note, text in recipe_notes(name).items():
            print(f"{'':<{width}}    {note}: {text}")
    return EXIT_DONE
