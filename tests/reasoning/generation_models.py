"""Small models of every architecture that native generation serves, and what is asked of them."""

from __future__ import annotations

import asyncio

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from reasoning.generation import Request, Sampling
from reasoning.generation.native import NativeEngine, collect
from reasoning.generation.sampling import token_logprobs

VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    # large, so that random models have clear preferences
    "initializer_range": 0.15,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)),
    "llama3 rope": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True)),
    "qwen3 experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, norm_topk_prob=True)),
    # the middle layer has one block for all tokens, and the experts' weights do not add up to 1
    "qwen3 mixed": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, mlp_only_layers=[1])),
}
GREEDY = Sampling(decode="greedy", max_new_tokens=20)


def build(name: str, seed: int = 0):
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "bias" in parameter_name or "norm" in parameter_name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())


def requests(count: int, sampling: Sampling, first: int = 0) -> list[Request]:
    return [Request(first + i, prompt(3 + i % 7, first + i), sampling, seed=1000 + first + i) for i in range(count)]


def engine(model, **options) -> NativeEngine:
    return NativeEngine(model, **{"eos": (1,), "slots": 4, "capacity": 128, **options})


def generate(model, wanted, **options):
    return asyncio.run(collect(engine(model, **options), wanted))


def full_logprobs(model, response) -> torch.Tensor:
    """What one pass over prompt and response says about the response's tokens."""
    start = len(response.request.prompt)
    sequence = torch.tensor([[*response.request.prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        logits = model(sequence).logits[0, start - 1 : -1]
    return token_logprobs(logits, response.tokens, response.request.sampling)
