from typing import Literal

import pytest

from embodied.config import config, parse
from embodied.errors import ConfigurationError
from embodied.scheduler.planner.profile import NodeGroup


@config
class Inner:
    rate: float = 1.0
    sizes: tuple[int, ...] = (1,)


@config
class Outer:
    name: str
    mode: Literal["fast", "faithful"] = "fast"
    inner: Inner = Inner()
    size: int | tuple[int, int] = 8

    def __post_init__(self) -> None:
        if self.name == "impossible":
            raise ValueError("name is impossible")


def test_defaults_and_given_values_are_kept():
    record = parse(Outer, {"name": "a", "inner": {"sizes": [3, 4]}})
    assert record == Outer(name="a", inner=Inner(sizes=(3, 4)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a", "mod": "fast"}, ["'x.mod'", "Did you mean 'mode'", "name, mode, inner, size"]),
        ({"name": "a", "size": "big"}, ["'x.size' is 'big': Input should be a valid integer"]),
        ({"name": "a", "inner": {"rat": 1}}, ["'x.inner.rat'", "Did you mean 'rate'", "rate, sizes"]),
        ({"name": 3}, ["'x.name' is 3", "string"]),
        ({"name": "a", "inner": {"rate": "1"}}, ["'x.inner.rate' is '1'", "number"]),
        ({"name": "a", "inner": {"sizes": [1, 2.5]}}, ["2.5", "integer"]),
        ({"name": "a", "mode": "fsat"}, ["'x.mode' is 'fsat'", "Did you mean 'fast'", "fast, faithful"]),
        ({}, ["'x.name' is missing"]),
        ({"name": "impossible"}, ["x: name is impossible"]),
    ],
)
def test_a_fault_is_refused_naming_key_value_and_what_is_valid(values, words):
    with pytest.raises(ConfigurationError) as caught:
        parse(Outer, values, at="x")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_every_fault_is_listed_at_once():
    with pytest.raises(ConfigurationError) as caught:
        parse(Outer, {"name": 1, "mode": "slow", "extra": 2})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite_unless_a_field_says_otherwise(value):
    with pytest.raises(ConfigurationError, match=rf"x\.inner\.rate is {value}; it must be a finite number"):
        parse(Outer, {"name": "a", "inner": {"rate": value}}, at="x")
    with pytest.raises(ValueError, match="finite"):
        Inner(rate=value)
    assert NodeGroup().host_memory_bytes == float("inf")
