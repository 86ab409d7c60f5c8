"""LIBERO and LIBERO-PRO as a `BatchEnv`: many environments in one process on shared compiled models.

Start at `factory.make_batch`. Importing this package is cheap; the simulator is imported when an environment is made.
"""
