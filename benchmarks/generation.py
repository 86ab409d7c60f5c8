"""Generated tokens a CPU-second of the native engine, log-probabilities included, beside transformers `generate`.

    OMP_NUM_THREADS=1 python benchmarks/generation.py

Same random Qwen2-type models, same prompts, same sampling (temperature 1, no filters), one thread. Equal lengths: every
response has as many tokens as the others. Ragged: lengths drawn evenly from 16 to the longest; transformers generates
batch after batch, each as long as its longest member; only tokens that were asked for count. transformers runs with
its static and its dynamic cache in each dtype, and the best counts. Rounds are interleaved, the best of each is kept.
CPU time of one thread is counted, because the wall clock of a shared machine counts its other users too.
The bound is the time of the matrix products alone, at the same batch, each with weights laid out for it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import time
from collections.abc import Callable

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from reasoning.generation import Engine, Request, Sampling
from reasoning.generation.linear import Linear
from reasoning.generation.native import NativeEngine, collect
from reasoning.generation.vllm import VllmEngine

VOCABULARY = 4096
PROMPT = 32


@dataclasses.dataclass(frozen=True)
class Size:
    """A model: name, layers, width, query heads, key heads."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int


SIZES = (Size("5 M", 4, 256, 4, 2), Size("34 M", 8, 512, 8, 4))


def build(size: Size) -> Qwen2ForCausalLM:
    """A model with random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=2,
    )
    return Qwen2ForCausalLM(config).eval()


def ours(engine: Engine, prompts: torch.Tensor, lengths: list[int]) -> Callable[[], None]:
    """One round of an engine of this project."""
    requests = [
        Request(i, tuple(prompt), Sampling(max_new_tokens=length), seed=i)
        for i, (prompt, length) in enumerate(zip(prompts.tolist(), lengths, strict=True))
    ]
    return lambda: asyncio.run(collect(engine, requests)) and None


def transformers(
    model: Qwen2ForCausalLM, prompts: torch.Tensor, lengths: list[int], slots: int, cache: str
) -> Callable[[], None]:
    """One round of `generate`, batch after batch."""

    def run() -> None:
        for start in range(0, len(prompts), slots):
            batch = prompts[start : start + slots]
            longest = max(lengths[start : start + slots])
            model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=longest,
                min_new_tokens=longest,
                cache_implementation=cache if cache == "static" else None,
                disable_compile=True,
            )

    return run


def products(model: Qwen2ForCausalLM, rows: int, tokens: int) -> Callable[[], None]:
    """The matrix products of `tokens` steps with `rows` rows, and nothing else."""
    matrices = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        joint = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        matrices += [joint, attention.o_proj.weight, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])]
        matrices.append(mlp.down_proj.weight)
    matrices.append(model.lm_head.weight)
    with torch.no_grad():
        inputs = [torch.randn(rows, matrix.shape[1], dtype=matrix.dtype) for matrix in matrices]
        linears = [Linear(matrix.detach()) for matrix in matrices]

    @torch.inference_mode()
    def run() -> None:
        for _ in range(tokens):
            for linear, x in zip(linears, inputs, strict=True):
                linear(x)

    return run


def fastest(rounds: int, contestants: dict[str, Callable[[], None]]) -> dict[str, float]:
    """CPU-seconds of each contestant's best round, rounds interleaved."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def compare(args: argparse.Namespace, size: Size, kind: str) -> None:
    """One block of the table."""
    ragged, slots = kind == "ragged", args.slots
    count, longest = (3 * slots, 2 * args.longest) if ragged else (slots, args.longest)
    draw = random.Random(0)
    lengths = [draw.randint(16, longest) if ragged else longest for _ in range(count)]
    prompts = torch.randint(3, VOCABULARY, (count, PROMPT), generator=torch.Generator().manual_seed(0))
    contestants: dict[str, Callable[[], None]] = {}
    for name in args.dtypes:
        cast = build(size).to(getattr(torch, name))
        shape = {"eos": (), "slots": slots, "capacity": PROMPT + max(lengths)}
        contestants[f"native {name}"] = ours(NativeEngine(cast, **shape), prompts, lengths)
        for how in args.vllm:
            engine = VllmEngine(cast, **shape, cache_gib=1.0, eager=how == "eager")
            contestants[f"vLLM {name}, {how}"] = ours(engine, prompts, lengths)
        for cache in args.caches:
            contestants[f"transformers {name}, {cache} cache"] = transformers(cast, prompts, lengths, slots, cache)
        contestants[f"matrix products {name}"] = products(cast, slots, -(-sum(lengths) // slots))
    seconds = fastest(args.rounds, contestants)
    speed = {name: sum(lengths) / s for name, s in seconds.items()}
    theirs = max(v for name, v in speed.items() if name.startswith("transformers"))
    described = f"ragged, 16-{longest}" if ragged else f"equal, {longest}"
    for name, value in speed.items():
        print(f"| {size.name} | {described} | {name} | {value:,.0f} | {value / theirs:.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=[size.name for size in SIZES])
    parser.add_argument("--kinds", nargs="+", default=["equal", "ragged"], choices=("equal", "ragged"))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=("float32", "bfloat16"))
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"], choices=("dynamic", "static"))
    parser.add_argument("--vllm", nargs="+", default=[], choices=("eager", "compiled"), help="beside it, if installed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | lengths | engine | tokens/CPU-s | against the best of transformers |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        if size.name in args.sizes:
            for kind in args.kinds:
                compare(args, size, kind)


if __name__ == "__main__":
    main()
