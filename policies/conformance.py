"""The conformance suite of the policy contract: run it on a policy of your own before you train with it.

    policies.check(policy, observation)

Every rule it enforces is one that training relies on: that evaluating what was drawn gives the log-probability it was
drawn with, that a row's draw does not depend on its neighbours, that a saved policy is the same function.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from embodied.errors import EmbodiedError
from embodied.random import RowNoise
from policies import registry
from policies.api import Observed, Policy, PolicyOutput, Sampling

# float32 forward passes of different batch sizes may differ in the last bits
_TOLERANCE = 1e-4


class PolicyContractError(EmbodiedError):
    """A policy breaks a rule of the contract; the message names it."""


class _NoNoise:
    def uniform(self, *shape: int) -> torch.Tensor:
        raise PolicyContractError(f"greedy decoding drew uniform noise {shape}; the mode needs none")

    normal = uniform


def check(policy: Policy, observation: Observed) -> None:
    """Raise PolicyContractError naming the first rule that `policy` breaks on a batch of at least two observations.

    The policy's mode (training or not) is left as it was; its gradients are cleared.
    """
    training = policy.training
    try:
        _check(policy, observation)
    finally:
        policy.train(training)


def _check(policy: Policy, observation: Observed) -> None:
    rows = len(observation.state)
    if rows < 2:
        raise PolicyContractError(f"check needs an observation of at least two rows, got {rows}")
    policy.eval()
    inputs = policy.prepare(observation)
    _require(
        list(inputs.batch_size) == [rows], f"prepare gives batch size {list(inputs.batch_size)}, expected [{rows}]"
    )
    again = policy.prepare(observation)
    for key in inputs.keys(include_nested=True, leaves_only=True):
        _require(torch.equal(inputs[key], again[key]), f"prepare is not deterministic: {key} differs between two calls")
        _require(not inputs[key].requires_grad, f"prepare's {key} carries a gradient")
    limited = Sampling(top_k=5, top_p=0.9)
    for sampling in (Sampling(), Sampling(temperature=0.6), limited, Sampling(decode="greedy")):
        _check_sampling(policy, inputs, sampling, rows)
    _check_gradients(policy, inputs, rows)
    _check_saving(policy, observation, rows)


def _noise(rows: int, order: np.ndarray | None = None) -> RowNoise:
    streams = np.arange(rows) if order is None else order
    return RowNoise(20_240_917, streams, np.full(rows, 3))


@torch.no_grad()
def _check_sampling(policy: Policy, inputs: object, sampling: Sampling, rows: int) -> None:
    spec, greedy = policy.spec, sampling.decode == "greedy"
    output = policy.act(inputs, sampling, _NoNoise() if greedy else _noise(rows))
    shapes = {
        "actions": (output.actions, (rows, spec.chunk, spec.action_dim)),
        "tokens": (output.tokens, (rows, spec.chunk, spec.tokens_per_action)),
        "logprobs": (output.logprobs, (rows, spec.chunk, spec.tokens_per_action)),
    }
    if spec.values:
        _require(output.value is not None, f"spec.values is {spec.values}, but act gives no value")
        shapes["value"] = (output.value, (rows, spec.values))
    for name, (tensor, expected) in shapes.items():
        _require(tuple(tensor.shape) == expected, f"act's {name} has shape {tuple(tensor.shape)}, expected {expected}")
        _require(bool(torch.isfinite(tensor.float()).all()), f"act's {name} is not finite everywhere")
    _require(output.actions.dtype == torch.float32, f"act's actions are {output.actions.dtype}, expected float32")
    _same(policy.act(inputs, sampling, _NoNoise() if greedy else _noise(rows)), output, "act with equal noise")
    for mode in (policy.eval, policy.train):
        mode()
        evaluation = policy.evaluate(inputs, output.tokens, sampling)
        gap = (evaluation.logprobs - output.logprobs).abs().max().item()
        _require(
            gap <= _TOLERANCE,
            f"evaluate's log-probabilities differ from act's by {gap:.2g} ({sampling.decode}, temperature "
            f"{sampling.temperature}, top_k {sampling.top_k}, top_p {sampling.top_p}, "
            f"{'train' if policy.training else 'eval'} mode); the ratio must be 1",
        )
        _require(
            evaluation.entropy.shape == output.logprobs.shape,
            f"evaluate's entropy has shape {tuple(evaluation.entropy.shape)}, expected {tuple(output.logprobs.shape)}",
        )
    policy.eval()
    order = np.arange(rows)[::-1].copy()
    index = torch.from_numpy(order)
    turned = policy.act(inputs[index], sampling, _NoNoise() if greedy else _noise(rows, order))
    gap = (turned.actions - output.actions[index]).abs().max().item()
    _require(gap <= _TOLERANCE, f"a row's action changes by {gap:.2g} when the batch is reordered")
    if spec.values:
        gap = (policy.value(inputs) - output.value).abs().max().item()
        _require(gap <= _TOLERANCE, f"value() differs from act's value by {gap:.2g}")


def _check_gradients(policy: Policy, inputs: object, rows: int) -> None:
    with torch.no_grad():
        output = policy.act(inputs, Sampling(), _noise(rows))
    policy.train()
    policy.zero_grad(set_to_none=True)
    evaluation = policy.evaluate(inputs, output.tokens, Sampling())
    loss = evaluation.logprobs.sum() + evaluation.entropy.sum()
    if evaluation.value is not None:
        loss = loss + evaluation.value.sum()
    loss.backward()
    policy.eval()
    groups = policy.parameter_groups()
    grouped = [id(p) for parameters in groups.values() for p in parameters]
    _require(len(grouped) == len(set(grouped)), "parameter_groups names a parameter twice")
    trainable = {id(p): name for name, p in policy.named_parameters() if p.requires_grad}
    missing = [name for key, name in trainable.items() if key not in set(grouped)]
    _require(not missing, f"parameter_groups leaves out {missing[:3]}")
    without = [name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    _require(not without, f"no gradient reaches {without[:3]}; freeze what is not trained (requires_grad=False)")
    policy.zero_grad(set_to_none=True)


def _check_saving(policy: Policy, observation: Observed, rows: int) -> None:
    json.dumps(policy.metadata())
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        registry.save(policy, Path(folder))
        loaded = registry.load(folder)
        first = policy.act(policy.prepare(observation), Sampling(), _noise(rows))
        second = loaded.act(loaded.prepare(observation), Sampling(), _noise(rows))
    _same(second, first, "the saved and loaded policy's act")


def _same(output: PolicyOutput, expected: PolicyOutput, what: str) -> None:
    for name in ("actions", "tokens", "logprobs"):
        equal = torch.equal(getattr(output, name), getattr(expected, name))
        _require(equal, f"{what} does not give the same {name}")


def _require(holds: bool, broken: str) -> None:
    if not holds:
        raise PolicyContractError(broken)
