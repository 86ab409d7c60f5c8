"""Small runs of the reasoning flow: a model of a few thousand parameters, a few short answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from embodied.runs.folder import RunFolder, create_run_folder
from reasoning.models.tiny import tiny_tokenizer
from reasoning.training.recipe import Recipe, parse_recipe
from reasoning.training.train import Outcome, train

# right is whatever has many of these: something that a model without any knowledge gets right now and then
EASY = "tests.reasoning.small_runs:share_of_low_bytes"


def share_of_low_bytes(response: str, problem: Any) -> float:
    return sum(ord(letter) < 128 for letter in response) / max(1, len(response))


def save_small_model(folder: Path, seed: int = 0) -> str:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def small_recipe(model: str, **changes: Any) -> Recipe:
    """Sections of `changes` are merged into those of a recipe that runs in a second."""
    values: dict[str, Any] = {
        "workload": "reasoning",
        "model": {"source": model},
        "problems": {"family": "arithmetic", "size": 40},
        "reward": {"terms": [{"kind": EASY}], "processes": 1},
        "algorithm": {"group_size": 4},
        "rollout": {"prompts": 4, "slots": 8, "sampling": {"max_new_tokens": 6}},
        "learner": {"lr": 1e-3, "global_batch": 8, "eps": 1e-8},
        "evaluation": {"every": 2, "size": 3, "sampling": {"decode": "greedy", "max_new_tokens": 6}},
        "goal": {"responses": 32},
        "checkpoint": {"every": 1, "keep": 10},
        "logger": {"tensorboard": False},
    }
    for section, value in changes.items():
        values[section] = {**values[section], **value} if isinstance(value, dict) and section in values else value
    return parse_recipe("small", values)


def run_small(recipe: Recipe, folder: Path, **options: Any) -> Outcome:
    made = RunFolder(folder) if options.get("resume") else create_run_folder(folder.parent, "small", folder)
    return train(recipe, made, command="test", **options)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_of(outcome: Outcome) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(Path(outcome.result["checkpoint"]) / "policy" / "model.safetensors")


def has_a_digit(response: str, problem: Any) -> float:
    return float(any(letter.isdigit() for letter in response))


def sometimes_fails(response: str, problem: Any) -> float:
    if len(response) % 3 == 0:
        raise ValueError("not today")
    return share_of_low_bytes(response, problem)
