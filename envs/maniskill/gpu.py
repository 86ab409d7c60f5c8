"""Whether ManiSkill's GPU physics can be used on this machine. Importing this does not import the simulator."""

from __future__ import annotations

from pathlib import Path

import torch

from embodied.errors import ConfigurationError


def gpu_physics_missing() -> str:
    """Why GPU physics cannot be used here; empty where it can."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    import sapien.physx as physx  # only here: it takes long, and most machines that get here have no GPU

    library = Path.home() / ".sapien" / "physx" / physx.version() / "libPhysXGpu_64.so"
    return "" if library.exists() else f"the GPU physics library {library} is not installed"


def require_gpu_physics() -> None:
    """Raises ConfigurationError with what to do where GPU physics cannot be used."""
    reason = gpu_physics_missing()
    if reason:
        raise ConfigurationError(
            f"env.sim_backend=cuda is not possible: {reason}. Use env.sim_backend=cpu"
            + ("." if "CUDA device" in reason else ', or fetch it with `python -c "import sapien.physx as p; '
               'p.enable_gpu()"`.')
        )  # fmt: skip
