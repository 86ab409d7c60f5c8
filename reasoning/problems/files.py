"""Rows of JSONL, Parquet and CSV files, and folders of them as data sets are published, turned into problems.

Nothing is guessed: columns are named in the configuration, and a row that cannot be used is reported with its file,
row number, column and reason. The `datasets` library is not needed.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from embodied.errors import AssetError, ConfigurationError, suggest
from reasoning.problems.config import ColumnsConfig
from reasoning.problems.record import Message, Problem
from reasoning.rewards.extraction import last_boxed

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST_FIELD = 1 << 30  # characters


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. row: from 1; of JSONL files the line. column: "" when it is the whole row."""

    file: str
    row: int
    column: str
    reason: str

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        return f"{self.file}, row {self.row}{column}: {self.reason}"


class _Unusable(Exception):
    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column, self.reason = column, reason


def find_files(source: str, split: str = "") -> list[Path]:
    """The data files that `source` means, in a stable order.

    Raises AssetError when there is none, or when a hub data set cannot be fetched.
    """
    if not source.removeprefix("hub:").strip():
        raise AssetError(f"{source!r} names no problems; give a file, a folder or hub:OWNER/NAME")
    path = _download(source.removeprefix("hub:"), split) if source.startswith("hub:") else Path(source).expanduser()
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise AssetError(f"{path} ends in {path.suffix!r}; problems are read from {', '.join(SUFFIXES)} files")
        return [path]
    if not path.is_dir():
        raise AssetError(
            f"there is no file or folder {path}. For a data set of the Hugging Face hub write hub:OWNER/NAME."
        )
    found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and not p.name.startswith("."))
    chosen = [p for p in found if split in str(p.relative_to(path).with_suffix(""))]
    if not chosen:
        names = ", ".join(str(p.relative_to(path)) for p in found[:10])
        reason = f"none has {split!r} in its name; there are: {names}" if found else f"it holds no {SUFFIXES} file"
        raise AssetError(f"no problems in {path}: {reason}")
    return chosen


