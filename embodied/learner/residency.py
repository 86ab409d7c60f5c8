"""Tensors off their device and back, to the bit: to host memory from a GPU, to a file from the CPU.

The tensors stay the same objects; their storages are emptied and filled again, so everything that refers to them
(parameters, optimiser state, views) is valid again after `load`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import torch

# bytes that are on their way to or from the file at once
_PIECE = 16 << 20


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """The distinct storages behind `tensors` (of a sharded tensor: this rank's), by address."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage
    return found


def resident_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of memory that the tensors occupy."""
    return sum(storage.nbytes() for storage in storages(tensors).values())


class Parking:
    """Where state waits while another stage has the device."""

    def __init__(self) -> None:
        self._host: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        self._spilled: list[tuple[torch.UntypedStorage, int]] = []
        self._file: tempfile._TemporaryFileWrapper[bytes] | None = None

    @property
    def occupied(self) -> bool:
        """Whether something is parked."""
        return bool(self._host or self._spilled)

    def unload(self, tensors: Iterable[torch.Tensor]) -> None:
        """Empty the tensors' storages and keep their contents."""
        for storage in storages(tensors).values():
            size = storage.nbytes()
            if storage.device.type == "cpu":
                if self._file is None:
                    self._file = tempfile.NamedTemporaryFile(prefix="embodied-state-")  # noqa: SIM115 - until load
                # by way of a copy: handing a storage itself to NumPy would make it impossible to resize
                for piece in torch.empty(0, dtype=torch.uint8).set_(storage).split(_PIECE):
                    self._file.write(piece.clone().numpy().data)
                self._spilled.append((storage, size))
            else:
                self._host.append((storage, storage.cpu()))
            storage.resize_(0)
        if self._file is not None:
            self._file.flush()

    def load(self) -> None:
        """Fill the storages again."""
        for storage, contents in self._host:
            storage.resize_(contents.nbytes())
            storage.copy_(contents)
        if self._file is not None:
            self._file.seek(0)
            for storage, size in self._spilled:
                storage.resize_(size)
                for piece in torch.empty(0, dtype=torch.uint8).set_(storage).split(_PIECE):
                    piece.copy_(torch.frombuffer(bytearray(self._file.read(len(piece))), dtype=torch.uint8))
            self._file.close()
        self._host, self._spilled, self._file = [], [], None
