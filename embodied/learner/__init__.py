"""The gradient side, shared by both workloads."""
