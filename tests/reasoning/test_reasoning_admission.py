"""What cannot run is refused before there is a run folder, and a run that cannot go on is left as it is."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

import reasoning
from embodied.errors import ConfigurationError, RefusedInput
from reasoning.commands.main import main
from tests.reasoning.small_runs import save_small_model

SMALL = ["reward.terms=[{kind: numeric}]", "rollout.sampling.max_new_tokens=6", "evaluation.sampling.max_new_tokens=6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.jsonl").write_text(
        '{"prompt": "Who?", "answer": "Evelyn"}\n{"prompt": "When?", "answer": "3"}\n'
    )
    (tmp_path / "damaged").mkdir()
    return tmp_path


FILES = "problems={files: [%s], family: null}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.source=/no/such/folder"], "there is no folder"),
        (["model.source=damaged"], "no config.json"),
        (["algorithm.kl_coefficient=0.1", "model.reference=./nope"], "there is no folder './nope'"),
        (["algorithm.advantage=gae", "critic.source=./nope"], "there is no folder './nope'"),
        (["critic.source=./nope"], "has no critic"),
        ([FILES % "nope.jsonl"], "no file or folder nope.jsonl"),
        ([FILES % "sums.jsonl", "+problems.columns.answer=truth"], "no column 'truth'"),
        ([FILES % "words.jsonl"], "'Evelyn' is no number"),
        ([FILES % "sums.jsonl", "reward.terms=[{kind: multiple_choice}]"], "not the letter of a choice"),
        ([FILES % "sums.jsonl", "reward.terms=[{kind: reasoning_gym}]"], "not of a reasoning-gym family"),
        (["reward.terms=[{kind: nmeric}]"], "Did you mean 'numeric'"),
        (["reward.terms=[{kind: 'no_such_module:f'}]"], "cannot be imported"),
        (["reward.terms=[{kind: 'os:sep'}]"], "not a function"),
        (["reward.terms=[{kind: ':f'}]"], "package.module:function"),
        (["reward.terms=[{kind: 'tests.reasoning.grading_functions:one_argument'}]"], "cannot be called"),
        (["reward.terms=[{kind: numeric, best: nan}]"], "best is nan"),
        (["reward.terms=[{kind: numeric, best: 0.0}]"], "would say nothing"),
        (["reward.terms=[{kind: numeric, options: {tolerance: -1.0}}]"], "tolerance is -1.0"),
        (["reward.terms=[{kind: numeric}, {kind: format, options: {pattern: '('}}]"], "not a regular expression"),
        (["reward.terms=[{kind: numeric}, {kind: overlong}]"], "limit"),
        (["reward.deadline_seconds=1e30"], "deadline_seconds is 1e+30"),
        (["rollout.sampling.temperature=nan"], "temperature is nan"),
        (["rollout.sampling.max_new_tokens=200"], "made for at most 128"),
        (["evaluation.sampling.max_new_tokens=200"], "evaluation.sampling.max_new_tokens is 200"),
        (["rollout.engine.kind=vllm"], "vLLM, which is not installed"),
        (["algorithm.clip_low=-0.1"], "clip is low -0.1"),
        (["algorithm.dual_clip=0.5"], "dual clip is 0.5"),
        (["algorithm.truncated=penalise", "algorithm.truncated_penalty=-1"], "truncated_penalty is -1"),
        (["algorithm.entropy_coefficient=inf"], "entropy_coefficient is inf"),
        (["critic.value_clip=0"], "value_clip is 0"),
        (["learner.betas=[0.9,1.0]"], "betas is (0.9, 1.0)"),
    ],
    ids=lambda value: value[-1].split("=")[0] if isinstance(value, list) else "",
)
def test_training_is_refused_before_there_is_a_folder(model, here, words, said, capsys, monkeypatch):
    monkeypatch.setattr("reasoning.generation.vllm.importlib.util.find_spec", lambda name: None)
    before = set(here.rglob("*"))
    overrides = (
        [*SMALL, *words]
        if any(w.startswith("model.source") for w in words)
        else [f"model.source={model}", *SMALL, *words]
    )
    assert main(["train", "math_grpo_tiny", *overrides]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert set(here.rglob("*")) == before


def test_a_reward_that_cannot_be_used_is_refused_from_python_too(model, here):
    problems = [("1+1=", "2"), ("2+2=", "4"), ("3+3=", "6")]
    overrides = [f"model.source={model}", *SMALL]
    lock = threading.Lock()

    def locked(response, problem):
        with lock:
            return 1.0

    for reward, said in ((locked, "cannot be sent"), (lambda response: 1.0, "cannot be called"), (5, "a function of")):
        with pytest.raises(ConfigurationError, match=said):
            reasoning.train("math_grpo_tiny", problems, reward, overrides=overrides)
    with pytest.raises(ConfigurationError, match="list of them"):
        reasoning.train("math_grpo_tiny", problems, overrides="goal.responses=8")
    with pytest.raises(ConfigurationError, match=r"problems\[1\].*empty"):
        reasoning.train("math_grpo_tiny", [("1+1=", "2"), ("2+2=", " ")], overrides=overrides)
    assert not (here / "runs").exists()


def test_a_run_whose_problems_are_gone_is_refused_and_left_as_it_is(model, here, capsys):
    words = ["rollout.prompts=2", "algorithm.group_size=2", "learner.global_batch=4", "goal.responses=4"]
    more = ["reward.processes=1", "logger.tensorboard=false", "run.folder=run", FILES % "sums.jsonl"]
    assert main(["train", "math_grpo_tiny", f"model.source={model}", *SMALL, *words, *more]) == 0
    (here / "sums.jsonl").unlink()
    result = (here / "run" / "result.json").read_text()
    assert main(["resume", "run"]) == 2
    assert f"no file or folder {here / 'sums.jsonl'}" in capsys.readouterr().err
    assert (here / "run" / "result.json").read_text() == result
    checkpoint = next((here / "run" / "checkpoints").glob("step_*"))
    before = set(checkpoint.rglob("*"))
    evaluated = ["eval", str(checkpoint / "policy"), "family:arithmetic", "--size", "2", "--max-new-tokens", "4"]
    own = (here / "run" / "evaluation" / "results.json").read_text()
    assert main(evaluated) == 0
    assert set(checkpoint.rglob("*")) == before  # its files are accounted for
    assert (here / "run" / "evaluation" / "results.json").read_text() == own
    assert (here / "run" / "evaluation-2" / "results.json").is_file()


def damage(path, text=None):
    path.write_bytes(path.read_bytes()[:-9] if text is None else text.encode())


def test_a_damaged_run_is_refused_and_left_as_it_is(model, here, capsys):
    words = ["rollout.prompts=2", "algorithm.group_size=2", "learner.global_batch=4", "goal.responses=4"]
    more = ["reward.processes=1", "logger.tensorboard=false", "run.folder=whole"]
    assert main(["train", "math_grpo_tiny", f"model.source={model}", *SMALL, *words, *more]) == 0
    (checkpoint,) = (here / "whole" / "checkpoints").glob("step_*")
    at = checkpoint.relative_to(here / "whole")
    for file, text, verbs, said in (
        (at / "state.safetensors", None, ["resume"], "is damaged: state.safetensors differ"),
        (at / "policy" / "model.safetensors", None, ["resume", "eval"], "is damaged: policy/model.safetensors differ"),
        (at / "manifest.json", "[]", ["resume", "eval"], "manifest.json is unreadable"),
        ("plan.json", "{", ["resume"], "the plan is not JSON"),
        ("config.yaml", "{[", ["resume", "eval"], "is not the configuration of a run"),
    ):
        shutil.rmtree(here / "run", ignore_errors=True)
        shutil.copytree(here / "whole", here / "run")
        damage(here / "run" / file, text)
        before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
        for verb in verbs:
            assert main([verb, "run"]) == 2
            error = capsys.readouterr().err
            assert said in error
            assert "Traceback" not in error
        assert {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slots", "0"], "--slots is 0"),
        (["--processes", "0"], "--processes is 0"),
        (["--limit", "-2"], "--limit is -2"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0.9"], "give a --temperature"),
        (["--top-k", "5"], "give a --temperature"),
        (["--format", "chat", "--template", "{problem}"], "leave one of"),
        (["--out", "sums.jsonl"], "cannot be written"),
        (["--reward", "multiple_choice"], "not the letter"),
        (["--reward", "nope:f"], "cannot be imported"),
        (["--reward", "overlong"], "must be one that looks at the answer"),
        (["--family-options", "largest=3", "--size", "5"], "--size, --family-options would have no effect"),
        (["--protocol", "gsm8k", "--prompt", "text"], "--prompt would have no effect: --protocol gsm8k says"),
    ],
    ids=str,
)
def test_evaluation_is_refused_before_anything_is_generated(model, here, words, said, capsys):
    before = set(here.rglob("*"))
    assert main(["eval", model, "sums.jsonl", "--max-new-tokens", "4", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert set(here.rglob("*")) == before


def test_a_place_that_cannot_be_written_is_refused_before_the_model_is_loaded(model, here, monkeypatch, capsys):
    monkeypatch.setattr("reasoning.models.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["eval", model, "sums.jsonl", "--max-new-tokens", "4", "--out", "sums.jsonl"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "sums.jsonl"], "cannot be written"),
        (["--lr", "nan"], "lr is nan"),
        (["--lr", "0"], "lr is 0"),
        (["--device", "gpu"], "the device 'gpu'"),
        (["--held-out-size", "0"], "--held-out-size is 0"),
        (["--until", "nan"], "until is nan"),
        (["--family-options", "largest=["], "cannot be read"),
        (["--solution", "worked", "--split", "train"], "--split would have no effect: family:arithmetic is a family"),
        (["--solution", "worked"], "--solution would have no effect"),
    ],
    ids=str,
)
def test_a_fit_is_refused_before_it_begins(here, words, said, capsys):
    before = set(here.rglob("*"))
    out = [] if "--out" in words else ["--out", "fitted"]
    assert main(["sft", "tiny", "family:arithmetic", "--size", "20", *out, *words]) == 2
    assert said in capsys.readouterr().err
    assert set(here.rglob("*")) == before


def test_problems_of_a_file_can_be_tested_on_those_of_a_family(here):
    from embodied.commands.program import parse_words
    from reasoning.commands.main import build_parser
    from reasoning.commands.sft import _problems
    from reasoning.problems import load_problems

    words = ["sft", "tiny", "sums.jsonl", "--prompt", "prompt", "--held-out", "family:arithmetic", "--size", "5"]
    args = parse_words(build_parser(), [*words, "--until", "0.5", "--held-out-size", "3", "--out", "fitted"])
    with pytest.raises(RefusedInput, match="--size would have no effect"):
        _problems(args, load_problems)
    args.size = None
    training, held_out = _problems(args, load_problems)
    assert (len(training) > 0, len(held_out)) == (True, 3)


def test_a_fit_that_has_only_seen_problems_to_be_tested_on_is_refused(here, capsys):
    # columns as `reasoning sft` wants them, the same file twice
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1), "solution": f"\\boxed{{{i + 1}}}"} for i in range(4)]
    (here / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--solution", "solution", "--held-out", "solved.jsonl", "--until", "0.5", "--out", "fitted"]
    assert main(["sft", "tiny", "solved.jsonl", *words]) == 2
    assert "all 4 that were found are among those to fit to" in capsys.readouterr().err
    assert not (here / "fitted").exists()


def test_a_template_typed_for_an_evaluation_is_used(model, here):
    words = ["--template", "Q: {problem}", "--max-new-tokens", "4", "--out", "out"]
    assert main(["eval", model, "sums.jsonl", *words]) == 0
    record = json.loads((here / "out" / "results.json").read_text())
    assert (record["prompt"]["format"], record["prompt"]["template"]) == ("template", "Q: {problem}")


def test_an_evaluation_that_could_not_be_graded_says_why(model, here, capsys):
    reward = "tests.reasoning.grading_functions:always_raises"
    assert main(["eval", model, "sums.jsonl", "--reward", reward, "--max-new-tokens", "4", "--out", "out"]) == 0
    assert "ungraded counts as wrong; the first: error, ValueError: never" in capsys.readouterr().out


def test_a_damaged_note_of_what_was_given_is_refused(here):
    from embodied.training.given import check_given

    (here / "given.json").write_text("{")
    with pytest.raises(RefusedInput, match=r"given\.json"):
        check_given(here, (), "reasoning")
