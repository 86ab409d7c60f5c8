"""Policies that another package provides by an entry point are built, saved, loaded and listed like the ones here."""

import importlib.metadata

import pytest
import torch

import policies
from embodied.commands.main import main
from embodied.config import config
from embodied.errors import ConfigurationError
from envs.api import Observation
from policies import registry
from policies.api import Interface
from policies.mlp import MLPConfig, MLPPolicy

INTERFACE = Interface(state_dim=3, action_dim=2, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)


class own:
    """A module as another package would have it."""

    @config
    class Config(MLPConfig):
        name: str = "own-net"
        hidden: tuple[int, ...] = (8,)

    class build(MLPPolicy):
        kind = "own-net"


@pytest.fixture
def provided(monkeypatch):
    """As if installed packages had these entry points."""

    def install(**values):
        entries = [importlib.metadata.EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in values.items()]
        real = importlib.metadata.entry_points

        def entry_points(**wanted):
            return entries if wanted == {"group": registry.ENTRY_POINTS} else real(**wanted)

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    return install


def test_it_is_built_checked_saved_and_loaded_by_its_name(provided, tmp_path):
    provided(**{"own-net": "test_policies_of_other_packages:own"})
    policy = policies.build("own-net", INTERFACE, seed=1)
    policies.check(policy, Observation(torch.randn(3, 3), torch.zeros(3, dtype=torch.int64), [""] * 3))
    policies.save(policy, tmp_path)
    assert type(policies.load(tmp_path)).__name__ == "build"
    with pytest.raises(ConfigurationError, match="hiden"):
        policies.build("own-net", INTERFACE, hiden=(3,))
    with pytest.raises(ConfigurationError, match="chunk is 0"):
        policies.build("own-net", INTERFACE, chunk=0)


def test_it_is_listed_and_a_name_of_ours_stays_ours(provided, capsys):
    provided(**{"own-net": "test_policies_of_other_packages:own", "mlp": "test_policies_of_other_packages:own"})
    assert registry.kinds() == ["mlp", "cnn", "openvla", "openvla_oft", "own-net"]
    assert policies.build("mlp", INTERFACE).kind == "mlp"
    assert main(["policies"]) == 0
    assert "of other packages: own-net\n" in capsys.readouterr().out
    assert main(["policies", "own-net"]) == 2
    assert "another package's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module_at_all", "No module named"),
        ("test_policies_of_other_packages:absent", "no attribute 'absent'"),
        ("policies.names", "has no Config and no build"),
    ],
)
def test_one_that_cannot_be_used_is_refused_with_where_it_should_come_from(provided, value, words):
    provided(broken=value)
    with pytest.raises(ConfigurationError, match=words) as refused:
        policies.build("broken", INTERFACE)
    assert value in str(refused.value)
