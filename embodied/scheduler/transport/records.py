"""Records on the wire: any nested record becomes a small header and a list of tensor buffers, and a record again.

The header says what the record looks like (types, shapes, keys: the layout) and carries its small values as JSON; every
tensor, array and byte string is one aligned buffer behind it. Nothing is pickled, and no type is looked up by a name
that came over the wire: a class is rebuilt only if a codec was made for it, or if it is marked with `@record`.

Wire form: uint32 length of the layout, uint32 length of the values, layout (JSON), values (JSON), then the body at the
next multiple of 64 bytes. Tensors arrive on the CPU, detached and contiguous; tensors that share storage arrive apart.
A transport that can move the tensors of one kind of device by itself has them kept out of the body (`apart`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import operator
import struct
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, is_tensorclass

from embodied.errors import EmbodiedError, suggest

T = TypeVar("T")
Receive = Callable[[torch.dtype, tuple[int, ...]], torch.Tensor]

ALIGNMENT = 64
_LENGTHS = struct.Struct("<II")
_PLAIN = frozenset((type(None), bool, int, float, str))  # what JSON gives back exactly as it was
_MAX_LAYOUTS = 1024  # layouts remembered per codec; shapes that keep changing must not grow memory without end
_marked: dict[str, type] = {}
# json.dumps and json.loads less their checks, which cost more than the few values a header has
_encode = json.JSONEncoder(check_circular=False).encode
_decode = json.JSONDecoder().raw_decode

# tags of the layout; each is followed by its fixed arguments and then by its children
_VALUE, _COMPLEX, _TENSOR, _ARRAY, _SCALAR, _BYTES, _BYTEARRAY = "v", "c", "T", "A", "S", "b", "B"
_APART = "G"
_LIST, _TUPLE, _DICT, _PLAIN_LIST, _PLAIN_TUPLE = "l", "t", "d", "L", "U"
_RECORD, _NAMED_TUPLE, _ENUM, _TENSORDICT, _TENSORCLASS = "@", "n", "E", "D", "C"


class NotARecord(EmbodiedError, TypeError):
    """A value cannot travel between processes: its type is unknown to this edge, or has no wire form at all."""


def record(cls: type[T]) -> type[T]:
    """Class decorator: instances may travel inside records of any edge, besides the kinds that edges declare."""
    _check_class(cls)
    _marked[_name_of(cls)] = cls
    return cls


def align(size: int) -> int:
    """`size` rounded up to the next multiple of the buffers' alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclasses.dataclass(frozen=True, slots=True)
class _Buffer:
    """Where one tensor, array or byte string lies in the body."""

    offset: int
    size: int
    dtype: torch.dtype | np.dtype | None  # None for byte strings
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """A record's shape: its JSON text, its buffers, the size of its body and how to build it.

    apart: (index among the values, dtype, shape) of each tensor that is not in the body.
    """

    text: bytes
    buffers: tuple[_Buffer, ...]
    body: int
    apart: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...]
    build: Callable[[memoryview, int, Iterator[Any]], Any]


class _Reading:
    """A layout being read: its tokens, and what they have said so far about the body and the values."""

    def __init__(self, text: bytes) -> None:
        self.next = iter(json.loads(text)).__next__
        self.buffers: list[_Buffer] = []
        self.values = 0
        self.apart: list[tuple[int, torch.dtype, tuple[int, ...]]] = []

    def place(self, dtype: torch.dtype | np.dtype | None, shape: tuple[int, ...]) -> _Buffer:
        """The next buffer: as large as `shape` says, behind the last one, aligned."""
        size = 1 if dtype is None else dtype.itemsize
        for extent in shape:
            size *= extent
        self.buffers.append(_Buffer(self.body, size, dtype, shape))
        return self.buffers[-1]

    @property
    def body(self) -> int:
        """Where the next buffer begins."""
        return align(self.buffers[-1].offset + self.buffers[-1].size) if self.buffers else 0


