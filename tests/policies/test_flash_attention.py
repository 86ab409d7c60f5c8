"""The path through flash-attention's package, with a stand-in of its two functions; the package itself needs CUDA."""

import importlib.util
import sys
import types

import pytest
import torch

import policies.vla.attention
import policies.vla.llama
from embodied.errors import ConfigurationError, CorrectnessAlarm
from policies import openvla, openvla_oft
from policies.api import Interface, Sampling
from policies.vla.attention import attention, bidirectional_plan, causal_plan
from policies.vla.policy import VLAPolicy

GREEDY = Sampling(decode="greedy")
LENGTHS = torch.tensor([6, 9, 3])
INSTRUCTIONS = ("push the cube to the target", "pick up the red cube and move it to the green goal")


def one_sequence(queries, keys, values, causal):
    """[R, H, d], [K, G, d] -> [R, H, d] with the triangle's corner at the last query and the last key."""
    share = queries.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(share, dim=1) for t in (keys, values))
    scores = torch.einsum("rhd,khd->hrk", queries, keys) / queries.shape[-1] ** 0.5
    if causal:
        past = torch.ones(len(queries), len(keys), dtype=torch.bool).tril(len(keys) - len(queries))
        scores = scores.masked_fill(~past, -torch.inf)
    return torch.einsum("hrk,khd->rhd", scores.softmax(-1), values)


def flash_attn_func(q, k, v, causal=False):
    return torch.stack([one_sequence(*row, causal) for row in zip(q, k, v, strict=True)])


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert (cu_seqlens_q.diff().max(), cu_seqlens_k.diff().max()) == (max_seqlen_q, max_seqlen_k)
    parts = []
    for row in range(len(cu_seqlens_q) - 1):
        asks = slice(cu_seqlens_q[row], cu_seqlens_q[row + 1])
        holds = slice(cu_seqlens_k[row], cu_seqlens_k[row + 1])
        parts.append(one_sequence(q[asks], k[holds], v[holds], causal))
    return torch.cat(parts)


@pytest.fixture
def flash(monkeypatch):
    """The stand-in, taken on the CPU too."""
    package = types.ModuleType("flash_attn")
    package.__spec__ = importlib.util.spec_from_loader("flash_attn", loader=None)
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)

    def chosen(kernel, plan, x, rows=None):
        kind = policies.vla.attention._flash if kernel == "flash" else policies.vla.attention._sdpa
        return kind(plan, x, rows)

    monkeypatch.setattr(policies.vla.llama, "attention", chosen)
    return policies.vla.attention._flash


def heads(groups=2, queries=9):
    generator = torch.Generator().manual_seed(1)

    def draw(count, length):
        return torch.randn(3, count, length, 4, generator=generator, dtype=torch.float64)

    return draw(4, queries), draw(groups, 9), draw(groups, 9)


@pytest.mark.parametrize("plan", [causal_plan, bidirectional_plan])
@pytest.mark.parametrize("rows", [None, slice(-2, None)])
@pytest.mark.parametrize("padded", [False, True])
def test_flash_equals_torch_at_every_valid_query(flash, plan, rows, padded):
    x = torch.zeros(3, 9, 16, dtype=torch.float64)
    # padding stands in the middle, as between a prompt and what follows it, so that the last places are valid
    valid = torch.arange(9) >= (9 - LENGTHS)[:, None]
    valid[:, 0] = True
    plan = plan(valid if padded else None)
    queries, keys, values = heads(queries=9 if rows is None else 2)
    found = flash(plan, x, rows)(queries, keys, values)
    expected = attention("sdpa", plan, x, rows)(queries, keys, values)
    seen = valid[:, rows or slice(None)] if padded else torch.ones(expected.shape[:2], dtype=torch.bool)
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-12, rtol=0)


def test_flash_refuses_causal_queries_that_are_not_the_last(flash):
    with pytest.raises(ValueError, match="must be the last"):
        flash(causal_plan(None), torch.zeros(1, 9, 4), slice(2, 5))


