"""How fast the VLA policies act on a CPU, side by side in one run on the same weights.

Compared, on the `tiny` preset, batch 16, 7 action dimensions, sampled at temperature 1:
- openvla: this project's `act` (cache, action rows of the output head only, log-probabilities and values included);
- generate: the same weights through transformers' `LlamaForCausalLM.generate` with its own cache, restricted to the
  action tokens, scores returned; vision through timm's `get_intermediate_layers`, as the published model calls it;
- generate, our vision: the same, but pictures encoded by this project's code, which leaves out the unread last blocks;
- plain: the whole network anew for every token, no cache;
- openvla_oft: a chunk of 8 actions from one pass.

Run: OMP_NUM_THREADS=1 python benchmarks/vla_acting.py [--rounds 12]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers

from embodied.random import RowNoise
from policies import openvla, openvla_oft
from policies.api import Interface, Sampling
from policies.vla.attention import causal_plan
from policies.vla.network import positions_of

BATCH = 16
INSTRUCTIONS = (
    "pick up the black bowl between the plate and the ramekin and place it on the plate",
    "open the top drawer and put the bowl inside",
)


@dataclasses.dataclass
class Shown:
    """A batch of observations of noise."""

    state: torch.Tensor
    images: torch.Tensor
    instruction: list[str]
    privileged: torch.Tensor | None = None


def noise() -> RowNoise:
    """Fresh row noise, the same at every call."""
    return RowNoise(7, np.arange(BATCH), np.zeros(BATCH))


class ThroughGenerate:
    """The policy's decoder as transformers has it, with shared weights."""

    def __init__(self, policy: openvla.OpenVLAPolicy, vision: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.vision = vision
        shape = policy.model.architecture.llama
        config = transformers.LlamaConfig(
            **dataclasses.asdict(shape) | {"rope_theta": shape.rope_theta},
            pad_token_id=policy.model.architecture.pad_token,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
        self.policy = policy
        self.decoder = transformers.LlamaForCausalLM(config).eval()
        missing = self.decoder.load_state_dict(policy.model.language_model.state_dict(), strict=False)
        assert not missing.missing_keys, missing

    def __call__(self, inputs) -> None:
        ids, mask = self.policy.prompt(inputs)
        pictures = self.policy.model.projector(self.vision(self.policy.picture_planes(inputs)))
        context = self.policy.context(self.policy.model.language_model.embed(ids), mask, pictures)
        valid = (
            context.valid if context.valid is not None else torch.ones(context.embeddings.shape[:2], dtype=torch.bool)
        )
        first, last = self.policy.tokens.first, self.policy.tokens.vocab_end
        banned = torch.full((1, self.policy.model.architecture.llama.vocab_size), -torch.inf)
        banned[:, first:last] = 0
        self.decoder.generate(
            inputs_embeds=context.embeddings,
            attention_mask=valid.long(),
            max_new_tokens=self.policy.spec.tokens_per_action,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            return_dict_in_generate=True,
            output_scores=True,
            logits_processor=transformers.LogitsProcessorList([lambda ids, scores: scores + banned]),
        )


def published_vision(policy: openvla.OpenVLAPolicy, planes: torch.Tensor) -> torch.Tensor:
    """Patch features the way the published model has timm compute them."""
    features = [
        vit.get_intermediate_layers(planes[:, 0, i], n={len(vit.blocks) - 2})[0]
        for i, vit in enumerate(policy.model.vision_backbone.featurizers)
    ]
    return torch.cat(features, dim=-1)


def plain(policy: openvla.OpenVLAPolicy, inputs) -> None:
    """Every token from a complete pass over pictures, prompt and the tokens so far, all logits computed."""
    tokens = torch.empty(BATCH, 0, dtype=torch.int64)
    for _ in range(policy.spec.tokens_per_action):
        tail = policy.model.language_model.embed(tokens)
        embeddings, valid, positions = policy._context(inputs).extend(tail)
        positions = positions if valid is None else positions_of(valid)
        hidden = policy.model.hidden(embeddings, positions, causal_plan(valid))
        logits = policy.model.language_model.lm_head(hidden)[:, -1, policy.tokens.rows]
        drawn = torch.multinomial(logits.softmax(-1), 1)
        tokens = torch.cat([tokens, drawn + policy.tokens.first], dim=1)


def interleaved(candidates: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each candidate; one of each a round, so that drift of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 2):
        for name, run in candidates.items():
            begin = time.perf_counter()
            run()
            if round_number >= 2:  # the first two warm up
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    interface = Interface(
        state_dim=8,
        action_dim=7,
        action_low=(-1.0,) * 7,
        action_high=(1.0,) * 7,
        cameras=1,
        image_height=128,
        image_width=128,
        instructions=INSTRUCTIONS,
    )
    serial = openvla.build(openvla.OpenVLAConfig(name="openvla/tiny"), interface)
    parallel = openvla_oft.build(openvla_oft.OpenVLAOFTConfig(name="openvla_oft/tiny"), interface)
    images = torch.randint(0, 256, (BATCH, 1, 128, 128, 3), dtype=torch.uint8)
    shown = Shown(torch.zeros(BATCH, 8), images, [INSTRUCTIONS[i % 2] for i in range(BATCH)])
    inputs = serial.prepare(shown)
    generate = ThroughGenerate(serial, lambda planes: published_vision(serial, planes))
    generate_ours = ThroughGenerate(serial, serial.model.vision_backbone)
    candidates = {
        "openvla": lambda: serial.act(inputs, Sampling(), noise()),
        "generate": lambda: generate(inputs),
        "generate, our vision": lambda: generate_ours(inputs),
        "plain": lambda: plain(serial, inputs),
        "openvla_oft": lambda: parallel.act(inputs, Sampling(), noise()),
        "vision only": lambda: serial.model.embed_pictures(serial.picture_planes(inputs)),
    }
    with torch.no_grad():
        planes = serial.picture_planes(inputs)
        torch.testing.assert_close(published_vision(serial, planes), serial.model.vision_backbone(planes))
        seconds = interleaved(candidates, options.rounds)
    actions = {"openvla_oft": 8, "vision only": 0}
    print(f"{'':20} {'ms a batch':>10} {'actions/s':>10} {'tokens/s':>10}")
    for name, value in seconds.items():
        rate = BATCH * actions.get(name, 1) / value
        print(f"{name:20} {value * 1e3:10.1f} {rate:10.0f} {rate * 7:10.0f}")
    result = {
        "date": dt.date.today().isoformat(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seconds": {name: round(value, 5) for name, value in seconds.items()},
        "openvla_over_plain": round(seconds["plain"] / seconds["openvla"], 2),
        "openvla_over_generate": round(seconds["generate"] / seconds["openvla"], 2),
        "openvla_over_generate_our_vision": round(seconds["generate, our vision"] / seconds["openvla"], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
