"""Time of generalised advantage estimation beside torchrl's, on the same tensors, on one core.

torchrl is no dependency of this project: install it (`pip install --no-deps torchrl`) into the environment that runs
this comparison. Both compute advantages and returns of 1024 environments x 512 steps in float32, with episode ends;
their results are compared before anything is timed. Runs alternate, so that a busy machine slows both alike.

    python benchmarks/gae.py [--envs 1024] [--steps 512] [--repeats 30]
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from embodied.algorithms import gae
from embodied.errors import EXIT_REFUSED

GAMMA, LAMBDA = 0.99, 0.95


def rollout(steps: int, envs: int) -> dict[str, torch.Tensor]:
    """Time-major float32 rewards, values and ends; one step in a hundred ends an episode."""
    source = torch.Generator().manual_seed(0)
    values = torch.randn(steps + 1, envs, generator=source)
    return {
        "rewards": torch.randn(steps, envs, generator=source),
        "values": values,
        "final_values": torch.randn(steps, envs, generator=source),
        "terminated": torch.rand(steps, envs, generator=source) < 0.01,
        "truncated": torch.zeros(steps, envs, dtype=torch.bool),
        "valid": torch.ones(steps, envs, dtype=torch.bool),
    }


def candidates(data: dict[str, torch.Tensor]) -> dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Name -> a function that gives advantages and returns [S, B]; torchrl's take [B, S, 1] made beforehand."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

    def batch_major(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.T.unsqueeze(-1).contiguous()

    theirs = {
        "gamma": GAMMA,
        "lmbda": LAMBDA,
        "state_value": batch_major(data["values"][:-1]),
        "next_state_value": batch_major(data["values"][1:]),
        "reward": batch_major(data["rewards"]),
        "done": batch_major(data["terminated"] | data["truncated"]),
        "terminated": batch_major(data["terminated"]),
    }

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        result = gae(**data, gamma=GAMMA, gae_lambda=LAMBDA)
        return result.advantages, result.returns

    def peer(function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable:
        def call() -> tuple[torch.Tensor, torch.Tensor]:
            advantages, returns = function(**theirs)
            return advantages.squeeze(-1).T, returns.squeeze(-1).T

        return call

    return {
        "embodied gae": ours,
        "torchrl vec_generalized_advantage_estimate": peer(vec_generalized_advantage_estimate),
        "torchrl generalized_advantage_estimate": peer(generalized_advantage_estimate),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    if importlib.util.find_spec("torchrl") is None:
        print("torchrl is not installed; this comparison needs it: pip install --no-deps torchrl", file=sys.stderr)
        return EXIT_REFUSED
    torch.set_num_threads(1)
    import torchrl

    functions = candidates(rollout(options.steps, options.envs))
    expected = next(iter(functions.values()))()
    for name, function in functions.items():
        for mine, other in zip(expected, function(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3, msg=f"{name} computes something else")

    times: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(options.repeats + 3):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if repeat >= 3:  # the first rounds warm caches and allocators
                times[name].append(1e3 * (time.perf_counter() - start))
    print(f"{options.envs} environments x {options.steps} steps, float32, 1 thread, {options.repeats} alternating runs")
    print(f"torch {torch.__version__}, torchrl {torchrl.__version__}, Python {platform.python_version()}")
    print("| implementation | median ms | fastest ms | ratio of medians |\n|---|---|---|---|")
    base = statistics.median(times["embodied gae"])
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"| {name} | {middle:.2f} | {min(taken):.2f} | {middle / base:.1f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
