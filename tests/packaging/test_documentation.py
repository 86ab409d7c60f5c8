"""The documentation holds: links lead somewhere, and every command it shows is one that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embodied.commands.main import VERBS
from reasoning.commands.main import VERBS as REASONING_VERBS

HOME = Path(__file__).resolve().parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?:bash|sh|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page_name(page: Path) -> str:
    return str(page.relative_to(HOME))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target and target[0] != "#"]
    missing = [target for target in targets if not (page.parent / target.split("#")[0]).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_shown_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (HOME / "Makefile").read_text(), re.MULTILINE))
    unknown = []
    for block in FENCE.findall(page.read_text()):
        for program, verb in re.findall(
            r"^(?:\$ )?(?:\.venv/bin/)?(embodied|reasoning|make) ([a-z][a-z-]*)", block, re.MULTILINE
        ):
            known = {"embodied": VERBS, "reasoning": REASONING_VERBS, "make": targets}[program]
            if verb not in known:
                unknown.append(f"{program} {verb}")
    assert unknown == []


def test_installation_page_lists_the_packages_that_are_installed() -> None:
    from envs.rendering.install import NEEDS

    text = (HOME / "docs" / "install.md").read_text()
    absent = [package for need in NEEDS for package in need.packages if f"`{package}`" not in text]
    assert absent == []
