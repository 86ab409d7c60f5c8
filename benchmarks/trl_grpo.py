"""Whole GRPO steps a minute beside TRL's GRPOTrainer: prompts, generation, rewards, update, new weights.

    python -m venv /tmp/trl && echo "$(python -c 'import site; print(site.getsitepackages()[0])')" \
        > /tmp/trl/lib/python3.11/site-packages/shared.pth
    /tmp/trl/bin/pip install trl==1.16.0
    OMP_NUM_THREADS=1 PYTHONPATH=. /tmp/trl/bin/python benchmarks/trl_grpo.py

TRL is no dependency of this project; the environment above takes everything else from the one this project is installed
in. Both train the same random Qwen2-type model on the same prompts with the same reward function: groups of 8, one
optimiser step of all responses, token-mean loss, no reference model, temperature 1, one thread. They take turns step by
step in one process; the first steps of each are not counted. Counted are CPU seconds of this process and, on our side,
of the grading process; the wall clock of a shared machine counts its other users too.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from generation import SIZES, VOCABULARY, Size

from embodied.runs.folder import create_run_folder
from embodied.runs.progress import RunProgress
from embodied.scheduler.busy import stage_times
from embodied.scheduler.launch import make_launcher
from reasoning.models.tiny import tiny_tokenizer
from reasoning.problems.record import Problem, ask
from reasoning.training.recipe import parse_recipe
from reasoning.training.workload import ReasoningWorkload

GROUP = 8
PROMPT = 32
SKIPPED = 2


def low_bytes(response: str) -> float:
    """The reward of both sides: the share of plain letters."""
    return sum(ord(letter) < 128 for letter in response) / max(1, len(response))


def save_model(size: Size, folder: Path) -> None:
    """The same random model for both sides, with a tokenizer of one token a byte."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
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
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def questions(count: int) -> list[str]:
    """Different prompts of `PROMPT` tokens each."""
    return [f"{number:0{PROMPT}d}" for number in range(count)]


class Ours:
    """This project's run, step by step: the same calls that `reasoning train` makes."""

    def __init__(self, model: Path, args: argparse.Namespace, folder: Path) -> None:
        limit = {"max_new_tokens": args.length}
        values = {
            "workload": "reasoning",
            "model": {"source": str(model)},
            "problems": {"family": "arithmetic"},  # not used: problems are given
            "prompt": {"format": "template", "template": "{problem}"},
            "reward": {"terms": [{"kind": "numeric"}], "processes": 1},
            "algorithm": {"advantage": "grpo", "group_size": GROUP},
            "rollout": {
                "prompts": args.batch // GROUP,
                "slots": args.batch,
                "sampling": limit,
                "dtype": args.generation,
            },
            "learner": {"lr": 1e-5, "eps": 1e-8, "grad_clip": 1.0, "precision": args.precision},
            "layout": {"micro_tokens": args.batch * (PROMPT + args.length)},
            "evaluation": {"every": 0, "size": 1, "sampling": limit},
            "logger": {"tensorboard": False},
        }
        problems = [ask(question, "0", origin=f"given:{i}") for i, question in enumerate(questions(4096))]
        self.workload = ReasoningWorkload(parse_recipe("benchmark", values), problems, _graded)
        self.folder = create_run_folder(folder, "benchmark", folder / "run")
        self.done = 0

    async def __aenter__(self) -> Ours:
        workload = self.workload
        workload.prepare()
        plan = workload.placed()
        flow = workload.flow(plan, self.folder)
        self._system = make_launcher(flow, plan, seed=0, cluster=workload.recipe.cluster)
        system = await self._system.__aenter__()
        self.run = workload.begin(self.folder, system, RunProgress(self.folder.log, total=1, unit="responses"))
        await self.run.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._system.__aexit__(*error)

    async def step(self) -> None:
        """One iteration."""
        await self.run.collect(self.done)
        await self.run.learn(self.done)
        await self.run.publish()
        self.done += 1

    async def parts(self) -> dict[str, float]:
        """Busy seconds of every stage and operation since the last call."""
        return stage_times(await self.run.system.take_times())


def _graded(response: str, problem: Problem) -> float:
    return low_bytes(response)


def theirs(model: Path, args: argparse.Namespace, folder: Path, after_step: Callable[[float], None]) -> None:
    """TRL's run. after_step: is told the CPU seconds of each step as it ends."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Turns(TrainerCallback):
        def on_train_begin(self, *unused: Any, **more: Any) -> None:
            self.began = cpu_seconds()

        def on_step_end(self, *unused: Any, **more: Any) -> None:
            after_step(cpu_seconds() - self.began)
            self.began = cpu_seconds()

    def reward(completions: Sequence[str], **unused: Any) -> list[float]:
        return [low_bytes(completion) for completion in completions]

    options = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=args.precision == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=args.batch,
        num_generations=GROUP,
        max_completion_length=args.length,
        cache_implementation=None if args.cache == "dynamic" else "static",
        max_steps=SKIPPED + args.steps,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        logging_steps=10_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        args=options,
        train_dataset=Dataset.from_dict({"prompt": questions(4096)}),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[Turns()],
    ).train()


def cpu_seconds() -> float:
    """Of this process and those it started."""
    own = psutil.Process()
    times = [own.cpu_times(), *(child.cpu_times() for child in own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


async def compare(args: argparse.Namespace, size: Size) -> None:
    """One line of the table for each side."""
    ours: list[float] = []
    others: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(size, folder / "model")
        async with Ours(folder / "model", args, folder) as run:
            loop = asyncio.get_running_loop()

            def turn(seconds: float) -> None:
                others.append(seconds)
                began = cpu_seconds()
                asyncio.run_coroutine_threadsafe(run.step(), loop).result()
                ours.append(cpu_seconds() - began)

            await asyncio.to_thread(theirs, folder / "model", args, folder, turn)
            parts = await run.parts()
    mine, their = (statistics.median(seconds[SKIPPED:]) for seconds in (ours, others))
    shape = f"{args.batch} x {args.length}"
    for who, seconds in (("here", mine), (f"TRL, {args.cache} cache", their)):
        print(
            f"| {size.name} | {shape} | {who} | {60 / seconds:.1f} | {args.batch * args.length / seconds:,.0f} "
            f"| {their / seconds:.2f} |",
            flush=True,
        )
    for what, seconds in sorted(parts.items(), key=lambda item: -item[1])[:8]:
        logging.info("%s: %.3f s a step", what, seconds / len(ours))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=[size.name for size in SIZES])
    parser.add_argument("--batch", type=int, default=32, help="responses of a step")
    parser.add_argument("--length", type=int, default=64, help="tokens of a response")
    parser.add_argument("--steps", type=int, default=8, help="counted ones")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic", help="of transformers generate")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of both updates")
    parser.add_argument("--generation", choices=("float32", "bfloat16"), default="float32", help="of ours")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    print(f"update in {args.precision}, generation here in {args.generation}, {time.strftime('%Y-%m-%d')}")
    print("| model | responses x tokens | who | steps a CPU-minute | tokens/CPU-s | times TRL |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        if size.name in args.sizes:
            asyncio.run(compare(args, size))


if __name__ == "__main__":
    main()
