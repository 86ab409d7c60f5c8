"""Strict configuration records: a frozen dataclass that refuses unknown keys and wrong types.

Every component owns one such record (`@config class ...`). `parse` turns a plain dict, as composed from YAML,
into a record, or raises `ConfigurationError` naming each offending key, its value and the valid ones.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass

from embodied.errors import ConfigurationError, suggest

T = TypeVar("T")
_TYPES = ("bool", "int", "float", "str")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a keyword-only frozen dataclass with strict validation; `__post_init__` may refuse too.

    Numbers are finite: NaN passes every comparison that a check is likely to make. A field that may be infinite is an
    `Annotated[float, pydantic.AllowInfNan(True)]`.
    """
    options = pydantic.ConfigDict(
        extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=False, allow_inf_nan=False
    )
    return pydantic_dataclass(frozen=True, kw_only=True, config=options)(cls)


def parse(record: type[T], values: dict[str, Any], *, at: str = "") -> T:
    """Build `record` from `values`; `at` is the dotted path of `values` in the whole configuration.

    Raises ConfigurationError listing every fault: unknown key (with the nearest valid one), missing key,
    wrong type (expected and actual), value out of range or not among the valid ones.
    """
    try:
        # JSON mode: lists become tuples and strings become enums, yet 1 is no bool and "1" is no int
        return pydantic.TypeAdapter(record).validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        faults = [_describe(record, fault, at) for fault in error.errors(include_url=False)]
        raise ConfigurationError("\n".join(dict.fromkeys(faults))) from None


def _describe(record: type, fault: dict[str, Any], at: str) -> str:
    path = [str(part) for part in fault["loc"]]
    if len(path) > 1 and fault["type"].endswith("_type") and (path[-1] in _TYPES or "[" in path[-1]):
        path = path[:-1]  # which of the types that are allowed here; the message says it
    key = ".".join([*([at] if at else []), *path])
    kind = fault["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        valid = _keys_at(record, path[:-1])
        return f"Unknown configuration key {key!r} (value {fault['input']!r}). " + suggest(path[-1], valid, noun="keys")
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"Configuration key {key!r} is missing; it has no default and must be given."
    if kind == "value_error" and isinstance(fault.get("ctx", {}).get("error"), Exception):
        where = f"{key}: " if key else ""
        return f"{where}{fault['ctx']['error']}"
    if kind == "finite_number":
        return f"{key} is {fault['input']}; it must be a finite number."
    if kind in ("literal_error", "enum"):
        expected = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"Configuration key {key!r} is {fault['input']!r}. " + suggest(fault["input"], expected)
    return f"Configuration key {key!r} is {fault['input']!r}: {fault['msg']}."


def _keys_at(record: type, path: list[str]) -> list[str]:
    """The field names of the record nested at `path` inside `record`; a name may be a key of a dict or an index."""
    for name in path:
        if dataclasses.is_dataclass(record):
            target = typing.get_type_hints(record).get(name)
        else:
            target = (typing.get_args(record) or (None,))[-1 if typing.get_origin(record) is dict else 0]
        choices = [target, *typing.get_args(target)] if not _is_container(target) else [target]
        nested = [t for t in choices if dataclasses.is_dataclass(t) or _is_container(t)]
        if not nested:
            return []
        record = nested[0]
    return [f.name for f in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else []


def _is_container(target: object) -> bool:
    return typing.get_origin(target) in (dict, tuple, list)
