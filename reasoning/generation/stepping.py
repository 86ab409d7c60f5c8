"""What engines have in common that compute in the caller's event loop, one step of the model between awaits."""

from __future__ import annotations

import abc
import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager

from embodied.errors import ConfigurationError
from reasoning.generation.api import Engine, Request, Response


class SteppingEngine(Engine):
    """timed: what every step of the model runs in, for whoever records times. slots: responses generated at once.

    Raises ConfigurationError for less than one slot, in which no request would ever end.
    """

    def __init__(self, timed: Callable[[], AbstractContextManager[None]], slots: int) -> None:
        if slots < 1:
            raise ConfigurationError(f"slots is {slots}; an engine needs at least 1")
        self._timed = timed
        self._paused = False
        self._changed = asyncio.Event()

    @abc.abstractmethod
    def _enter(self, requests: list[Request], finished: collections.deque[Response]) -> None:
        """Take in all requests or none; their responses go to `finished`. Raises ConfigurationError."""

    @abc.abstractmethod
    def _advance(self) -> None:
        """One step of the model for whatever is under way."""

    async def generate(self, requests: Iterable[Request]) -> AsyncIterator[Response]:
        requests = list(requests)
        finished: collections.deque[Response] = collections.deque()
        self._enter(requests, finished)
        missing = len(requests)
        try:
            while missing:
                while finished:
                    missing -= 1
                    yield finished.popleft()
                if missing:
                    await self._turn()
        finally:
            if missing:
                self.abort(request.id for request in requests)

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._changed = asyncio.Event()

    def resume(self) -> None:
        self._paused = False
        self._changed.set()

    def _hand_on(self) -> None:
        """Let streams that wait because of a pause hand on what has finished."""
        if self._paused:
            self._changed.set()
            self._changed = asyncio.Event()

    async def _turn(self) -> None:
        """One step of the model, then whoever else waits for the event loop."""
        if self._paused:
            changed = self._changed
            await changed.wait()
            return
        with self._timed():
            self._advance()
        await asyncio.sleep(0)
