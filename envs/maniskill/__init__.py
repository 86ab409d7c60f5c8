"""ManiSkill 3 as a `BatchEnv`: many CPU scenes stepped as one batch in one process, or one stock environment at a time.

Start at `factory.make_batch`. Importing this package is cheap; the simulator is imported when an environment is made.
"""
