"""Reinforcement learning of language models as a flow of stages: prompts, generation, rewards, updates."""
