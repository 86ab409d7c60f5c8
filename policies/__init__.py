"""Policies: one contract (`policies.api`) over OpenVLA, OpenVLA-OFT and small networks."""