class Packed:
    """A record ready to be written: `head`, then `sources` at the layout's offsets.

    Keeps references to the record's tensors: write it before they change. `apart` has the tensors that are not in it.
    """

    __slots__ = ("_layout", "_sources", "apart", "body_start", "head", "size")

    def __init__(self, layout: _Layout, values: list[Any], sources: list[Any]) -> None:
        self.apart: list[torch.Tensor] = [values[index] for index, _, _ in layout.apart]
        for index, _, _ in layout.apart:
            values[index] = None
        text = _encode(values).encode() if values else b"[]"
        self.head = b"".join((_LENGTHS.pack(len(layout.text), len(text)), layout.text, text))
        self.body_start = align(len(self.head))
        self.size = self.body_start + layout.body
        self._layout = layout
        self._sources = sources

    def write(self, target: memoryview, address: int) -> None:
        """Write all `size` bytes to `target`, which starts at `address`; each tensor is copied exactly once."""
        target[: len(self.head)] = self.head
        start = self.body_start
        for buffer, source in zip(self._layout.buffers, self._sources, strict=True):
            if not buffer.size:
                continue
            begin = start + buffer.offset
            if isinstance(buffer.dtype, torch.dtype):
                if source.is_cpu and source.is_contiguous() and not source.is_neg() and not source.is_conj():
                    ctypes.memmove(address + begin, source.data_ptr(), buffer.size)
                else:
                    _view(target, begin, buffer).copy_(source.detach())
            elif buffer.dtype is None:
                target[begin : begin + buffer.size] = source
            else:
                flat = np.frombuffer(target, buffer.dtype, buffer.size // buffer.dtype.itemsize, begin)
                flat.reshape(buffer.shape)[...] = source

    def to_bytes(self) -> bytearray:
        """The wire form in memory of its own."""
        data = bytearray(self.size)
        self.write(memoryview(data), ctypes.addressof(ctypes.c_char.from_buffer(data)))
        return data


class Codec:
    """Packs and unpacks records that consist of the given kinds.

    Args:
        kinds: the types an edge carries; every dataclass, tensorclass, named tuple and enum that their annotations
            mention is included. Tensors, arrays, dicts, lists, tuples, text, bytes, numbers and None always travel.
        apart: a device type ("cuda") whose tensors stay out of the wire form, for a transport that moves them itself.
    """

    def __init__(self, *kinds: type, apart: str | None = None) -> None:
        self.kinds = kinds
        self._apart = apart
        self._allowed = _closure(kinds)
        self._sent: dict[tuple[Any, ...], _Layout] = {}
        self._received: dict[bytes, _Layout] = {}
        self._walkers: dict[type, Callable[[Any, list, list, list], None]] = {
            **dict.fromkeys(_PLAIN, _walk_value),
            complex: _walk_complex,
            torch.Tensor: self._walk_tensor,
            torch.nn.Parameter: self._walk_tensor,
            np.ndarray: _walk_array,
            bytes: _walk_bytes,
            bytearray: _walk_bytes,
            list: self._walk_list,
            tuple: self._walk_list,
            dict: self._walk_dict,
            TensorDict: self._walk_tensordict,
            NonTensorData: lambda value, *rest: self._walk(value.data, *rest),
        }

    def pack(self, item: Any) -> Packed:
        """Take `item` apart. Raises NotARecord for a type that may not or cannot travel."""
        tokens: list[Any] = []
        values: list[Any] = []
        sources: list[Any] = []
        self._walk(item, tokens, values, sources)
        key = tuple(tokens)
        layout = self._sent.get(key)
        if layout is None:
            layout = self._layout(json.dumps([_to_wire(t) for t in tokens], separators=(",", ":")).encode())
            _remember(self._sent, key, layout)
        return Packed(layout, values, sources)

    def unpack(self, data: memoryview, receive: Receive | None = None) -> Any:
        """The record in `data` (writable, as written by `Packed.write`); its tensors and arrays are views of `data`.

        They keep the very object `data` alive, so that its owner can tell when the last of them is gone. `receive`
        is asked, in the order of `Packed.apart`, for each tensor that travels apart. Raises NotARecord for a type
        outside this codec's kinds.
        """
        layout_size, values_size = _LENGTHS.unpack_from(data)
        start = _LENGTHS.size + layout_size
        text = bytes(data[_LENGTHS.size : start])
        layout = self._received.get(text)
        if layout is None:
            layout = self._layout(text)
            _remember(self._received, text, layout)
        end = start + values_size
        values = _decode(str(data[start:end], "ascii"))[0] if values_size > 2 else []
        for index, dtype, shape in layout.apart:
            if receive is None:
                raise NotARecord("a record with tensors that travel apart came in on a link that carries none")
            values[index] = receive(dtype, shape)
        return layout.build(data, align(end), iter(values))

    # taking apart

    def _walk(self, value: Any, tokens: list, values: list, sources: list) -> None:
        walker = self._walkers.get(type(value))
        if walker is None:
            walker = self._walkers[type(value)] = self._walker_for(type(value))
        walker(value, tokens, values, sources)

    def _walker_for(self, cls: type) -> Callable[[Any, list, list, list], None]:
        if issubclass(cls, np.generic):
            return _walk_scalar
        name = _name_of(cls)
        if self._find(name) is not cls:
            known = [*sorted(self._allowed), *sorted(_marked)]
            raise NotARecord(
                f"a {name} was put on an edge that carries {_names(self.kinds)}; nothing of that type is declared "
                f"there. Declare it in the edge's kind or mark the class with @record. "
                + suggest(name, known, noun="types here")
            )
        if issubclass(cls, enum.Enum):
            return _walk_enum
        if is_tensorclass(cls):
            return self._tensorclass_walker(cls)
        names = _field_names(cls)
        tag = _RECORD if dataclasses.is_dataclass(cls) else _NAMED_TUPLE
        get = operator.attrgetter(*names) if names else lambda _: ()

        def walk(value: Any, tokens: list, values: list, sources: list) -> None:
            tokens += (tag, cls)
            children = get(value)
            for child in children if len(names) != 1 else (children,):
                self._walk(child, tokens, values, sources)

        return walk

    def _tensorclass_walker(self, cls: type) -> Callable[[Any, list, list, list], None]:
        names = _field_names(cls)

        def walk(value: Any, tokens: list, values: list, sources: list) -> None:
            tokens += (_TENSORCLASS, cls, value.batch_size)
            for name in names:
                self._walk(getattr(value, name), tokens, values, sources)

        return walk

    def _walk_tensor(self, value: torch.Tensor, tokens: list, values: list, sources: list) -> None:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise NotARecord(
                f"a tensor of layout {value.layout}, dtype {value.dtype} on {value.device} has no wire form; "
                "send a dense, strided tensor with data"
            )
        if self._apart is not None and value.device.type == self._apart:
            tokens += (_APART, value.dtype, value.shape)
            values.append(value.detach())
        else:
            tokens += (_TENSOR, value.dtype, value.shape)
            sources.append(value)

    def _walk_list(self, value: Any, tokens: list, values: list, sources: list) -> None:
        is_list = type(value) is list
        if _PLAIN.issuperset(map(type, value)):
            tokens.append(_PLAIN_LIST if is_list else _PLAIN_TUPLE)
            values.append(value)
            return
        tokens += (_LIST if is_list else _TUPLE, len(value))
        for child in value:
            self._walk(child, tokens, values, sources)

    def _walk_dict(self, value: Any, tokens: list, values: list, sources: list) -> None:
        tokens += (_DICT, self._keys(value))
        for child in value.values():
            self._walk(child, tokens, values, sources)

    def _walk_tensordict(self, value: Any, tokens: list, values: list, sources: list) -> None:
        entries = dict(value.items())
        tokens += (_TENSORDICT, value.batch_size, self._keys(entries))
        for child in entries.values():
            self._walk(child, tokens, values, sources)

    def _keys(self, entries: dict) -> tuple[Any, ...]:
        """The keys as a layout token: text as itself, other plain keys with their type (1, True and 1.0 are equal)."""
        return tuple([k if type(k) is str else self._key(k) for k in entries])

    def _key(self, key: Any) -> tuple[Any, ...]:
        if type(key) is tuple:
            return ("tuple", *(self._key(part) for part in key))
        if type(key) in _PLAIN:
            return (type(key).__name__, repr(key) if type(key) is float else key)
        if isinstance(key, enum.Enum) and self._find(_name_of(type(key))) is type(key):
            return ("enum", type(key), key.name)
        raise NotARecord(f"a dict key may be text, a number, None, a declared enum or a tuple of these; got {key!r}")

    # putting together

    def _find(self, name: str) -> type | None:
        return self._allowed.get(name) or _marked.get(name)

    def _class(self, name: str) -> type:
        cls = self._find(name)
        if cls is None:
            raise NotARecord(
                f"a record with a {name} came in on an edge that carries {_names(self.kinds)}; this side does not "
                "rebuild it. Both sides must declare the same kinds and run the same code."
            )
        return cls

    def _layout(self, text: bytes) -> _Layout:
        reading = _Reading(text)
        build = self._node(reading)
        return _Layout(text, tuple(reading.buffers), reading.body, tuple(reading.apart), build)

    def _node(self, reading: _Reading) -> Callable[[memoryview, int, Iterator[Any]], Any]:
        """Read one node of a layout (and its children) and return the function that builds it."""
        tag = reading.next()
        if tag in (_VALUE, _PLAIN_LIST, _PLAIN_TUPLE, _COMPLEX, _APART):
            if tag == _APART:
                reading.apart.append((reading.values, getattr(torch, reading.next()), tuple(reading.next())))
            reading.values += 1
            if tag == _PLAIN_TUPLE:
                return lambda data, start, values: tuple(next(values))
            if tag == _COMPLEX:
                return lambda data, start, values: complex(*next(values))
            return lambda data, start, values: next(values)
        if tag == _TENSOR:
            buffer = reading.place(getattr(torch, reading.next()), tuple(reading.next()))
            return lambda data, start, values: _view(data, start + buffer.offset, buffer)
        if tag in (_ARRAY, _SCALAR):
            buffer = reading.place(np.dtype(reading.next()), tuple(reading.next()))
            return _array_builder(buffer, scalar=tag == _SCALAR)
        if tag in (_BYTES, _BYTEARRAY):
            buffer = reading.place(None, (reading.next(),))
            make = bytes if tag == _BYTES else bytearray
            return lambda data, start, values: make(data[start + buffer.offset : start + buffer.offset + buffer.size])
        if tag == _ENUM:
            member = self._class(reading.next())[reading.next()]
            return lambda data, start, values: member
        return self._branch(tag, reading)

    def _branch(self, tag: str, reading: _Reading) -> Callable[[memoryview, int, Iterator[Any]], Any]:
        make: Callable[[list[Any]], Any]
        if tag in (_LIST, _TUPLE):
            count = reading.next()
            make = tuple if tag == _TUPLE else lambda children: children
        elif tag == _DICT:
            keys = self._keys_from_wire(reading.next())
            count = len(keys)
            make = lambda children: dict(zip(keys, children, strict=True))  # noqa: E731
        elif tag == _TENSORDICT:
            batch, keys = torch.Size(reading.next()), self._keys_from_wire(reading.next())
            count = len(keys)
            make = lambda children: TensorDict(dict(zip(keys, children, strict=True)), batch_size=batch)  # noqa: E731
        elif tag in (_RECORD, _NAMED_TUPLE, _TENSORCLASS):
            cls = self._class(reading.next())
            names = _field_names(cls)
            count = len(names)
            if tag == _TENSORCLASS:
                batch = torch.Size(reading.next())
                make = lambda children: cls(**dict(zip(names, children, strict=True)), batch_size=batch)  # noqa: E731
            else:
                make = cls._make if tag == _NAMED_TUPLE else _dataclass_maker(cls, names)
        else:
            raise NotARecord(f"the layout of a record has an unknown tag {tag!r}; both sides must run the same code")
        nodes = [self._node(reading) for _ in range(count)]
        return lambda data, start, values: make([node(data, start, values) for node in nodes])

    def _keys_from_wire(self, keys: list[Any]) -> tuple[Any, ...]:
        return tuple(k if isinstance(k, str) else self._key_from_wire(k) for k in keys)

    def _key_from_wire(self, key: list[Any]) -> Any:
        kind, *rest = key
        if kind == "tuple":
            return tuple(self._key_from_wire(part) for part in rest)
        if kind == "enum":
            return self._class(rest[0])[rest[1]]
        return float(rest[0]) if kind == "float" else rest[0]


def _walk_value(value: Any, tokens: list, values: list, sources: list) -> None:
    tokens.append(_VALUE)
    values.append(value)


def _walk_complex(value: complex, tokens: list, values: list, sources: list) -> None:
    tokens.append(_COMPLEX)
    values.append((value.real, value.imag))


def _walk_array(value: np.ndarray, tokens: list, values: list, sources: list) -> None:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise NotARecord(f"an array of dtype {value.dtype} has no wire form; send one plain array a field")
    tokens += (_ARRAY, value.dtype, value.shape)
    sources.append(value)


def _walk_scalar(value: np.generic, tokens: list, values: list, sources: list) -> None:
    _walk_array(np.asarray(value), tokens, values, sources)
    tokens[-3] = _SCALAR


def _walk_bytes(value: bytes | bytearray, tokens: list, values: list, sources: list) -> None:
    tokens += (_BYTES if type(value) is bytes else _BYTEARRAY, len(value))
    sources.append(value)


def _walk_enum(value: enum.Enum, tokens: list, values: list, sources: list) -> None:
    if value.name not in type(value).__members__:
        raise NotARecord(f"{value!r} is a combination of flags without a name of its own; send its value instead")
    tokens += (_ENUM, type(value), value.name)


def _to_wire(token: Any) -> Any:
    """A layout token as JSON can say it."""
    if isinstance(token, type):
        return _name_of(token)
    if isinstance(token, torch.dtype):
        return str(token).removeprefix("torch.")
    if isinstance(token, np.dtype):
        return token.str
    return [_to_wire(part) for part in token] if isinstance(token, tuple) else token


def _view(data: memoryview, offset: int, buffer: _Buffer) -> torch.Tensor:
    """A tensor over `data`, which it keeps alive."""
    if not buffer.size:
        return torch.empty(buffer.shape, dtype=buffer.dtype)
    flat = torch.frombuffer(data, dtype=buffer.dtype, count=buffer.size // buffer.dtype.itemsize, offset=offset)
    return flat if len(buffer.shape) == 1 else flat.view(buffer.shape)


def _array_builder(buffer: _Buffer, *, scalar: bool) -> Callable[[memoryview, int, Iterator[Any]], Any]:
    raw = dataclasses.replace(buffer, dtype=torch.uint8, shape=(buffer.size,))

    def build(data: memoryview, start: int, values: Iterator[Any]) -> Any:
        # by way of a tensor: an array made directly would keep the mapping alive, but not the object `data`
        array = _view(data, start + buffer.offset, raw).numpy().view(buffer.dtype).reshape(buffer.shape)
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


def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else cls._fields


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _names(kinds: Iterable[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds) or "plain values only"


def _is_record_class(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, enum.Enum)
        or is_tensorclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _check_class(cls: type) -> None:
    if not _is_record_class(cls):
        raise NotARecord(f"@record marks dataclasses, tensorclasses, named tuples and enums; got {cls!r}")


def _closure(kinds: Iterable[Any]) -> dict[str, type]:
    """The record classes that `kinds` and, recursively, the annotations of their fields mention, by name."""
    found: dict[str, type] = {}
    queue = list(kinds)
    while queue:
        hint = queue.pop()
        queue.extend(typing.get_args(hint))
        # TensorDict is itself a class of its library's own fields; it has a wire form here
        if not _is_record_class(hint) or issubclass(hint, TensorDict | NonTensorData) or _name_of(hint) in found:
            continue
        found[_name_of(hint)] = hint
        if issubclass(hint, enum.Enum):
            continue
        try:
            hints = typing.get_type_hints(hint)
        except NameError as error:
            raise NotARecord(
                f"the annotations of {_name_of(hint)} cannot be resolved ({error}), so an edge cannot tell what it "
                "carries; import the annotated types at run time, outside `if TYPE_CHECKING`"
            ) from None
        queue.extend(hints[name] for name in _field_names(hint) if name in hints)
    return found


def _remember(layouts: dict[Any, _Layout], key: Any, layout: _Layout) -> None:
    if len(layouts) >= _MAX_LAYOUTS:
        layouts.clear()
    layouts[key] = layout


__all__ = ["ALIGNMENT", "Codec", "NotARecord", "Packed", "align", "record"]
