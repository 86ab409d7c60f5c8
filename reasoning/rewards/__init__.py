"""Rewards: what an answer is worth, found out in processes that can be killed."""
