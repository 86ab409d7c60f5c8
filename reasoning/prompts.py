"""From a problem to the tokens a model is given: the tokenizer's own chat template, or a template written here."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Literal

from embodied.config import config
from embodied.errors import ConfigurationError
from reasoning.problems.record import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


@config
class PromptConfig:
    """format: `chat` renders the conversation with the tokenizer's chat template, `template` fills in `template`.
    template: text with `{problem}` where the question goes, other braces doubled; for format `template`.
    system: a first message of the system; for format `chat`. instruction: added below the question, "" adds nothing.
    opening: text that the model's turn begins with, e.g. "<think>\\n"; it is part of the prompt, not of the response.
    """

    format: Literal["chat", "template"] = "chat"
    template: str = "{problem}\n"
    system: str = ""
    instruction: str = ""
    opening: str = ""

    def __post_init__(self) -> None:
        fields = [field[1:] for field in string.Formatter().parse(self.template) if field[1] is not None]
        if fields != [("problem", "", None)]:
            raise ValueError(
                f"template {self.template!r} must have {{problem}} in it once, and no other field (write other braces "
                "twice, as in \\boxed{{}})"
            )
        if self.format == "template" and self.system:
            raise ValueError("system is for format=chat; write it into the template instead")


class Prompter:
    """Renders problems for one tokenizer.

    Raises ConfigurationError when a chat template is asked for and the tokenizer has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: PromptConfig) -> None:
        self.tokenizer = tokenizer
        self.options = options
        if options.format == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "prompt.format=chat, but this tokenizer has no chat template (a base model, perhaps). "
                "Use prompt.format=template with prompt.template='... {problem} ...'."
            )

    def text(self, problem: Problem) -> str:
        """The prompt as text."""
        options = self.options
        question = f"{problem.text}\n{options.instruction}" if options.instruction else problem.text
        if options.format == "template":
            return options.template.format(problem=question) + options.opening
        turns = [{"role": m.role, "content": m.content} for m in problem.messages[:-1]]
        turns.append({"role": problem.messages[-1].role, "content": question})
        if options.system:
            turns.insert(0, {"role": "system", "content": options.system})
        rendered = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return str(rendered) + options.opening

    def tokens(self, problem: Problem) -> tuple[int, ...]:
        """The prompt's token ids."""
        # a chat template writes the special tokens itself
        special = self.options.format == "template"
        return tuple(self.tokenizer.encode(self.text(problem), add_special_tokens=special))