def _download(name: str, split: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [f"*{split}*{suffix}" for suffix in SUFFIXES]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise AssetError(
            f"the data set {name!r} could not be fetched from the hub ({type(error).__name__}). "
            "Without a network, point to a folder that holds its files."
        ) from None


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    """(row number from 1, row) of a file; a line that is no JSON object comes as a BadRow.

    Raises AssetError when the file as a whole cannot be read.
    """
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        # utf-8-sig: programs of Windows put a mark before the first character
        with path.open(encoding="utf-8-sig", newline="" if path.suffix == ".csv" else None) as file:
            if path.suffix == ".csv":
                yield from _csv_rows(path, file)
                return
            if path.suffix == ".json":
                yield from _json_rows(path, file.read())
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _json_row(path, number, line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AssetError(f"{path} cannot be read: {error}") from None


def _csv_rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    csv.field_size_limit(_LONGEST_FIELD)  # of the whole process; its default is too short for long solutions
    reader = csv.DictReader(file)
    for number, row in enumerate(reader, start=1):
        if None in row:
            more = f"{len(reader.fieldnames or ()) + len(row[None])} values for {len(reader.fieldnames or ())} columns"
            yield number, BadRow(str(path), number, "", f"{more}; text with commas must be in quotes")
        else:
            yield number, row


def _json_row(path: Path, number: int, line: str) -> dict[str, Any] | BadRow:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return BadRow(str(path), number, "", f"not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or nesting without end
        return BadRow(str(path), number, "", f"JSON that cannot be read: {error}")
    return row if isinstance(row, dict) else BadRow(str(path), number, "", f"a {type(row).__name__}, not an object")


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    """A .json file: one array of objects, or one object a line."""
    if not text.lstrip().startswith("["):
        # not splitlines: that also parts at separators which may stand inside a JSON text
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, _json_row(path, number, line)
        return
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise AssetError(f"{path} is not valid JSON: {error.msg} at line {error.lineno}") from None
    except (ValueError, RecursionError) as error:
        raise AssetError(f"{path} cannot be read: {error}") from None
    for number, row in enumerate(rows, start=1):
        is_row = isinstance(row, dict)
        yield number, row if is_row else BadRow(str(path), number, "", f"a {type(row).__name__}, not an object")


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (OSError, ArrowException) as error:
        raise AssetError(f"{path} cannot be read as Parquet: {error}") from None


def read_problems(path: Path, columns: ColumnsConfig) -> Iterator[Problem | BadRow]:
    """Every row of a file, as a problem or as the reason why it is none.

    Raises ConfigurationError when a configured column is in no row at all: then the name is wrong, not the rows.
    """
    wanted = [columns.prompt, columns.answer, *([columns.solution] if columns.solution else []), *columns.wrong_choices]
    present: set[str] = set()
    seen: set[str] = set()
    held: list[BadRow] = []
    usable = False
    for number, row in read_rows(path):
        if isinstance(row, BadRow):
            yield row
            continue
        seen.update(row)
        present.update(c for c in wanted if _reaches(row, c))
        try:
            problem = _problem(row, columns, f"{path.name}:{number}")
        except _Unusable as fault:
            bad = BadRow(str(path), number, fault.column, fault.reason)
            if usable:
                yield bad
            else:
                held.append(bad)  # perhaps the column exists nowhere
            continue
        usable = True
        yield from held
        held.clear()
        yield problem
    missing = [c for c in wanted if c not in present]
    if missing and seen:
        raise ConfigurationError(
            f"{path} has no column {missing[0]!r} in any row. " + suggest(missing[0], sorted(seen), noun="columns")
        )
    yield from held


def _reaches(row: Mapping[str, Any], column: str) -> bool:
    try:
        _value(row, column)
    except _Unusable:
        return False
    return True


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise _Unusable(column, "missing")
        value = value[part]
    return value


def _problem(row: Mapping[str, Any], columns: ColumnsConfig, origin: str) -> Problem:
    messages = _messages(_value(row, columns.prompt), columns.prompt)
    answers = _answers(_value(row, columns.answer), columns)
    solution = None if columns.solution is None else _text(_value(row, columns.solution), columns.solution)
    if columns.wrong_choices:
        wrong = [_text(_value(row, c), c) for c in columns.wrong_choices]
        listing, letter = _choices(messages[-1].content, answers[0], wrong)
        messages = (*messages[:-1], dataclasses.replace(messages[-1], content=listing))
        answers = (letter,)
    return Problem(messages, answers, origin, solution)


def _text(value: Any, column: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Unusable(column, f"expected text, found {_kind(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Unusable(column, f"the number {value}")
    text = str(value).strip()
    if not text:
        raise _Unusable(column, "empty")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _Unusable(column, "half of a character (a lone surrogate), which no tokenizer reads")
    return text


def _kind(value: Any) -> str:
    return "nothing (null)" if value is None else type(value).__name__


def _messages(value: Any, column: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        return (Message("user", _text(value, column)),)
    turns = []
    for turn in value:
        if not isinstance(turn, Mapping) or not {"role", "content"} <= turn.keys():
            raise _Unusable(column, "a list, but not of messages with role and content")
        turns.append(Message(_text(turn["role"], column), _text(turn["content"], column)))
    if not turns or turns[-1].role == "assistant":
        raise _Unusable(column, "the conversation must end with a question, not with the model's turn")
    return tuple(turns)


def _answers(value: Any, columns: ColumnsConfig) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise _Unusable(columns.answer, "an empty list of answers")
    return tuple(_answer(_text(v, columns.answer), columns) for v in values)


def _answer(text: str, columns: ColumnsConfig) -> str:
    if columns.answer_form == "plain":
        return text
    if columns.answer_form == "boxed":
        found = last_boxed(text)
        if not found:
            raise _Unusable(columns.answer, "no \\boxed{...} with something in it")
        return found
    _, hashes, found = text.rpartition("####")
    if not hashes or not found.strip():
        raise _Unusable(columns.answer, "no answer behind ####")
    return found.strip()


def _choices(question: str, right: str, wrong: list[str]) -> tuple[str, str]:
    """The question with its options below, and the letter of the right one; the order hangs on the question alone."""

    def place(option: str) -> bytes:
        return hashlib.sha256(f"{question}\n{option}".encode()).digest()

    options = sorted([right, *wrong], key=place)
    listing = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{question}\n\n{listing}", LETTERS[options.index(right)]
