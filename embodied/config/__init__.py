"""Configuration: strict typed records, composed by Hydra, refused with a reason before anything starts."""

from embodied.config.strict import config, parse

__all__ = ["config", "parse"]
