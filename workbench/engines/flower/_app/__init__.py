"""The modules of a Flower app, identical in the workbench's engine and in exported projects.

The modules import only flwr, jax, numpy and each other, so a client's machine does not need the workbench.
"""
