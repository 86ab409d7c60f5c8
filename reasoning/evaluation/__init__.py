"""Evaluation: how often a model is right, with counts and intervals, and a page to read its responses."""
