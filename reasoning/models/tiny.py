"""A language model small enough to be trained on two CPU cores, and its tokenizer; nothing is downloaded.

The architecture is the stock Llama of `transformers` with 1.3 million parameters. The tokenizer has one token a
byte, so that digits are seen one by one, and one for the opening of a box.
"""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TINY = "tiny"  # its name, where a model is asked for
PAD, EOS = "<|pad|>", "<|end|>"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """259 tokens: padding, end, 256 bytes, and `\\boxed{`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("\\boxed{", normalized=False)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
    return wrapped


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The model's sizes."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attention_dropout=0.0,
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """The model with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny_config(tokenizer))
