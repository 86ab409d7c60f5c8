import pytest
import torch
from torch import nn

from embodied.learner.residency import Parking, resident_bytes


def test_parked_state_comes_back_to_the_bit_in_the_same_objects():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 3))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(5, 40)).sum().backward()
    optimizer.step()
    tensors = [*module.parameters(), *(t for entry in optimizer.state.values() for t in entry.values())]
    view = module[0].weight.detach()[3:5]
    before = [t.detach().clone() for t in tensors]
    size = resident_bytes(tensors)
    assert size >= 3 * sum(p.numel() * 4 for p in module.parameters())
    parking = Parking()
    parking.unload(tensors)
    assert resident_bytes(tensors) == 0
    assert parking.occupied
    parking.load()
    assert resident_bytes(tensors) == size
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert torch.equal(view, before[0][3:5])
    module(torch.randn(5, 40)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("piece", [64, 100, 4000])
def test_state_larger_than_a_piece_comes_back_whole(piece, monkeypatch):
    monkeypatch.setattr("embodied.learner.residency._PIECE", piece)
    tensors = [torch.arange(1000.0), torch.arange(7, dtype=torch.int64)]
    before = [t.clone() for t in tensors]
    parking = Parking()
    for _ in range(2):
        parking.unload(tensors)
        parking.load()
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_tensors_that_share_memory_are_parked_once():
    whole = torch.arange(1000.0)
    parking = Parking()
    parking.unload([whole, whole[10:20]])
    parking.load()
    assert torch.equal(whole, torch.arange(1000.0))
    assert resident_bytes([whole, whole[10:20]]) == 4000
