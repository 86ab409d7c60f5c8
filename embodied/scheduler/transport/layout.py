"""The layout of a record: what it looks like, where its buffers lie, and how to build it again.

A layout is a flat list of tokens in JSON: a tag, its fixed arguments, then its children. It is read once for each shape
of record and remembered; building a record from it runs a tree of small functions and looks nothing up.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from embodied.errors import EmbodiedError

Build = Callable[[memoryview, int, Iterator[Any]], Any]  # (data, where its body starts, the values that are left)
Find = Callable[[str], type]  # the class of a name; raises NotARecord

ALIGNMENT = 64

VALUE, COMPLEX, TENSOR, ARRAY, SCALAR, BYTES, BYTEARRAY = "v", "c", "T", "A", "S", "b", "B"
APART = "G"
LIST, TUPLE, DICT, PLAIN_LIST, PLAIN_TUPLE = "l", "t", "d", "L", "U"
RECORD, NAMED_TUPLE, ENUM, TENSORDICT, TENSORCLASS = "@", "n", "E", "D", "C"


class NotARecord(EmbodiedError, TypeError):
    """A value cannot travel between processes: its type is unknown to this edge, or has no wire form at all."""


def align(size: int) -> int:
    """`size` rounded up to the next multiple of the buffers' alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """Where one tensor, array or byte string lies in the body."""

    offset: int
    size: int
    dtype: torch.dtype | np.dtype | None  # None for byte strings
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A record's shape: its JSON text, its buffers, the size of its body and how to build it.

    apart: (index among the values, dtype, shape) of each tensor that is not in the body.
    """

    text: bytes
    buffers: tuple[Buffer, ...]
    body: int
    apart: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...]
    build: Build


class _Reading:
    """A layout being read: its tokens, and what they have said so far about the body and the values."""

    def __init__(self, text: bytes, find: Find) -> None:
        self.find = find
        self.next = iter(json.loads(text)).__next__
        self.buffers: list[Buffer] = []
        self.values = 0
        self.apart: list[tuple[int, torch.dtype, tuple[int, ...]]] = []

    def place(self, dtype: torch.dtype | np.dtype | None, shape: tuple[int, ...]) -> Buffer:
        """The next buffer: as large as `shape` says, behind the last one, aligned."""
        size = 1 if dtype is None else dtype.itemsize
        for extent in shape:
            size *= extent
        self.buffers.append(Buffer(self.body, size, dtype, shape))
        return self.buffers[-1]

    @property
    def body(self) -> int:
        """Where the next buffer begins."""
        return align(self.buffers[-1].offset + self.buffers[-1].size) if self.buffers else 0


def read_layout(text: bytes, find: Find) -> Layout:
    """The layout that `text` describes. Raises NotARecord for a class that `find` does not know."""
    reading = _Reading(text, find)
    build = _node(reading)
    return Layout(text, tuple(reading.buffers), reading.body, tuple(reading.apart), build)


def _node(reading: _Reading) -> Build:
    """Read one node of a layout (and its children) and return the function that builds it."""
    tag = reading.next()
    if tag in (VALUE, PLAIN_LIST, PLAIN_TUPLE, COMPLEX, APART):
        if tag == APART:
            reading.apart.append((reading.values, getattr(torch, reading.next()), tuple(reading.next())))
        reading.values += 1
        if tag == PLAIN_TUPLE:
            return lambda data, start, values: tuple(next(values))
        if tag == COMPLEX:
            return lambda data, start, values: complex(*next(values))
        return lambda data, start, values: next(values)
    if tag == TENSOR:
        buffer = reading.place(getattr(torch, reading.next()), tuple(reading.next()))
        return lambda data, start, values: view(data, start + buffer.offset, buffer)
    if tag in (ARRAY, SCALAR):
        buffer = reading.place(np.dtype(reading.next()), tuple(reading.next()))
        return _array_builder(buffer, scalar=tag == SCALAR)
    if tag in (BYTES, BYTEARRAY):
        buffer = reading.place(None, (reading.next(),))
        make = bytes if tag == BYTES else bytearray
        return lambda data, start, values: make(data[start + buffer.offset : start + buffer.offset + buffer.size])
    if tag == ENUM:
        member = reading.find(reading.next())[reading.next()]
        return lambda data, start, values: member
    return _branch(tag, reading)


def _branch(tag: str, reading: _Reading) -> Build:
    make: Callable[[list[Any]], Any]
    if tag in (LIST, TUPLE):
        count = reading.next()
        make = tuple if tag == TUPLE else lambda children: children
    elif tag == DICT:
        keys = _keys(reading.next(), reading.find)
        count = len(keys)
        make = lambda children: dict(zip(keys, children, strict=True))  # noqa: E731
    elif tag == TENSORDICT:
        batch, keys = torch.Size(reading.next()), _keys(reading.next(), reading.find)
        count = len(keys)
        make = lambda children: TensorDict(dict(zip(keys, children, strict=True)), batch_size=batch)  # noqa: E731
    elif tag in (RECORD, NAMED_TUPLE, TENSORCLASS):
        cls = reading.find(reading.next())
        names = field_names(cls)
        count = len(names)
        if tag == TENSORCLASS:
            batch = torch.Size(reading.next())
            make = lambda children: cls(**dict(zip(names, children, strict=True)), batch_size=batch)  # noqa: E731
        else:
            make = cls._make if tag == NAMED_TUPLE else _dataclass_maker(cls, names)
    else:
        raise NotARecord(f"the layout of a record has an unknown tag {tag!r}; both sides must run the same code")
    nodes = [_node(reading) for _ in range(count)]
    return lambda data, start, values: make([node(data, start, values) for node in nodes])


def _keys(keys: list[Any], find: Find) -> tuple[Any, ...]:
    return tuple(k if isinstance(k, str) else _key(k, find) for k in keys)


def _key(key: list[Any], find: Find) -> Any:
    kind, *rest = key
    if kind == "tuple":
        return tuple(_key(part, find) for part in rest)
    if kind == "enum":
        return find(rest[0])[rest[1]]
    return float(rest[0]) if kind == "float" else rest[0]


def view(data: memoryview, offset: int, buffer: Buffer) -> torch.Tensor:
    """A tensor over `data`, which it keeps alive."""
    if not buffer.size:
        return torch.empty(buffer.shape, dtype=buffer.dtype)
    flat = torch.frombuffer(data, dtype=buffer.dtype, count=buffer.size // buffer.dtype.itemsize, offset=offset)
    return flat if len(buffer.shape) == 1 else flat.view(buffer.shape)


def _array_builder(buffer: Buffer, *, scalar: bool) -> Build:
    raw = dataclasses.replace(buffer, dtype=torch.uint8, shape=(buffer.size,))

    def build(data: memoryview, start: int, values: Iterator[Any]) -> Any:
        # by way of a tensor: an array made directly would keep the mapping alive, but not the object `data`
        array = view(data, start + buffer.offset, raw).numpy().view(buffer.dtype).reshape(buffer.shape)
        return array[()].copy() if scalar else array

    return build


def _dataclass_maker(cls: type, names: tuple[str, ...]) -> Callable[[list[Any]], Any]:
    """Rebuild without __init__: the record was valid when it was sent, and may be frozen."""

    def make(children: list[Any]) -> Any:
        instance = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance

    return make


def field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else cls._fields
