"""Files of problems as they come: marks, line ends, separators, long rows, numbers that are none; never a traceback."""

from __future__ import annotations

import json

import pytest

from embodied.errors import AssetError, ConfigurationError
from reasoning.commands.main import main
from reasoning.models.tiny import tiny_tokenizer
from reasoning.problems import ProblemsConfig, load_problems
from reasoning.problems.files import find_files
from reasoning.prompts import PromptConfig, Prompter


def load(path, **options):
    return load_problems(ProblemsConfig(files=(str(path),), **options))


def line(prompt, answer):
    return json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", line("1+1=", "2") + "\r\n\r\n" + line("2+2=", "4") + "\r\n"),
        ("p.json", line("1+1=", "2") + "\n" + line("2+2=", "4")),
        ("p.csv", "prompt,answer\r\n1+1=,2\r\n2+2=,4\r\n"),
    ],
)
def test_a_byte_order_mark_and_line_ends_of_windows_are_read(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    loaded = load(tmp_path / name)
    assert [(p.text, p.answers) for p in loaded.problems] == [("1+1=", ("2",)), ("2+2=", ("4",))]


def test_separators_inside_a_text_do_not_end_its_row(tmp_path):
    text = "one\u2028two\u0085three"
    (tmp_path / "p.json").write_text(line(text, "2"), encoding="utf-8")
    assert load(tmp_path / "p.json").problems[0].text == text


def test_a_very_long_row_is_a_row(tmp_path):
    long = "x" * 300_000
    (tmp_path / "p.csv").write_text(f"prompt,answer\n{long},1\n")
    assert load(tmp_path / "p.csv").problems[0].text == long


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"prompt": "q", "answer": NaN}', "the number nan"),
        ('{"prompt": "q", "answer": ' + "9" * 5000 + "}", "JSON that cannot be read"),
        ("[" * 100_000, "JSON that cannot be read"),
        ('{"prompt": "\\ud800", "answer": "1"}', "half of a character"),
        ('{"prompt": "q", "answer": [["1"]]}', "found list"),
        ('{"prompt": "q", "answer": true}', "found bool"),
    ],
    ids=["nan", "digits", "depth", "surrogate", "nested", "bool"],
)
def test_rows_that_cannot_be_used_are_named_and_the_others_kept(tmp_path, row, reason):
    (tmp_path / "p.jsonl").write_text(line("1+1=", "2") + "\n" + row + "\n")
    loaded = load(tmp_path / "p.jsonl", bad_rows="skip")
    assert len(loaded.problems) == 1
    assert (loaded.bad[0].row, reason in loaded.bad[0].reason) == (2, True), loaded.bad
    with pytest.raises(AssetError, match="row 2"):
        load(tmp_path / "p.jsonl")


def test_a_csv_row_with_too_many_values_is_named(tmp_path):
    (tmp_path / "p.csv").write_text("prompt,answer\nwhat, then,2\n1+1=,2\n")
    (bad,) = load(tmp_path / "p.csv", bad_rows="skip").bad
    assert "3 values for 2 columns" in bad.reason
    (tmp_path / "p.csv").write_text("prompt,ans\nwhat, then,2\n1+1=,2\n")
    with pytest.raises(ConfigurationError, match="no column 'answer'"):
        load(tmp_path / "p.csv")


def test_when_no_row_can_be_used_they_are_named_even_if_skipped(tmp_path):
    (tmp_path / "p.jsonl").write_text(line("q", "") + "\n")
    with pytest.raises(AssetError, match=r"row 1, column 'answer': empty"):
        load(tmp_path / "p.jsonl", bad_rows="skip")


def test_data_check_refuses_a_length_that_nothing_has(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text(line("1+1=", "2") + "\n")
    assert main(["data", "check", str(tmp_path / "p.jsonl"), "--max-prompt-tokens", "0"]) == 2
    assert "--max-prompt-tokens is 0" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["", " ", "hub:"])
def test_an_empty_name_is_not_the_current_folder(source):
    with pytest.raises(AssetError, match="names no problems"):
        find_files(source)


def test_a_template_may_have_braces_of_its_own_written_twice():
    options = PromptConfig(format="template", template="Use \\boxed{{}}. {problem}")
    (problem,) = load_problems(ProblemsConfig(family="arithmetic", size=1)).problems
    assert Prompter(tiny_tokenizer(), options).text(problem) == "Use \\boxed{}. " + problem.text
    for template in ("{problem} {problem}", "{problem!z}", "none", "\\boxed{} {problem}"):
        with pytest.raises(ValueError, match="once"):
            PromptConfig(format="template", template=template)
