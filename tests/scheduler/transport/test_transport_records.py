"""Records come out as they went in, their tensors are views of the wire form, and only declared types are rebuilt."""

from __future__ import annotations

import _pickle
import dataclasses
import enum
import math
import pickle
import typing
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorClass, TensorDict

from embodied.scheduler.transport import Codec, NotARecord, record


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Inner:
    weights: torch.Tensor
    colour: Colour
    note: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    inner: list[Inner]
    table: dict[str, Any]


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: int


class Batch(TensorClass):
    actions: torch.Tensor
    name: str


@dataclasses.dataclass
class Undeclared:
    value: int


CODEC = Codec(Outer, Pair, Batch, Inner)


def through(item: Any, codec: Codec = CODEC) -> Any:
    return codec.unpack(memoryview(codec.pack(item).to_bytes()))


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, TensorDict):
        return a.batch_size == b.batch_size and same(dict(a.items()), dict(b.items()))
    if isinstance(a, NonTensorData):
        return same(a.data, b.data)
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and bytes_of(a) == bytes_of(b)
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return a == b


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().resolve_conj().resolve_neg().flatten().view(torch.uint8).numpy().tobytes()


DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8,
    torch.int8, torch.bool, torch.complex64, torch.uint16, torch.float8_e4m3fn,
]  # fmt: skip
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype and shape, sometimes not contiguous."""
    base = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)), dtype=torch.float32)
    shape = draw(shapes)
    tensor = base[torch.arange(math.prod(shape)) % len(base)].reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(shapes)
    dtype = draw(st.sampled_from(["f4", "f8", "i8", "u1", "?", "c16", "U3", "S2", "<M8[s]", ">i4"]))
    array = np.zeros(shape, dtype)
    array[...] = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    return draw(st.sampled_from([array, array.T]))


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary(max_size=9),
    st.complex_numbers(allow_nan=False), st.sampled_from(Colour), st.binary(max_size=5).map(bytearray),
    st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True)]),
)  # fmt: skip
keys = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.sampled_from(Colour),
    st.tuples(st.integers(), st.text()),
)  # fmt: skip


inners = st.builds(Inner, tensors(), st.sampled_from(Colour), st.none() | st.text())


def batch(rows: int, name: str) -> Batch:
    return Batch(actions=torch.full((rows, 2), 7), name=name, batch_size=[rows])


def tensordict(rows: int, name: str) -> TensorDict:
    deep = TensorDict({"b": torch.zeros(rows)}, [rows])
    return TensorDict({"a": torch.ones(rows, 2), "deep": deep, "s": name}, [rows])


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.builds(Outer, st.lists(inners, max_size=2), st.dictionaries(st.text(), children, max_size=3)),
        st.builds(Pair, tensors(), st.integers()),
        st.builds(batch, st.integers(0, 3), st.text()),
        st.builds(tensordict, st.integers(0, 3), st.text()),
    )


@given(st.recursive(st.one_of(plain, tensors(), arrays()), containers, max_leaves=12))
@settings(max_examples=150, deadline=None)
def test_any_nested_record_comes_out_as_it_went_in(item: Any) -> None:
    assert same(through(item), item)


@given(st.lists(st.recursive(st.one_of(plain, tensors()), containers, max_leaves=5), min_size=2, max_size=6))
@settings(max_examples=30, deadline=None)
def test_remembered_layouts_do_not_mix_up_records(items: list[Any]) -> None:
    codec = Codec(Outer, Pair, Batch, Inner)
    for item in [*items, *reversed(items)]:
        assert same(through(item, codec), item)


def test_equal_keys_of_different_type_stay_apart() -> None:
    for item in ({1: "a"}, {True: "a"}, {1.0: "a"}, {1: "a"}):
        assert same(through(item), item)


def test_wire_form_is_as_documented() -> None:
    data = bytes(Codec().pack((3, torch.tensor([1, 2], dtype=torch.int16))).to_bytes())
    layout, values = b'["t",2,"v","T","int16",[2]]', b"[3]"
    assert data[:8] == len(layout).to_bytes(4, "little") + len(values).to_bytes(4, "little")
    assert data[8 : 8 + len(layout) + len(values)] == layout + values
    assert data[64:68] == bytes([1, 0, 2, 0])
    assert len(data) == 128


def test_tensors_are_views_of_the_wire_form_and_keep_it_alive() -> None:
    data = memoryview(Codec().pack([torch.zeros(4), np.zeros(4), torch.zeros(0)]).to_bytes())
    gone = weakref.ref(data)
    tensor, array, empty = Codec().unpack(data)
    data[data.nbytes - 128 : data.nbytes - 124] = np.float32(5).tobytes()
    assert tensor.tolist() == [5, 0, 0, 0]
    assert empty.numel() == 0
    del data, tensor
    assert gone() is not None  # the array still needs it
    part = array[1:]
    del array
    assert gone() is not None
    del part
    assert gone() is None


def test_a_tensor_with_gradient_arrives_without() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    received = through(weight * 2)
    assert received.tolist() == [2, 2, 2]
    assert not received.requires_grad
    assert type(through(weight)) is torch.Tensor


def test_frozen_record_is_rebuilt_without_running_its_checks_again() -> None:
    @dataclasses.dataclass(frozen=True)
    class Counted:
        value: int

        def __post_init__(self) -> None:
            calls.append(self.value)

    calls: list[int] = []
    assert through(Counted(4), Codec(Counted)) == Counted(4)
    assert calls == [4, 4]  # the two constructed in this test


def test_undeclared_type_is_refused_by_the_sender_and_by_the_receiver() -> None:
    with pytest.raises(NotARecord, match=r"Undeclared was put on an edge that carries Outer.*@record"):
        CODEC.pack([Undeclared(1)])
    wire = memoryview(Codec(Undeclared).pack(Undeclared(1)).to_bytes())
    with pytest.raises(NotARecord, match=r"Undeclared came in on an edge that carries Outer.*same kinds"):
        CODEC.unpack(wire)


def test_marked_type_travels_on_any_edge() -> None:
    @record
    @dataclasses.dataclass
    class Marked:
        value: tuple[int, ...]

    assert through({"x": Marked((1, 2))}, Codec()) == {"x": Marked((1, 2))}
    with pytest.raises(NotARecord, match="@record marks"):
        record(int)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.eye(3).to_sparse(), "layout"),
        (torch.empty(3, device="meta"), "with data"),
        (np.array([None, 1]), "one plain array a field"),
        (np.zeros(2, dtype=[("a", "i4")]), "one plain array a field"),
        ({frozenset(): 1}, "dict key"),
        ({1, 2}, "builtins:set"),
        (object(), "builtins:object"),
        (lambda: 0, "builtins:function"),
    ],
)
def test_what_has_no_wire_form_is_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(NotARecord, match=reason):
        CODEC.pack({"x": value})


def test_unresolvable_annotation_is_named() -> None:
    @dataclasses.dataclass
    class Broken:
        value: NowhereDefined  # noqa: F821

    with pytest.raises(NotARecord, match="NowhereDefined"):
        Codec(Broken)


def test_no_pickle_is_involved(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickled")

    for module in (pickle, _pickle):
        for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
            monkeypatch.setattr(module, name, refuse)
    item = [
        Inner(torch.ones(2), Colour.RED),
        b"y",
        np.ones(2),
        Batch(actions=torch.ones(2, 1), name="n", batch_size=[2]),
    ]
    assert same(through(item, Codec(Inner, Batch)), item)
