"""One training run of any workload: its loop, plan, checkpoints and end. What is trained is the workload's affair."""
