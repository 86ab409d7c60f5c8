"""Weights on their way from who trains to who acts: in buckets, verified tensor by tensor.

The sender describes every tensor (shape, dtype, checksum of its bytes) from its own copy; the receiver, once it has
stored everything, describes its own copy under its own names and compares. Bytes that arrive under the wrong name, a
tensor left out or one that was rounded on the way cannot pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch

from embodied.errors import CorrectnessAlarm
from embodied.scheduler.transport import record

BUCKET_BYTES = 64 << 20
# entries of a tensor that one pass of the checksum looks at: bounds its temporary memory
_CHECKSUM_STRIDE = 1 << 22
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@record
@dataclasses.dataclass(frozen=True)
class TensorMark:
    """What identifies a tensor's contents."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


@record
@dataclasses.dataclass(frozen=True)
class Bucket:
    """Some tensors of a set of weights; the last bucket carries the marks of all of them."""

    version: int
    tensors: dict[str, torch.Tensor]
    marks: dict[str, TensorMark] | None


def checksum(tensor: torch.Tensor) -> int:
    """A 64-bit sum over a tensor's bits in which every position has its own odd weight, so that exchanged entries show;
    computed where the tensor lives, the same on every device."""
    bits = tensor.detach().contiguous().flatten().view(_INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), _CHECKSUM_STRIDE):
        piece = bits[start : start + _CHECKSUM_STRIDE].long()
        position = torch.arange(start, start + len(piece), device=tensor.device)
        # an odd multiple of the golden ratio's bits: integer arithmetic wraps around alike everywhere
        total += (piece * ((position * 0x1E3779B97F4A7C15) | 1)).sum()
    return int(total)


def mark(tensor: torch.Tensor) -> TensorMark:
    """The mark of one tensor."""
    return TensorMark(tuple(tensor.shape), str(tensor.dtype), checksum(tensor))


def buckets(weights: Iterable[tuple[str, torch.Tensor]], version: int, size: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Cut a stream of named tensors into buckets of about `size` bytes; the marks follow in the last one."""
    marks: dict[str, TensorMark] = {}
    waiting: dict[str, torch.Tensor] = {}
    held = 0
    for name, tensor in weights:
        marks[name] = mark(tensor)
        waiting[name] = tensor.detach()
        held += tensor.numel() * tensor.element_size()
        if held >= size:
            yield Bucket(version, waiting, None)
            waiting, held = {}, 0
    yield Bucket(version, waiting, marks)


def full_tensors(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights one by one, sharded ones gathered; every rank of a sharded module must run through them."""
    for name, tensor in weights.items():
        yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def store(bucket: Bucket, target: dict[str, torch.Tensor]) -> None:
    """Copy a bucket's tensors into the target's of the same names. Raises CorrectnessAlarm for unknown names, other
    shapes or dtypes."""
    for name, tensor in bucket.tensors.items():
        own = target.get(name)
        if own is None:
            raise CorrectnessAlarm(
                f"weights version {bucket.version} contain {name!r}, which the receiver does not have"
            )
        if own.shape != tensor.shape or own.dtype != tensor.dtype:
            raise CorrectnessAlarm(
                f"weights version {bucket.version}: {name} is {tensor.dtype} {list(tensor.shape)}, "
                f"but the receiver's is {own.dtype} {list(own.shape)}"
            )
        own.copy_(tensor)


def verify(marks: dict[str, TensorMark], target: dict[str, torch.Tensor], version: int) -> None:
    """Raise CorrectnessAlarm naming the target's tensors that are not what the sender described."""
    wrong = [name for name, expected in marks.items() if name not in target or mark(target[name]) != expected]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CorrectnessAlarm(
            f"weights version {version} did not arrive as they were sent: {', '.join(wrong[:5])}{more} differ from the "
            "sender's. Acting with them would be silently wrong."
        )
