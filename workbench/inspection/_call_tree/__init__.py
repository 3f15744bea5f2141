"""The call tree: costs of a program by the user's functions, modules and lines."""
