"""Generation: engines that turn requests into a stream of finished responses."""

from reasoning.generation.api import Engine, Finish, Request, Response, Sampling

__all__ = ["Engine", "Finish", "Request", "Response", "Sampling"]
