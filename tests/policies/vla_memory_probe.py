"""Prints estimated and measured peak bytes of a mid-size OpenVLA policy; run in a process of its own.

Measured is the growth of resident memory, so the process does nothing else before.
"""

from __future__ import annotations

import json
import resource
import threading
import time

import torch

from policies import openvla
from policies.api import Interface
from policies.vla import memory
from policies.vla.architecture import published_config
from policies.vla.bundle import Bundle
from policies.vla.llama import LlamaShape
from policies.vla.options import LoraOptions

INTERFACE = Interface(state_dim=8, action_dim=7, action_low=(-1.0,) * 7, action_high=(1.0,) * 7, cameras=1)
BATCH = 4
PRESET = Bundle.preset


def mid_size() -> Bundle:
    """Between tiny and 7B: 224-pixel pictures, a 10-layer decoder."""
    bundle = PRESET("tiny")
    shape = LlamaShape(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=1088,
    )
    vit = {"embed_dim": 256, "depth": 6, "num_heads": 4}
    bundle.config = published_config(shape, 224, [dict(vit), dict(vit)])
    return bundle


class ResidentPeak:
    """Highest resident size while the block runs, over the size before it, sampled every millisecond."""

    def __enter__(self) -> ResidentPeak:
        self.start, self.peak, self._stop = self._now(), 0, False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    @staticmethod
    def _now() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def _watch(self) -> None:
        while not self._stop:
            self.peak = max(self.peak, self._now() - self.start)
            time.sleep(0.001)


def main() -> None:
    """Estimate and measure acting and learning."""
    torch.set_num_threads(1)
    Bundle.preset = classmethod(lambda cls, name, sizes=None: mid_size())
    options = openvla.OpenVLAConfig(name="openvla/tiny")
    results = {}
    openvla.build(options, INTERFACE)  # imports and one-time buffers are not the policy's
    adapted = openvla.OpenVLAConfig(name="openvla/tiny", lora=LoraOptions())
    for name, chosen, run in (
        ("act", options, lambda policy: memory.act_once(policy, BATCH)),
        ("learn", options, lambda policy: memory.learn_twice(policy, BATCH, autocast=None)),
        ("lora", adapted, lambda policy: memory.learn_twice(policy, BATCH, autocast=None)),
    ):
        with ResidentPeak() as measured:
            policy = openvla.build(chosen, INTERFACE)
            run(policy)
        del policy
        results[name] = [0, measured.peak]
    results["act"][0] = memory.acting(openvla.OpenVLAPolicy, options, INTERFACE, BATCH)
    results["learn"][0] = memory.learning(openvla.OpenVLAPolicy, options, INTERFACE, BATCH, autocast=None)
    results["lora"][0] = memory.learning(openvla.OpenVLAPolicy, adapted, INTERFACE, BATCH, autocast=None)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
