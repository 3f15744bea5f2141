"""Records as pictures, tables and text; sees no JAX."""
