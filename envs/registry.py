"""Environments by id: which adapter an id's prefix names, and how a VectorEnv is made of its simulators.

An adapter is a module or object with
- `Config`: its `EnvConfig` record;
- `make_batch(config, num_envs) -> BatchEnv`, importable by name, since worker processes import it;
- optionally `describe(config) -> EnvSpec`, cheaper than making a simulator; `describes_at_once = True` says that it
  starts none that takes long, so that what does not fit is refused before any simulator starts;
- optionally `in_process(config) -> bool`: the simulator batches on an accelerator and belongs in this process.

Packages add their own by an entry point of the group `embodied.envs` whose name is the prefix.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from embodied.config import parse
from embodied.errors import ConfigurationError, suggest
from envs.api import EnvConfig, EnvSpec, VectorEnv
from envs.batch import BatchEnv

ENTRY_POINT_GROUP = "embodied.envs"


@dataclasses.dataclass(frozen=True)
class _Adapter:
    """Where an adapter's parts are; the simulator's module is not imported before a simulator is wanted."""

    config: str  # "module:attribute"
    factory: str  # "module" or "module:attribute"


_BUILT_IN = {
    "gym": _Adapter("envs.gym:GymConfig", "envs.gym"),
    "libero": _Adapter("envs.libero.config:LiberoConfig", "envs.libero.factory"),
    "maniskill": _Adapter("envs.maniskill.config:ManiSkillConfig", "envs.maniskill.factory"),
}


def config_class(env_id: str) -> type[EnvConfig]:
    """The configuration record of the environment's adapter. Raises ConfigurationError for an unknown prefix."""
    adapter = _find(env_id)
    return _load(adapter.config) if isinstance(adapter, _Adapter) else adapter.Config


def describe(config: EnvConfig) -> EnvSpec:
    """What the environment is, made known without starting `num_envs` of it."""
    factory = _factory(config.id)
    if hasattr(factory, "describe"):
        return _with_episode_steps(factory.describe(config), config)
    batch = factory.make_batch(config, 1)
    batch.close()
    return _with_episode_steps(batch.spec, config)


def describe_at_once(config: EnvConfig) -> EnvSpec | None:
    """What the environment is, where its adapter knows without starting a simulator; None where it does not."""
    return describe(config) if getattr(_factory(config.id), "describes_at_once", False) else None


def make(
    config: EnvConfig,
    on_progress: Callable[[int, str, float], None] | None = None,
    around: Callable[[EnvConfig, BatchEnv], BatchEnv] | None = None,
) -> VectorEnv:
    """Start the environments of `config`.

    Args:
        config: record of the adapter that `config.id` names.
        on_progress: called with (process, phase, seconds since the start) while simulator processes start.
        around: puts something around every simulator, in the process where that lives; importable by name.
    """
    from envs.local import LocalVectorEnv
    from envs.pool import PoolVectorEnv
    from envs.slots import check_sizes

    check_sizes(config)
    expected = config_class(config.id)
    if not isinstance(config, expected):
        raise ConfigurationError(
            f"Environment {config.id!r} is configured by {expected.__name__}, but a {type(config).__name__} came."
        )
    factory = _factory(config.id)
    make_batch: Callable[[int], BatchEnv] = functools.partial(factory.make_batch, config)
    if around is not None:
        make_batch = functools.partial(_make_around, factory.make_batch, around, config)
    if config.processes == 0 or in_process(config):
        return LocalVectorEnv(make_batch, config)
    return PoolVectorEnv(make_batch, config, on_progress=on_progress)


def in_process(config: EnvConfig) -> bool:
    """Whether the simulator of `config` batches on an accelerator and so belongs in its worker's process."""
    decides = getattr(_factory(config.id), "in_process", None)
    return decides is not None and bool(decides(config))


def _make_around(
    make_batch: Callable[[EnvConfig, int], BatchEnv],
    around: Callable[[EnvConfig, BatchEnv], BatchEnv],
    config: EnvConfig,
    num_envs: int,
) -> BatchEnv:
    batch = make_batch(config, num_envs)
    try:
        return around(config, batch)
    except BaseException:
        batch.close()
        raise


def make_by_id(id: str, num_envs: int = 8, slots: int = 1, **options: Any) -> VectorEnv:
    """`envs.make("gym/CartPole-v1", num_envs=8, slots=2, processes=0)`: `options` are keys of the adapter's record."""
    return make(parse(config_class(id), {"id": id, "num_envs": num_envs, "slots": slots, **options}))


def with_rendering(config: EnvConfig) -> EnvConfig:
    """The same environment, prepared for `VectorEnv.render`; adapters that prepare pictures only on request have an
    option `rendering` for it."""
    if not any(field.name == "rendering" for field in dataclasses.fields(config)):
        return config
    return dataclasses.replace(config, rendering="on_demand")


def _with_episode_steps(spec: EnvSpec, config: EnvConfig) -> EnvSpec:
    return spec if config.episode_steps is None else dataclasses.replace(spec, episode_steps=config.episode_steps)


def _find(env_id: str) -> Any:
    """The built-in `_Adapter`, or the object that a package provides, for the id's prefix."""
    prefix, slash, name = env_id.partition("/")
    if prefix in _BUILT_IN and slash and name:
        return _BUILT_IN[prefix]
    provided = {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    if prefix in provided and slash and name:
        return _load_provided(provided[prefix])
    known = sorted(f"{p}/..." for p in {*_BUILT_IN, *provided})
    raise ConfigurationError(
        f"Unknown environment {env_id!r}: an id is PREFIX/NAME. {suggest(f'{prefix}/...', known, noun='prefixes')}"
    )


def _load_provided(entry: importlib.metadata.EntryPoint) -> Any:
    try:
        adapter = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"environments '{entry.name}/...' are to come from {entry.value}, but {error}."
        ) from error
    missing = [part for part in ("Config", "make_batch") if not hasattr(adapter, part)]
    if missing:
        raise ConfigurationError(
            f"environments '{entry.name}/...' are to come from {entry.value}, which has no "
            f"{' and no '.join(missing)}; see docs/bring-your-own.md."
        )
    return adapter


def _factory(env_id: str) -> Any:
    adapter = _find(env_id)
    return _load(adapter.factory) if isinstance(adapter, _Adapter) else adapter


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
