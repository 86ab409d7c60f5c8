"""Embodied: reinforcement learning for robot policies, planned and executed by one scheduler.

Importing this package is cheap: nothing heavy (torch, simulators, Ray) is loaded until it is used.
"""

__version__ = "0.1.0"
