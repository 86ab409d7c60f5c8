"""Where a model is: in a folder, or on the Hugging Face hub. Refuses at once what is neither.

transformers alone would ask the hub for anything that is no folder, a mistyped path too, again and again for most of a
minute where there is no network.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from embodied.errors import AssetError, suggest
from reasoning.models.packaged import PACKAGED, packaged
from sim_assets.trained import CHECKPOINTS

BUNDLED = "bundled:"  # and the name of a model that ships
_PATIENCE = 5.0  # seconds for the hub's first answer
# of the hub's http client, which has been another library from version to version: what no connection at all raises
_HTTP_ERROR = HfHubHTTPError.__mro__[1]


@dataclasses.dataclass(frozen=True)
class Place:
    """name: for `from_pretrained`. folder: None on the hub. local: nothing is to be fetched."""

    name: str
    folder: Path | None
    local: bool


def locate(source: str) -> Place:
    """Where the model `source` is: `bundled:NAME`, `package:NAME`, a folder or a hub id.

    Raises AssetError when there is no such folder or name, or the hub does not answer and its cache has nothing.
    """
    if source.startswith(BUNDLED):
        return _in(_bundled(source.removeprefix(BUNDLED)))
    if source.startswith(PACKAGED):
        return _in(packaged(source.removeprefix(PACKAGED)))
    path = Path(source).expanduser()
    if source and path.is_dir():
        return _in(path)
    if path.is_file():
        raise AssetError(f"the model {source!r} is a file; give the folder that holds the model's files")
    if _means_a_folder(source):
        raise AssetError(
            f"there is no folder {source!r}. Give a model's folder as written by save_pretrained, bundled:NAME, or a "
            "hub id (OWNER/NAME)."
        )
    return _on_hub(source)


def _in(folder: Path) -> Place:
    if not (folder / "config.json").is_file():
        raise AssetError(
            f"{folder} is not a model's folder: there is no config.json in it. Of a run, the model is "
            "checkpoints/step_N/policy."
        )
    return Place(str(folder), folder, local=True)


def _means_a_folder(source: str) -> bool:
    """Whether a name that is no folder can be no hub id either. OWNER/NAME can, also where there is a folder OWNER."""
    if source.startswith(("/", ".", "~")):
        return True
    try:
        validate_repo_id(source)
    except HFValidationError:
        return True
    return False


def _on_hub(name: str) -> Place:
    cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    try:
        HfApi().model_info(name, timeout=_PATIENCE)
    except RepositoryNotFoundError:
        raise AssetError(
            f"there is no folder {name!r} here, and the Hugging Face hub has no model of that name that you may read "
            "(log in for gated ones: hf auth login)"
        ) from None
    except HfHubHTTPError:
        return Place(name, None, local=False)  # it is there, but busy or not to be asked this: fetching tries again
    except (_HTTP_ERROR, OfflineModeIsEnabled, OSError) as error:
        if cached:
            return Place(name, None, local=True)
        raise AssetError(
            f"there is no folder {name!r} here, the Hugging Face hub cannot be reached ({type(error).__name__}), and "
            "its cache has no such model. Give a folder as written by save_pretrained, or run where there is a network."
        ) from None
    return Place(name, None, local=False)


def _bundled(name: str) -> Path:
    """The folder of a model that ships."""
    shipped = sorted(path.parent.name for path in CHECKPOINTS.glob("*/generation_config.json"))
    if name not in shipped:
        raise AssetError(f"no model {name!r} ships. " + suggest(name, shipped, noun="bundled models"))
    return CHECKPOINTS / name
