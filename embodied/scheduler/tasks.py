"""Running several coroutines as one: the first failure cancels the rest and is the one that is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def together(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Results in order. Of several failures the first is raised; the others were cancelled because of it."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(w) for w in work]
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in running]
