"""Everything of a checkpoint folder except its weights: configuration, statistics, tokenizer, processor settings.

Kept as read, so that what is saved is what was loaded plus what training changed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tokenizers

from embodied.errors import CheckpointError
from policies.vla import checkpoint
from policies.vla.architecture import Architecture, NetworkSizes, full_config, tiny_config
from policies.vla.images import preprocessor_settings
from policies.vla.prompt import TOKENIZER_SETTINGS, small_tokenizer
from policies.vla.statistics import Statistics

_SMALL_VOCABULARY = 1088  # 768 text ids, 256 action ids, 64 padding rows
PRESETS = ("tiny", "7b")


@dataclasses.dataclass
class Bundle:
    """config: `config.json` as read. companions: file name -> bytes, carried along untouched."""

    config: dict[str, Any]
    statistics: Statistics
    preprocessor: dict[str, Any]
    tokenizer: tokenizers.Tokenizer
    companions: dict[str, bytes]

    @property
    def architecture(self) -> Architecture:
        """The typed view of `config`."""
        return Architecture.from_config(self.config)

    @classmethod
    def preset(cls, name: str, sizes: NetworkSizes | None = None) -> Bundle:
        """What a preset starts from: no statistics yet, and our small tokenizer. sizes: of `tiny`, if not its own."""
        config = tiny_config(_SMALL_VOCABULARY, sizes) if name == "tiny" else full_config()
        architecture = Architecture.from_config(config)
        return cls(
            config=config,
            statistics={},
            preprocessor=preprocessor_settings(architecture.image_size, architecture.timm_ids),
            tokenizer=small_tokenizer(),
            companions={"tokenizer_config.json": checkpoint.json_bytes(TOKENIZER_SETTINGS)},
        )

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        """Read a folder in the published layout. Raises CheckpointError where it is incomplete."""
        config = checkpoint.read_json(folder, checkpoint.CONFIG)
        companions = {n: (folder / n).read_bytes() for n in checkpoint.COMPANIONS if (folder / n).is_file()}
        return cls(
            config=config,
            # fine-tuned checkpoints keep their dataset's statistics beside the configuration
            statistics={
                **(config.get("norm_stats") or {}),
                **checkpoint.read_optional_json(folder, checkpoint.STATISTICS),
            },
            preprocessor=checkpoint.read_optional_json(folder, checkpoint.PREPROCESSOR),
            tokenizer=_tokenizer(folder / checkpoint.TOKENIZER),
            companions=companions,
        )

    def write(self, folder: Path) -> None:
        """Write all of it into `folder`, statistics both in the configuration and in their own file."""
        checkpoint.write_json({**self.config, "norm_stats": self.statistics}, folder, checkpoint.CONFIG)
        checkpoint.write_json(self.statistics, folder, checkpoint.STATISTICS)
        if self.preprocessor:
            checkpoint.write_json(self.preprocessor, folder, checkpoint.PREPROCESSOR)
        try:
            self.tokenizer.save(str(folder / checkpoint.TOKENIZER))
        except Exception as error:  # the library raises no other class
            raise CheckpointError(
                f"the tokenizer could not be written to {folder}: {error}. Free some space, or choose another folder."
            ) from error
        for name, content in self.companions.items():
            (folder / name).write_bytes(content)


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}; the policy cannot read instructions.")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise CheckpointError(f"{path} is no tokenizer: {error}.") from None
