"""Agents of reinforcement learning on `workbench.launch`, which the wheel does not contain."""
