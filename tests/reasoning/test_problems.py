"""Problems from files and families: read as configured, faults named, order resumable."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from embodied.config import parse
from embodied.errors import AssetError, ConfigurationError
from reasoning.commands.main import main
from reasoning.problems import ColumnsConfig, ProblemOrder, ProblemsConfig, load_problems
from reasoning.problems.families import generate_problems
from reasoning.problems.order import epoch_order
from reasoning.rewards.graders import build_grader


def write_jsonl(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_gsm8k_shape_takes_the_answer_behind_the_hashes(tmp_path):
    file = write_jsonl(tmp_path / "gsm8k.jsonl", [{"question": "2+2?", "answer": "2 and 2 is 4\n#### 4"}])
    columns = ColumnsConfig(prompt="question", answer="answer", answer_form="after_hashes", solution="answer")
    (problem,) = load_problems(ProblemsConfig(files=(file,), columns=columns)).problems
    assert (problem.text, problem.answers, problem.origin) == ("2+2?", ("4",), "gsm8k.jsonl:1")
    assert problem.solution == "2 and 2 is 4\n#### 4"


def test_math_shape_takes_the_last_box_of_the_solution(tmp_path):
    solution = r"First \boxed{1}, or rather \boxed{\frac{1}{2}}."
    file = write_jsonl(tmp_path / "math.jsonl", [{"problem": "Half?", "solution": solution}])
    columns = ColumnsConfig(prompt="problem", answer="solution", answer_form="boxed")
    (problem,) = load_problems(ProblemsConfig(files=(file,), columns=columns)).problems
    assert problem.answers == (r"\frac{1}{2}",)


def test_nested_columns_chat_messages_and_several_answers_from_parquet(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "7*6?"}]
    rows = [{"prompt": messages, "reward": {"truth": ["42", "forty-two"]}}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train-00000.parquet")
    columns = ColumnsConfig(answer="reward.truth")
    (problem,) = load_problems(ProblemsConfig(files=(str(tmp_path),), split="train", columns=columns)).problems
    assert [m.role for m in problem.messages] == ["system", "user"]
    assert problem.answers == ("42", "forty-two")


def test_multiple_choice_options_are_listed_once_and_the_letter_is_the_answer(tmp_path):
    rows = [{"q": f"Which of {i}?", "right": "yes", "w1": "no", "w2": "maybe", "w3": "never"} for i in range(40)]
    file = write_jsonl(tmp_path / "gpqa.jsonl", rows)
    columns = ColumnsConfig(prompt="q", answer="right", wrong_choices=("w1", "w2", "w3"))
    options = ProblemsConfig(files=(file,), columns=columns)
    problems = load_problems(options).problems
    for problem in problems:
        (line,) = [line for line in problem.text.splitlines() if line.endswith(" yes")]
        assert line == f"({problem.answers[0]}) yes"
    assert {p.answers[0] for p in problems} == set("ABCD")
    assert load_problems(options).problems == problems


def test_csv_rows_may_span_lines(tmp_path):
    (tmp_path / "p.csv").write_text('prompt,answer\n"two\nlines, one row",1\nshort,2\n,3\n')
    loaded = load_problems(ProblemsConfig(files=(str(tmp_path / "p.csv"),), bad_rows="skip"))
    assert [(p.text, p.answers) for p in loaded.problems] == [("two\nlines, one row", ("1",)), ("short", ("2",))]
    assert str(loaded.bad[0]).endswith("p.csv, row 3, column 'prompt': empty")


def test_a_hub_data_set_that_cannot_be_fetched_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(AssetError, match=r"'nobody/nothing' could not be fetched.*folder"):
        load_problems(ProblemsConfig(files=("hub:nobody/nothing",)))


def test_a_bad_row_is_named_by_file_row_column_and_reason(tmp_path):
    rows = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "2+2?", "answer": None}, {"prompt": "", "answer": "3"}]
    file = write_jsonl(tmp_path / "p.jsonl", rows)
    Path(file).write_text(Path(file).read_text() + "{broken\n")
    with pytest.raises(AssetError) as refusal:
        load_problems(ProblemsConfig(files=(file,)))
    text = str(refusal.value)
    assert f"{file}, row 2, column 'answer': expected text, found nothing (null)" in text
    assert f"{file}, row 3, column 'prompt': empty" in text
    assert f"{file}, row 4: not valid JSON" in text
    skipped = load_problems(ProblemsConfig(files=(file,), bad_rows="skip"))
    assert (len(skipped.problems), len(skipped.bad)) == (1, 3)


def test_a_column_that_exists_nowhere_is_a_wrong_name_not_bad_rows(tmp_path):
    file = write_jsonl(tmp_path / "p.jsonl", [{"problem": "1+1?", "answer": "2"}] * 3)
    with pytest.raises(ConfigurationError, match=r"no column 'prompt'.*problem"):
        load_problems(ProblemsConfig(files=(file,)))


def test_missing_files_and_splits_are_refused(tmp_path):
    with pytest.raises(AssetError, match="no file or folder"):
        load_problems(ProblemsConfig(files=(str(tmp_path / "absent"),)))
    write_jsonl(tmp_path / "train.jsonl", [{"prompt": "1+1?", "answer": "2"}])
    with pytest.raises(AssetError, match=r"'test'.*train.jsonl"):
        load_problems(ProblemsConfig(files=(str(tmp_path),), split="test"))


def test_equal_questions_are_dropped_and_contradicting_answers_reported(tmp_path):
    rows = [("1+1?", "2"), ("1 +1?", "2"), ("1+1?", "2"), ("1+1?", "3")]
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": p, "answer": a} for p, a in rows])
    loaded = load_problems(ProblemsConfig(files=(file,)))
    assert [p.origin for p in loaded.problems] == ["p.jsonl:1", "p.jsonl:2"]  # "1 +1?" is another text
    assert [p.origin for p in loaded.duplicates] == ["p.jsonl:3", "p.jsonl:4"]
    assert loaded.contradictions == [("p.jsonl:1", "p.jsonl:4")]
    assert len(load_problems(ProblemsConfig(files=(file,), duplicates="keep")).problems) == 4


def test_long_prompts_are_dropped_and_counted(tmp_path):
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "x" * n, "answer": "2"} for n in (3, 5, 9)])
    loaded = load_problems(ProblemsConfig(files=(file,), max_prompt_tokens=5), lambda p: len(p.text))
    assert (loaded.lengths, len(loaded.too_long)) == ([3, 5], 1)
    assert loaded.summary() == "2 problems (1 too long left out)"


def test_configuration_refuses_neither_and_both_sources():
    for values in ({}, {"files": ["a.jsonl"], "family": "arithmetic"}):
        with pytest.raises(ConfigurationError, match="either files or a family"):
            parse(ProblemsConfig, values)


@pytest.mark.parametrize("family", ["arithmetic", "linear_equation"])
def test_worked_solutions_of_our_families_lead_to_the_answer(family):
    grade = build_grader("math", {})
    for problem in generate_problems(family, 200, 3, {}):
        assert grade(problem.solution, problem).score == 1.0
        for step in problem.solution.replace("x=", "").split()[:-1]:
            if family == "arithmetic":
                left, right = step.split("=")
                assert eval(left) == int(right)


def test_linear_equations_hold_for_their_answers():
    for problem in generate_problems("linear_equation", 100, 0, {}):
        left, right = problem.text.removeprefix("Solve ").removesuffix(" for x.").split("=")
        factor, offset = left.split("x")
        assert int(factor) * int(problem.answers[0]) + int(offset) == int(right)


def test_families_repeat_and_grow_without_changing():
    assert generate_problems("arithmetic", 5, 1, {}) == generate_problems("arithmetic", 9, 1, {})[:5]
    assert generate_problems("arithmetic", 5, 1, {}) != generate_problems("arithmetic", 5, 2, {})


def test_reasoning_gym_family_is_scored_by_its_own_scorer():
    problem = generate_problems("chain_sum", 3, 0, {"min_terms": 2, "max_terms": 2})[1]
    grade = build_grader("reasoning_gym", {})
    assert grade(f"The answer is {problem.answers[0]}", problem).score == 1.0
    assert grade("\\boxed{123456}", problem).score < 1.0


def test_unknown_families_and_options_are_refused():
    with pytest.raises(ConfigurationError, match="chain_sum"):
        generate_problems("chain_sums", 1, 0, {})
    with pytest.raises(ConfigurationError, match="largest"):
        generate_problems("arithmetic", 1, 0, {"larges": 3})
    with pytest.raises(ConfigurationError, match="min_termss"):
        generate_problems("chain_sum", 1, 0, {"min_termss": 3})


def test_every_epoch_asks_every_problem_once_in_another_order():
    order = ProblemOrder(10, seed=5)
    first, second = order.take(0, 10), order.take(10, 10)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert first == epoch_order(10, 5, 0).tolist()


def test_order_resumes_at_any_position_and_runs_over_epochs():
    whole = ProblemOrder(7, seed=1).take(0, 40)
    assert ProblemOrder(7, seed=1).take(19, 21) == whole[19:]
    assert ProblemOrder(7, seed=2).take(0, 40) != whole


def test_data_check_summarises_and_refuses_unusable_rows(tmp_path, capsys):
    rows = [("1+1?", "2"), ("1+1?", "2"), ("Half?", r"\frac{x}{2}"), ("Who?", "Evelyn"), ("Bad?", "")]
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": p, "answer": a} for p, a in rows])
    assert main(["data", "check", file]) == 2
    out = capsys.readouterr().out
    assert "3 problems (1 unusable rows, 1 duplicates left out)" in out
    assert "1 numbers, 1 expressions, 1 text" in out
    assert "'Evelyn'" in out
    assert f"unusable     {file}, row 5, column 'answer': empty" in out
    assert main(["data", "check", "family:arithmetic", "--size", "20"]) == 0
