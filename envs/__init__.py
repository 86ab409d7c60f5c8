"""Environments: one contract (`envs.api`) over ManiSkill, LIBERO and gymnasium."""
