"""Every version in which the nodes of a run may differ is compared, and what each must have free."""

import dataclasses

import pytest

from embodied.errors import ConfigurationError
from embodied.scheduler.preflight import DISK_BYTES, SHARED_MEMORY_BYTES, NodeAnswer, NodeFacts, check_nodes

OWN = NodeFacts(
    python="3.12.1",
    torch="2.5.0",
    project="1.0 feed",
    interface="eth0",
    shared_memory=SHARED_MEMORY_BYTES,
    disk=DISK_BYTES,
)


@pytest.mark.parametrize("field", ["python", "torch", "project"])
def test_a_node_with_another_version_is_refused_for_that_alone(field):
    other = dataclasses.replace(OWN, **{field: "0.0.9"})
    with pytest.raises(ConfigurationError) as refusal:
        check_nodes(OWN, {"node0": NodeAnswer(OWN, {}), "node1": NodeAnswer(other, {})})
    (fault,) = str(refusal.value).splitlines()[1:]
    assert fault.strip().startswith(f"node1 runs {field} 0.0.9, this process {getattr(OWN, field)}; ")


def test_the_network_interface_may_be_another():
    check_nodes(OWN, {"node0": NodeAnswer(dataclasses.replace(OWN, interface="ib0"), {})})


def test_a_node_whose_disk_is_full_is_refused():
    full = dataclasses.replace(OWN, disk=3 << 20)
    with pytest.raises(ConfigurationError, match="node1 has 3 MiB of disk free for temporary files, 512 are needed"):
        check_nodes(OWN, {"node0": NodeAnswer(OWN, {}), "node1": NodeAnswer(full, {})})
