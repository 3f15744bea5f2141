"""The modules of a Flower app, the same in the workbench's engine and in exported projects.

They import flwr, jax, numpy and each other, nothing of the workbench: a client's machine needs no more.
"""
