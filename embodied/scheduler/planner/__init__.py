"""The planner: from measured costs of stages to where, when and in which pieces they run.

It knows stages by their costs alone; nothing of what they compute.
"""
