"""Instructions as token ids: the prompt template, the tokenizer and the padding of a batch.

A prompt ends with the empty token ("▁", 29871 in LLaMA-2), because the published policies were trained with it there.
Padding stands between the beginning-of-sequence token and the rest, so that the last prompt token is the last column.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, processors

from embodied.errors import CheckpointError, ConfigurationError

_ASSISTANT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


class Template(enum.Enum):
    """How an instruction becomes a prompt."""

    OPENVLA = "openvla"
    OPENVLA_V01 = "openvla_v01"

    def fill(self, instruction: str) -> str:
        """The prompt of `instruction`, which is lower-cased as in training."""
        question = f"What action should the robot take to {instruction.lower()}?"
        if self is Template.OPENVLA_V01:
            return f"{_ASSISTANT} USER: {question} ASSISTANT:"
        return f"In: {question}\nOut:"


def prompts_of(options: Mapping[str, Any], instructions: Sequence[str]) -> list[str]:
    """What a policy with these options reads for each of `instructions`; nothing for one without prompts."""
    template = options.get("prompt")
    return [Template(template).fill(text) for text in instructions] if isinstance(template, str) else []


class PromptEncoder:
    """Tokenises and pads prompts; each distinct instruction is tokenised once.

    Args:
        tokenizer: adds the beginning-of-sequence token itself, like LLaMA's.
        pad_token: id written into padding columns.
        length: columns of the result; every prompt must fit.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, template: Template, pad_token: int, length: int) -> None:
        empty = tokenizer.token_to_id("▁")
        if empty is None:
            raise CheckpointError("The tokenizer has no '▁' token, which ends every prompt; expected LLaMA's kind.")
        self.tokenizer = tokenizer
        self.template = template
        self.pad_token = pad_token
        self.length = length
        self._empty = empty
        self._known: dict[str, list[int]] = {}

    def ids(self, instruction: str) -> list[int]:
        """The prompt's token ids, beginning-of-sequence first, empty token last, without padding."""
        if instruction not in self._known:
            ids = self.tokenizer.encode(self.template.fill(instruction)).ids
            self._known[instruction] = ids if ids[-1] == self._empty else [*ids, self._empty]
        return self._known[instruction]

    def longest(self, instructions: tuple[str, ...]) -> int:
        """Tokens of the longest of these instructions' prompts."""
        return max(len(self.ids(text)) for text in instructions)

    def __call__(self, instructions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 ids [B, length] and bool mask [B, length], False on padding.

        Raises ConfigurationError where a prompt does not fit, with the length that would.
        """
        rows, masks = [], []
        for text in instructions:
            ids = self.ids(text)
            gap = self.length - len(ids)
            if gap < 0:
                raise ConfigurationError(
                    f"The prompt of {text!r} has {len(ids)} tokens, more than prompt_tokens {self.length}. "
                    f"Set policy.prompt_tokens to at least {len(ids)}."
                )
            rows.append([ids[0], *[self.pad_token] * gap, *ids[1:]])
            masks.append([True, *[False] * gap, *[True] * (len(ids) - 1)])
        return torch.tensor(rows), torch.tensor(masks)


_WORDS = """
a above again against align all alphabet an and any apple around assembly at away back backward ball banana bar basket
bbq behind below beside between bin black block blue board book both bottle bottom bowl box bread brown butter button
by cabinet caddy can carrot center centre charger cheese chocolate clean close closer coffee compartment container
cookie cover cream cube cup door down drawer dressing drop each edge empty end faucet first fold for forward from
front frying gently gray green grasp handle hanger hold hole in inside insert into it its jar juice keep ketchup knob
lamp larger left leftmost lid lift long lower machine make microwave middle milk moka move mug near next object of off
on one onto open orange other out over oven pan pear peg pick pink place plate plug point poke position pot pots pour
press pudding pull purple push put rack ramekin reach receptacle red release right rightmost rinse robot roll rotate
round salad sauce second shelf shelves short side sink slide small socket soup sphere spin spoon stack stand start stop
stove straight switch sweep table take target tea that the their them then third this three through to tomato top
touch toward towards towel toy tray turn two under unplug up upright upside use valve vase vertical wall water while
white wine wipe with wooden yellow zero
"""


def small_tokenizer(vocab_size: int = 768) -> tokenizers.Tokenizer:
    """A tokenizer of our own for the `tiny` preset, in LLaMA's form and built from this file alone.

    Common words of robot instructions are one token each, everything else is spelt in letters or, failing that,
    bytes. Ids: unknown, beginning, end, 256 bytes, words, characters; unused ids up to `vocab_size`.
    """
    template = ["▁In", "▁What", "▁action", "▁should", "Out", "▁USER", "▁ASSISTANT"]
    letters = [chr(code) for code in range(33, 127)]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, *template]
    pieces += [f"▁{word}" for word in _WORDS.split() if len(word) > 1] + ["▁a"]
    pieces += [f"<unused_{i}>" for i in range(vocab_size - len(pieces))]
    # a word costs less than its spelling, whatever its length; unused pieces never win
    score = dict.fromkeys(["▁", *letters], -20.0)
    vocabulary = [
        (piece, -1000.0 if piece.startswith("<") and len(piece) > 1 else score.get(piece, -1.0)) for piece in pieces
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


TOKENIZER_SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "processor_class": "PrismaticProcessor",
}
"""`tokenizer_config.json` of a policy whose tokenizer is ours."""
