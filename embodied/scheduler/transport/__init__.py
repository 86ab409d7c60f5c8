"""How bytes move between workers: records and their wire form, links, and the choice among transports.

`choose` names the transport for two locations; the module of that name makes the link's two ends. Nothing here knows
of flows, rounds or what the records mean.
"""

from embodied.scheduler.transport.link import Ends, Incoming, LinkStats, Location, Outgoing, PeerDied, Transport, choose
from embodied.scheduler.transport.records import Codec, NotARecord, record

__all__ = [
    "Codec",
    "Ends",
    "Incoming",
    "LinkStats",
    "Location",
    "NotARecord",
    "Outgoing",
    "PeerDied",
    "Transport",
    "choose",
    "record",
]
