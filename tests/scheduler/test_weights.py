import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import CorrectnessAlarm
from embodied.scheduler.transport import Codec
from embodied.scheduler.weights import Bucket, buckets, checksum, store, verify


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(30, 20, generator=generator),
        "b.weight": torch.randn(30, 20, generator=generator),
        "half": torch.randn(64, generator=generator).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
    }


def transfer(source, target, rename=lambda name: name):
    """Everything as it goes between processes: buckets, wire form, storing, verifying."""
    codec = Codec(Bucket)
    for bucket in buckets(source.items(), version=3, size=1000):
        bucket = codec.unpack(memoryview(codec.pack(bucket).to_bytes()))
        store(Bucket(bucket.version, {rename(n): t for n, t in bucket.tensors.items()}, None), target)
        if bucket.marks is not None:
            verify(bucket.marks, target, bucket.version)


def test_weights_arrive_to_the_bit_in_several_buckets():
    source = weights()
    target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    assert len(list(buckets(source.items(), 3, size=1000))) > 2
    transfer(source, target)
    assert all(torch.equal(source[name], target[name]) for name in source)


def test_a_deliberate_swap_of_names_is_caught():
    swap = {"a.weight": "b.weight", "b.weight": "a.weight"}
    target = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    with pytest.raises(CorrectnessAlarm, match=r"a\.weight, b\.weight differ"):
        transfer(weights(), target, rename=lambda name: swap.get(name, name))


def test_unknown_names_other_shapes_and_dtypes_and_missing_tensors_are_refused():
    target = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    with pytest.raises(CorrectnessAlarm, match="'extra'"):
        transfer({**weights(), "extra": torch.zeros(1)}, target)
    with pytest.raises(CorrectnessAlarm, match=r"a\.weight is torch\.float32 \[20, 30\]"):
        transfer({**weights(), "a.weight": torch.zeros(20, 30)}, target)
    with pytest.raises(CorrectnessAlarm, match=r"a\.weight is torch\.float64"):
        transfer({**weights(), "a.weight": torch.zeros(30, 20, dtype=torch.float64)}, target)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=40), st.data())
def test_the_checksum_sees_a_changed_and_an_exchanged_entry(numbers, data):
    tensor = torch.tensor(numbers, dtype=torch.int32)
    i, j = (data.draw(st.integers(0, len(numbers) - 1)) for _ in range(2))
    changed = tensor.clone()
    changed[i] ^= 1
    assert checksum(changed) != checksum(tensor)
    exchanged = tensor.clone()
    exchanged[i], exchanged[j] = tensor[j], tensor[i]
    assert (checksum(exchanged) == checksum(tensor)) == bool(tensor[i] == tensor[j])


def test_the_checksum_does_not_depend_on_how_it_is_cut(monkeypatch):
    tensor = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    whole = checksum(tensor)
    monkeypatch.setattr("embodied.scheduler.weights._CHECKSUM_STRIDE", 333)
    assert checksum(tensor) == whole