def build(kind, **options) -> VLAPolicy:
    torch.set_num_threads(1)
    interface = Interface(
        state_dim=5,
        action_dim=4,
        action_low=(-1.0,) * 4,
        action_high=(1.0,) * 4,
        cameras=1,
        image_height=64,
        image_width=64,
        instructions=INSTRUCTIONS,
    )
    module = {"openvla": openvla, "openvla_oft": openvla_oft}[kind]
    return module.build(module.Config(name=f"{kind}/tiny", chunk=2, value="action", **options), interface, 0)


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
@pytest.mark.parametrize("texts", [INSTRUCTIONS[:1] * 2, INSTRUCTIONS])
def test_policies_act_and_evaluate_the_same_with_either_kernel(flash, kind, texts):
    """Prompts of equal length go through the plain kernel, of unequal length through the packed one."""
    generator = torch.Generator().manual_seed(2)
    shown = types.SimpleNamespace(
        state=torch.zeros(2, 5),
        images=torch.randint(0, 256, (2, 1, 64, 64, 3), generator=generator, dtype=torch.uint8),
        instruction=list(texts),
        privileged=None,
    )
    policy = build(kind)
    inputs = policy.prepare(shown)
    outputs = {}
    for kernel in ("sdpa", "flash"):
        policy.model.language_model.model.kernel = kernel
        with torch.no_grad():
            acted = policy.act(inputs, GREEDY, None)
        evaluated = policy.evaluate(inputs, acted.tokens, Sampling())
        evaluated.logprobs.sum().backward()
        gradient = policy.model.language_model.model.layers[0].self_attn.q_proj.weight.grad.clone()
        policy.zero_grad()
        outputs[kernel] = (acted.tokens, acted.value, evaluated.logprobs, evaluated.value, gradient)
    for a, b in zip(outputs["sdpa"], outputs["flash"], strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_the_probe_runs_again_on_another_device(monkeypatch):
    policy = build("openvla_oft")
    seen = []
    monkeypatch.setattr(type(policy), "require_bidirectional", lambda self: seen.append(self.device.type))
    policy.to(torch.float64)
    assert not seen
    policy.to("meta")
    assert seen == ["meta"]


def test_a_causal_flash_kernel_is_noticed_by_the_probe(flash, monkeypatch):
    policy = build("openvla_oft")
    policy.model.language_model.model.kernel = "flash"
    policy.require_bidirectional()
    monkeypatch.setattr(
        sys.modules["flash_attn"],
        "flash_attn_varlen_func",
        lambda *inputs, causal: flash_attn_varlen_func(*inputs, causal=True),
    )
    with pytest.raises(CorrectnessAlarm, match="bidirectional"):
        policy.require_bidirectional()


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_flash_without_its_package_is_refused_with_what_to_do():
    with pytest.raises(ConfigurationError, match="pip install flash-attn"):
        build("openvla_oft", attention="flash", precision="bfloat16")


def test_a_policy_trained_with_flash_is_loaded_where_there_is_none(flash, tmp_path, monkeypatch):
    policies.save(build("openvla", attention="flash", precision="bfloat16"), tmp_path)
    monkeypatch.setattr(policies.vla.attention, "require_flash", None)
    assert policies.load(tmp_path).options.attention == "sdpa"


def test_flash_in_float32_is_refused(flash):
    with pytest.raises(ConfigurationError, match=r"policy\.precision=bfloat16"):
        build("openvla_oft", attention="flash")


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash-attn is not installed")
@pytest.mark.parametrize("plan", [causal_plan, bidirectional_plan])
def test_the_package_itself_equals_torch(plan):
    valid = torch.arange(9) >= (9 - LENGTHS)[:, None]
    valid[:, 0] = True
    for plan_ in (plan(None), plan(valid.cuda())):
        x = torch.zeros(3, 9, 16, dtype=torch.bfloat16, device="cuda")
        given = [t.repeat(1, 1, 1, 8).to("cuda", torch.bfloat16) for t in heads()]
        found, expected = (attention(kernel, plan_, x)(*given) for kernel in ("flash", "sdpa"))
        seen = valid if plan_.valid is not None else torch.ones_like(valid)
        torch.testing.assert_close(found[seen], expected[seen], atol=2e-2, rtol=2e-2)
