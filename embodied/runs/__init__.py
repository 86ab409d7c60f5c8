"""A run on disk and on screen: its folder, metrics, checkpoints and progress; shared by both workloads."""
