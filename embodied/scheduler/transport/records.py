"""Records on the wire: any nested record becomes a small header and a list of tensor buffers, and a record again.

The header says what the record looks like (types, shapes, keys: the layout) and carries its small values as JSON; every
tensor, array and byte string is one aligned buffer behind it. Nothing is pickled, and no type is looked up by a name
that came over the wire: a class is rebuilt only if a codec was made for it, or if it is marked with `@record`.

Wire form: uint32 length of the layout, uint32 length of the values, layout (JSON), values (JSON), then the body at the
next multiple of 64 bytes. Tensors arrive on the CPU, detached and contiguous; tensors that shared storage no longer do,
and a TensorDict names no device. A transport that can move the tensors of one kind of device by itself has them kept
out of the body (`apart`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import operator
import struct
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, is_tensorclass

from embodied.errors import suggest
from embodied.scheduler.transport import layout as tags
from embodied.scheduler.transport.layout import Layout, NotARecord, align, field_names, read_layout, view

T = TypeVar("T")
Receive = Callable[[torch.dtype, tuple[int, ...]], torch.Tensor]

_LENGTHS = struct.Struct("<II")
_PLAIN = frozenset((type(None), bool, int, float, str))  # what JSON gives back exactly as it was
_MAX_LAYOUTS = 1024  # layouts remembered per codec; shapes that keep changing must not grow memory without end
_marked: dict[str, type] = {}
# json.dumps and json.loads less their checks, which cost more than the few values a header has
_encode = json.JSONEncoder(check_circular=False).encode
_decode = json.JSONDecoder().raw_decode


def record(cls: type[T]) -> type[T]:
    """Class decorator: instances may travel inside records of any edge, besides the kinds that edges declare."""
    _check_class(cls)
    _marked[_name_of(cls)] = cls
    return cls


class Packed:
    """A record ready to be written: `head`, then `sources` at the layout's offsets.

    Keeps references to the record's tensors: write it before they change. `apart` has the tensors that are not in it.
    """

    __slots__ = ("_layout", "_sources", "apart", "body_start", "head", "size")

    def __init__(self, layout: Layout, values: list[Any], sources: list[Any]) -> None:
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
                    view(target, begin, buffer).copy_(source.detach())
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
        self._sent: dict[tuple[Any, ...], Layout] = {}
        self._received: dict[bytes, Layout] = {}
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
            layout = read_layout(_text_of(tokens), self._class)
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
            layout = read_layout(text, self._class)
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
        names = field_names(cls)
        tag = tags.RECORD if dataclasses.is_dataclass(cls) else tags.NAMED_TUPLE
        get = operator.attrgetter(*names) if names else lambda _: ()

        def walk(value: Any, tokens: list, values: list, sources: list) -> None:
            tokens += (tag, cls)
            children = get(value)
            for child in children if len(names) != 1 else (children,):
                self._walk(child, tokens, values, sources)

        return walk

    def _tensorclass_walker(self, cls: type) -> Callable[[Any, list, list, list], None]:
        names = field_names(cls)

        def walk(value: Any, tokens: list, values: list, sources: list) -> None:
            tokens += (tags.TENSORCLASS, cls, value.batch_size)
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
            tokens += (tags.APART, value.dtype, value.shape)
            values.append(value.detach())
        else:
            tokens += (tags.TENSOR, value.dtype, value.shape)
            sources.append(value)

    def _walk_list(self, value: Any, tokens: list, values: list, sources: list) -> None:
        is_list = type(value) is list
        if _PLAIN.issuperset(map(type, value)):
            tokens.append(tags.PLAIN_LIST if is_list else tags.PLAIN_TUPLE)
            values.append(value)
            return
        tokens += (tags.LIST if is_list else tags.TUPLE, len(value))
        for child in value:
            self._walk(child, tokens, values, sources)

    def _walk_dict(self, value: Any, tokens: list, values: list, sources: list) -> None:
        tokens += (tags.DICT, self._keys(value))
        for child in value.values():
            self._walk(child, tokens, values, sources)

    def _walk_tensordict(self, value: Any, tokens: list, values: list, sources: list) -> None:
        entries = dict(value.items())
        tokens += (tags.TENSORDICT, value.batch_size, self._keys(entries))
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


def _walk_value(value: Any, tokens: list, values: list, sources: list) -> None:
    tokens.append(tags.VALUE)
    values.append(value)


def _walk_complex(value: complex, tokens: list, values: list, sources: list) -> None:
    tokens.append(tags.COMPLEX)
    values.append((value.real, value.imag))


def _walk_array(value: np.ndarray, tokens: list, values: list, sources: list) -> None:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise NotARecord(f"an array of dtype {value.dtype} has no wire form; send one plain array a field")
    tokens += (tags.ARRAY, value.dtype, value.shape)
    sources.append(value)


def _walk_scalar(value: np.generic, tokens: list, values: list, sources: list) -> None:
    _walk_array(np.asarray(value), tokens, values, sources)
    tokens[-3] = tags.SCALAR


def _walk_bytes(value: bytes | bytearray, tokens: list, values: list, sources: list) -> None:
    tokens += (tags.BYTES if type(value) is bytes else tags.BYTEARRAY, len(value))
    sources.append(value)


def _walk_enum(value: enum.Enum, tokens: list, values: list, sources: list) -> None:
    if value.name not in type(value).__members__:
        raise NotARecord(f"{value!r} is a combination of flags without a name of its own; send its value instead")
    tokens += (tags.ENUM, type(value), value.name)


def _text_of(tokens: list[Any]) -> bytes:
    return json.dumps([_to_wire(token) for token in tokens], separators=(",", ":")).encode()


def _to_wire(token: Any) -> Any:
    """A layout token as JSON can say it."""
    if isinstance(token, type):
        return _name_of(token)
    if isinstance(token, torch.dtype):
        return str(token).removeprefix("torch.")
    if isinstance(token, np.dtype):
        return token.str
    return [_to_wire(part) for part in token] if isinstance(token, tuple) else token


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
        queue.extend(hints[name] for name in field_names(hint) if name in hints)
    return found


def _remember(layouts: dict[Any, Layout], key: Any, layout: Layout) -> None:
    if len(layouts) >= _MAX_LAYOUTS:
        layouts.clear()
    layouts[key] = layout
