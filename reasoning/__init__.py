"""Reasoning: language models that answer problems with checkable answers, trained with reinforcement learning.

Importing this package is cheap: nothing heavy (torch, transformers, sympy) is loaded until it is used.
"""
