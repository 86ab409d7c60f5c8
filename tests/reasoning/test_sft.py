"""The tiny model and its fit to worked solutions."""

from __future__ import annotations

import json
import math

import pytest
import torch

from embodied.errors import AssetError
from reasoning.commands.main import main
from reasoning.models.loading import end_tokens, load_model, load_tokenizer, open_model, open_tokenizer
from reasoning.models.tiny import tiny_model, tiny_tokenizer
from reasoning.problems import ask
from reasoning.problems.families import generate_problems
from reasoning.prompts import PromptConfig, Prompter
from reasoning.sft import SFTConfig, _example, fit


def test_tiny_tokenizer_gives_back_any_text_with_one_token_a_byte():
    tokenizer = tiny_tokenizer()
    for text in ("12+34=46", "x = \\boxed{7}", "größe ≤ π 🙂", "  two  spaces\n"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert len(tokens) == len(text.encode()) - 6 * text.count("\\boxed{")


def test_tiny_model_has_between_one_and_five_million_parameters_and_repeats():
    tokenizer = tiny_tokenizer()
    first, second = tiny_model(tokenizer, seed=1), tiny_model(tokenizer, seed=1)
    assert 1e6 < sum(p.numel() for p in first.parameters()) < 5e6
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_loss_covers_the_solution_and_its_end_but_not_the_question():
    tokenizer = tiny_tokenizer()
    example = _example(ask("1+1=", "2", solution="2"), Prompter(tokenizer, PromptConfig()), 64)
    assert tokenizer.decode(example.tokens) == "1+1=\n2<|end|>"
    scored = example.tokens[1:][example.scored]
    assert tokenizer.decode(scored) == "2<|end|>"


def test_problems_without_solutions_or_too_long_are_refused():
    prompter = Prompter(tiny_tokenizer(), PromptConfig())
    with pytest.raises(AssetError, match="no worked solution"):
        _example(ask("1+1=", "2"), prompter, 64)
    with pytest.raises(AssetError, match="row_tokens"):
        _example(ask("1+1=", "2", solution="2" * 99), prompter, 64)


def test_first_loss_is_that_of_the_average_solution_token_and_then_falls():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, seed=0)
    problems = generate_problems("arithmetic", 8, 0, {})
    prompter = Prompter(tokenizer, PromptConfig())
    total, count = 0.0, 0
    with torch.no_grad():
        for problem in problems:
            example = _example(problem, prompter, 256)
            logprobs = model(input_ids=example.tokens[None, :-1]).logits[0].log_softmax(-1)
            chosen = logprobs.gather(1, example.tokens[1:, None])[:, 0][example.scored]
            total, count = total - chosen.sum().item(), count + len(chosen)
    history = fit(model, prompter, problems, [], None, SFTConfig(steps=12, batch=8, warmup=2))
    assert history[0].loss == pytest.approx(total / count, rel=1e-4)
    assert history[0].loss == pytest.approx(math.log(len(tokenizer)), rel=0.1)
    assert history[-1].loss < 0.75 * history[0].loss


def test_sft_command_writes_a_model_that_loads_and_a_curve(tmp_path, capsys):
    out = tmp_path / "fitted"
    arguments = ["sft", "tiny", "family:arithmetic", "--size", "64", "--batch", "8", "--steps", "3", "--out", str(out)]
    arguments += ["--until", "0.9", "--evaluate-every", "2", "--held-out-size", "10", "--max-new-tokens", "10"]
    assert main(arguments) == 0
    record = json.loads((out / "sft.json").read_text())
    assert [p["step"] for p in record["history"]] == [1, 2, 3]
    assert record["history"][1]["solved"] is not None
    model, tokenizer = load_model(str(out), dtype=torch.float32, device="cpu"), load_tokenizer(str(out))
    assert end_tokens(model, tokenizer) == (tokenizer.eos_token_id,)
    assert tokenizer.chat_template
    assert main(arguments) == 2
    assert "not empty" in capsys.readouterr().err


def test_the_model_that_ships_loads_by_its_name_and_an_unknown_name_lists_it():
    model = open_model("bundled:math_tiny", seed=0, dtype=torch.float32, device="cpu")
    assert sum(p.numel() for p in model.parameters()) > 1e6
    assert open_tokenizer("bundled:math_tiny").encode("1+1=") == tiny_tokenizer().encode("1+1=")
    with pytest.raises(AssetError, match="math_tiny"):
        open_tokenizer("bundled:math_tyni")


def test_a_share_of_the_solutions_may_be_bare_answers_to_the_same_problems():
    worked, bare = (generate_problems("arithmetic", 200, 0, {"worked": share}) for share in (1.0, 0.25))
    assert [p.text for p in worked] == [p.text for p in bare]
    short = [p for p in bare if p.solution == f"\\boxed{{{p.answers[0]}}}"]
    assert 120 < len(short) < 180
    assert all(" " in p.solution for p in worked)
