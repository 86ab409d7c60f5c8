"""Reward functions as users write them, good and bad."""

from __future__ import annotations

import os
import signal
import time

from reasoning.rewards.graders import Grade


def length(response, problem):
    return len(response) / 10


def misbehave(response, problem):
    """Does what the response says."""
    if response == "hang":
        while True:
            time.sleep(0.01)
    if response == "spin":
        sum(range(10**12))
    if response == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if response == "exit":
        os._exit(3)
    if response == "raise":
        raise KeyError("nothing here")
    if response == "nan":
        return float("nan")
    if response == "eat":
        return len(bytearray(4 << 30))
    return 1.0 if response == "good" else 0.0


class Unreadable(Grade):
    """Can be sent, and not be read."""

    def __reduce__(self):
        return (int, ("not a number",))


def unreadable(response, problem):
    return Unreadable(1.0) if response == "odd" else 1.0


def one_argument(response):
    return 1.0


def always_raises(response, problem):
    raise ValueError("never")


def says_text(response, problem):
    return "1.0"


def hangs(response, problem):
    while True:
        time.sleep(0.01)
