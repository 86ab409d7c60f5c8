"""How much memory a policy needs to act and to learn, found by running it without memory.

The policy is built and run for real on tensors that have a shape but no content, while every storage that comes and
goes is counted, so the peak includes weights, gradients, optimiser state, activations, caches and temporaries of the
very code that will run. What an allocator adds (fragmentation, libraries' workspaces) is not included.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from tensordict import TensorDict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from policies.api import Interface, Policy, Sampling
from policies.vla.bundle import Bundle
from policies.vla.network import OpenVLAModel
from policies.vla.options import VLAConfig
from policies.vla.policy import VLAPolicy

_PROMPT_TOKENS = 40  # the longest LIBERO instruction has 38


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations have made and that still live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._track(value.untyped_storage())
        return result

    def _track(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class NoNoise:
    """The same draw everywhere, for `batch` rows."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.full((self._batch, *shape), 0.5)

    normal = uniform


@contextmanager
def _without_content() -> Iterator[LiveBytes]:
    with FakeTensorMode(allow_non_fake_inputs=True), LiveBytes() as live:
        yield live


def without_memory(policy_class: type[VLAPolicy], options: VLAConfig, interface: Interface) -> VLAPolicy:
    """A policy of fresh weights that have shapes but no memory, adapters attached."""
    bundle = Bundle.preset(options.preset, options.sizes)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, options.precision))
    try:
        with torch.device("meta"):
            model = OpenVLAModel(bundle.architecture)
    finally:
        torch.set_default_dtype(before)
    with torch.device("meta"):
        policy = policy_class(options, interface, bundle, model)
        policy.attach_adapters()
    return policy


def _inputs(policy: VLAPolicy, batch: int) -> TensorDict:
    size, views = policy.pictures.size, policy.views
    fields = {
        "pixels": torch.empty(batch, views, size, size, 3, dtype=torch.uint8),
        "input_ids": torch.zeros(batch, _PROMPT_TOKENS, dtype=torch.int64),
        "prompt_mask": torch.ones(batch, _PROMPT_TOKENS, dtype=torch.bool),
        "proprio": torch.empty(batch, policy.interface.state_dim),
    }
    if policy.privileged_critic:
        fields["privileged"] = torch.empty(batch, policy.interface.privileged_dim)
    # how much of the padding a batch can drop depends on content: here, none of it
    policy.prompt = lambda inputs: (inputs["input_ids"], inputs["prompt_mask"])
    return TensorDict(fields, batch_size=[batch])


def act_once(policy: VLAPolicy, batch: int) -> None:
    """One call of `act` on empty inputs."""
    decode: Literal["sample", "greedy"] = "greedy" if getattr(policy.options, "head", "tokens") == "l1" else "sample"
    with torch.no_grad():
        policy.eval().act(_inputs(policy, batch), Sampling(decode=decode), NoNoise(batch))


def learn_twice(policy: VLAPolicy, batch: int, autocast: torch.dtype | None) -> None:
    """Two policy-gradient steps on empty inputs, see `gradient_steps`."""
    inputs = _inputs(policy, batch)
    shape = (batch, policy.spec.chunk, policy.spec.tokens_per_action)
    gradient_steps(policy, inputs, torch.full(shape, policy.tokens.first, dtype=torch.int64), autocast)


def gradient_steps(policy: Policy, inputs: TensorDict, tokens: torch.Tensor, autocast: torch.dtype | None) -> None:
    """Two policy-gradient steps with AdamW; the second has the optimiser's state in place."""
    policy.train()
    optimiser = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad])
    for _ in range(2):
        with torch.autocast("cpu", autocast) if autocast is not None else nullcontext():
            evaluation = policy.evaluate(inputs, tokens, Sampling())
            loss = evaluation.logprobs.sum() + evaluation.entropy.sum()
            if evaluation.value is not None:
                loss = loss + evaluation.value.sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        del evaluation, loss


def acting(policy_class: type[VLAPolicy], options: VLAConfig, interface: Interface, batch: int) -> int:
    """Peak bytes of `act` on `batch` observations, weights included."""
    policy = without_memory(policy_class, options, interface)
    with _without_content() as live:
        act_once(policy.to_empty(device="cpu"), batch)
        return live.peak


def learning(
    policy_class: type[VLAPolicy],
    options: VLAConfig,
    interface: Interface,
    batch: int,
    autocast: torch.dtype | None = torch.bfloat16,
) -> int:
    """Peak bytes of a policy-gradient step with AdamW on a micro-batch of `batch` decisions.

    autocast: the type matrix products compute in; None leaves them in the weights' type.
    """
    policy = without_memory(policy_class, options, interface)
    with _without_content() as live:
        learn_twice(policy.to_empty(device="cpu"), batch, autocast)
        return live.peak
