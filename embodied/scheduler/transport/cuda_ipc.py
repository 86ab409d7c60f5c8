"""Tensors on one GPU between two of its processes: device memory is mapped into the receiver, nothing visits the CPU.

A codec for the shared-memory link: CUDA tensors travel as inter-process handles, everything else as ever. The sender
copies each tensor once, on the device, so that it may change its own at once; that copy lives until the receiver's
tensors are gone. Handles and reference counts are torch.multiprocessing's; they require that the sender outlives what
it sent. It is tested only where there is a GPU (`pytest -m gpu`); elsewhere making the codec is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from embodied.errors import ConfigurationError
from embodied.scheduler.transport.records import Codec, Packed, Receive

# what `reduce_tensor` says of a CUDA tensor, less the types and flags that are the same for every tensor here
_Handle = tuple[list[int], int, int, bytes, int, int, bytes, int, bytes, bool]


class CudaIpcCodec(Codec):
    """A codec that keeps CUDA tensors on their device; both ends of a link must use it.

    Raises ConfigurationError where there is no CUDA device.
    """

    def __init__(self, *kinds: type) -> None:
        if not torch.cuda.is_available():
            raise ConfigurationError(
                "the transport cuda_ipc needs a CUDA device and this process has none; place the stage's workers on a "
                "GPU, or let the plan choose shared memory"
            )
        super().__init__(*kinds, apart="cuda")
        self._envelope = Codec()

    def pack(self, item: Any) -> Packed:
        packed = super().pack(item)
        handles = [_export(tensor) for tensor in packed.apart]
        return self._envelope.pack((packed.to_bytes(), handles))

    def unpack(self, data: memoryview, receive: Receive | None = None) -> Any:
        wire, handles = self._envelope.unpack(data)
        following = iter(handles)
        return super().unpack(memoryview(wire), receive or (lambda dtype, shape: _map(next(following), dtype, shape)))


def _export(tensor: torch.Tensor) -> _Handle | None:
    """The handle of a copy of `tensor`; None for a tensor without elements, which has no memory."""
    if not tensor.numel():
        return None
    _, arguments = reduce_tensor(tensor.clone(memory_format=torch.contiguous_format))
    _, _, stride, offset, _, _, device, handle, size, start, _, counter, counter_offset, event, must_sync = arguments
    return list(stride), offset, device, handle, size, start, counter, counter_offset, event, must_sync


def _map(exported: _Handle | None, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if exported is None:
        return torch.empty(shape, dtype=dtype, device="cuda")
    stride, offset, device, handle, size, start, counter, counter_offset, event, must_sync = exported
    return rebuild_cuda_tensor(
        torch.Tensor,
        torch.Size(shape),
        tuple(stride),
        offset,
        torch.storage.TypedStorage,
        dtype,
        device,
        handle,
        size,
        start,
        False,  # requires_grad
        counter,
        counter_offset,
        event,
        must_sync,
    )
