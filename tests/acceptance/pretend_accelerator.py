"""Run a recipe with acting and learning on a device that is pretended, to see on a machine without a GPU that tensors
of two devices never meet: `python pretend_accelerator.py RECIPE OVERRIDE...`.

Its tensors call themselves torch's `meta` device and hold an ordinary tensor each, so their numbers are right; an
operation that mixes them with tensors of the CPU is refused, as CUDA's are. What only a real accelerator has (streams,
pinned memory, its kernels, NCCL) is not tried.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.utils._foreach_utils as foreach_utils
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"
ON_THE_CPU = ("env", "prompts", "reward")  # stages
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index")


class Far(torch.Tensor):
    """A tensor on the pretended device; `near` holds its numbers."""

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, near.shape, device=NAME, **layout)

    def __init__(self, near: torch.Tensor) -> None:
        self.near = near

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"Far({self.near!r})"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor of the pretended device has no numpy array; copy it to the CPU first")

    # torch refuses these of the device whose name is borrowed
    def item(self) -> Any:
        return self.near.item()

    def tolist(self) -> Any:
        return self.near.tolist()

    def __bool__(self) -> bool:
        return bool(self.near)

    def __int__(self) -> int:
        return int(self.near)

    def __float__(self) -> float:
        return float(self.near)

    def __index__(self) -> int:
        return int(self.near)


def _near(leaf: Any) -> Any:
    return leaf.near if isinstance(leaf, Far) else leaf


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    far = any(isinstance(leaf, Far) for leaf in leaves)
    device = kwargs.get("device")
    there = far if device is None else torch.device(device).type == NAME
    if far and func not in _COPIES:
        if func._schema.name in _INDEXED:  # indices may lie on the CPU, as for CUDA
            leaves = [args[0], *args[2:3]]
        stray = [one for one in leaves if isinstance(one, torch.Tensor) and not isinstance(one, Far) and one.dim()]
        if stray:
            raise RuntimeError(f"{func} got tensors of two devices; one of shape {tuple(stray[0].shape)} is on the CPU")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    found = func(*tree_map(_near, args), **tree_map(_near, kwargs))
    return tree_map(lambda leaf: Far(leaf) if there and isinstance(leaf, torch.Tensor) else leaf, found)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """Those that make a tensor of Python numbers do not pass through the other mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is torch.Tensor.new_tensor:
            place = kwargs.pop("device", args[0].device)
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(place)
        return func(*args, **kwargs)


@contextlib.contextmanager
def pretended() -> Any:
    """In it the inline launcher gives the stages that want an accelerator the pretended one. Import nothing of the
    project before: inference mode, which tensors that wrap others cannot have, is taken away from it."""
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else torch.enable_grad()
    known = foreach_utils._get_foreach_kernels_supported_devices()
    foreach_utils._get_foreach_kernels_supported_devices = lambda: [*known, NAME]

    class Autocast(torch.autocast):
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == NAME else device_type, *args, **kwargs)

    torch.autocast = Autocast
    from embodied.scheduler import inline

    context = inline.WorkerContext

    def placed(stage: str, rank: int, world: int, device: str, *args: Any, **kwargs: Any) -> Any:
        return context(stage, rank, world, device if stage in ON_THE_CPU else NAME, *args, **kwargs)

    inline.WorkerContext = placed
    with _Operations(), _Factories():
        yield


if __name__ == "__main__":
    torch.set_num_threads(1)
    recipe, *overrides = sys.argv[1:]
    with pretended():
        import embodied
        import reasoning

        train = reasoning.train if recipe.startswith("math") else embodied.train
        train(recipe, overrides=overrides)
