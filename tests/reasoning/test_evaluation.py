"""Accuracy of several tries by hand-computed values, and the command from model to page."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from reasoning.commands.main import main
from reasoning.evaluation.metrics import ProblemResult, Try, estimates, majority, majority_at_k, pass_at_k, rates
from reasoning.evaluation.page import write_results
from reasoning.generation import Finish
from reasoning.models.tiny import tiny_model, tiny_tokenizer
from reasoning.problems import ask
from reasoning.prompts import PromptConfig, Prompter
from reasoning.rewards.extraction import Found
from reasoning.rewards.pool import Outcome


def judged(answer: str, *, right: bool = False, tokens: int = 5, finish: Finish = Finish.EOS) -> Try:
    how = Found.BOXED if answer else Found.NOTHING
    return Try(f"I say {answer}", tokens, finish, right, answer, how, Outcome.GRADED, float(right))


def result(*tries: Try) -> ProblemResult:
    return ProblemResult(ask("1+1?", "2"), tries)


@pytest.mark.parametrize(("tries", "right", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 4, 2), (4, 0, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(tries, right, k):
    subsets = list(itertools.combinations([True] * right + [False] * (tries - right), k))
    assert pass_at_k(tries, right, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_more_than_there_are_tries_is_refused():
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


def test_majority_counts_equal_numbers_as_one_answer_and_silence_not_at_all():
    tries = [judged("0.5", right=True), judged(r"\frac{1}{2}", right=True), judged("3"), judged(""), judged("")]
    assert majority(tries) == 1.0
    assert majority([judged("3"), judged("2", right=True)]) == 0.5  # a tie
    assert majority([judged(""), judged("")]) == 0.0


def test_tries_that_could_not_be_graded_do_not_vote():
    hung = Try("I say 7", 5, Finish.EOS, False, "7", Found.BOXED, Outcome.TIMEOUT, None)
    assert majority([hung, hung, judged("2", right=True)]) == 1.0
    assert majority([hung]) == 0.0


def test_majority_at_k_averages_disjoint_blocks():
    right, wrong = judged("2", right=True), judged("3")
    tries = [right, right, wrong, wrong, wrong, right, right]
    assert majority_at_k(tries, 3) == pytest.approx((1 + 0) / 2)  # the seventh fills no block


def test_estimates_have_counts_and_intervals():
    right, wrong = judged("2", right=True), judged("3")
    found = estimates([result(right, wrong, wrong, wrong), result(right, right, right, right)])
    assert list(found) == ["avg@4", "pass@1", "pass@2", "pass@4", "maj@2", "maj@4"]
    assert found["avg@4"].value == found["pass@1"].value == pytest.approx((0.25 + 1) / 2)
    assert found["pass@2"].value == pytest.approx((1 - 3 / 6 + 1) / 2)
    assert found["pass@4"].value == 1.0
    assert found["maj@4"].value == pytest.approx(0.5)
    assert (found["avg@4"].problems, found["avg@4"].samples) == (2, 8)
    for estimate in found.values():
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_interval_of_single_tries_is_wilsons():
    # 8 of 10: the textbook interval
    found = estimates([result(judged("2", right=i < 8)) for i in range(10)])["pass@1"]
    assert (round(found.low, 4), round(found.high, 4)) == (0.4902, 0.9433)


def test_rates_count_truncation_silence_and_lengths():
    tries = [judged("2", right=True, tokens=4), judged("", tokens=10, finish=Finish.LENGTH), judged("3", tokens=6)]
    found = rates([result(*tries)])
    assert found["truncated"] == found["no_answer"] == pytest.approx(1 / 3)
    assert (found["tokens_mean"], found["tokens_longest"], found["tokens_mean_of_right"]) == (20 / 3, 10, 4)


def test_page_shows_every_response_and_escapes_it(tmp_path):
    hostile = "<script>alert(1)</script>"
    tries = (judged("2", right=True), Try(hostile, 9, Finish.LENGTH, False, "", Found.NOTHING, Outcome.TIMEOUT, None))
    results = [ProblemResult(ask("a < b?", "2"), tries)]
    _, page = write_results(tmp_path, {"model": "m"}, results, estimates(results), rates(results))
    html = page.read_text()
    assert hostile not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "a &lt; b?" in html
    assert "timeout" in html
    assert html.count('class="problem"') == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_eval_command_writes_results_that_repeat_whatever_is_generated_at_once(model, tmp_path, capsys):
    base = ["eval", str(model), "family:arithmetic", "--size", "6", "--attempts", "2", "--temperature", "1"]
    for name, slots in (("a", "12"), ("b", "5")):
        assert main([*base, "--max-new-tokens", "20", "--slots", slots, "--out", str(tmp_path / name)]) == 0
    first, second = (json.loads((tmp_path / name / "results.json").read_text()) for name in "ab")
    assert first["problems"] == second["problems"]
    assert [len(p["tries"]) for p in first["problems"]] == [2] * 6
    assert set(first["metrics"]) == {"avg@2", "pass@1", "pass@2", "maj@2"}
    assert first["rates"]["truncated"] > 0.5  # random weights hardly ever end
    assert first["versions"]["transformers"]
    assert "pass@2" in capsys.readouterr().out


def test_a_protocol_reads_a_local_file_of_the_same_shape(model, tmp_path):
    row = {"question": "Two and two?", "answer": "2+2=4\n#### 4"}
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out"
    arguments = ["eval", str(model), str(tmp_path / "gsm8k.jsonl"), "--protocol", "gsm8k", "--max-new-tokens", "12"]
    assert main([*arguments, "--out", str(out)]) == 0
    record = json.loads((out / "results.json").read_text())
    assert record["problems"][0]["answers"] == ["4"]
    assert record["evaluation"]["sampling"]["decode"] == "greedy"
    assert "\\boxed{}" in record["prompt"]["instruction"]
    assert list(record["metrics"]) == ["avg@1", "pass@1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["MODEL", "family:arithmetic", "--attempts", "3"], "greedy are all the same"),
        (["MODEL", "family:arithmetic", "--protocol", "aime"], "aime24"),
        (["MODEL"], "name the problems"),
        (["/no/such/folder", "family:arithmetic"], "/no/such/folder"),
        (["MODEL", "family:arithmetic", "--device", "cuda:77"], "cuda:77"),
    ],
)
def test_eval_refuses_what_makes_no_sense(model, arguments, said, capsys):
    assert main(["eval", *[str(model) if a == "MODEL" else a for a in arguments]]) == 2
    assert said in capsys.readouterr().err
    assert not (model / "evaluation").exists()


def test_evaluations_of_one_model_do_not_write_over_each_other(model, tmp_path):
    mine = tmp_path / "model"
    shutil.copytree(model, mine)
    arguments = ["eval", str(mine), "family:arithmetic", "--size", "2", "--max-new-tokens", "2"]
    for _ in range(2):
        assert main(arguments) == 0
    for name in ("evaluation", "evaluation-2"):
        assert {path.name for path in (mine / name).iterdir()} == {"results.json", "index.html"}


def test_prompts_use_the_chat_template_or_our_own():
    tokenizer = tiny_tokenizer()
    problem = ask("1+1=", "2")
    chat = Prompter(tokenizer, PromptConfig(instruction="Box it.", opening="<think>"))
    assert chat.text(problem) == "1+1=\nBox it.\n<think>"
    own = Prompter(tokenizer, PromptConfig(format="template", template="Q: {problem} A:"))
    assert own.text(problem) == "Q: 1+1= A:"
    assert tokenizer.decode(list(own.tokens(problem))) == "Q: 1+1= A:"


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_alternative():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(Exception, match=r"prompt.format=template"):
        Prompter(tokenizer, PromptConfig())
