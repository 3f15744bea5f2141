"""Searches shardings, meshes and machines: Shardy plans the candidates, and compilers decide between them."""
