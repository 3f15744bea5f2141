"""Independent implementations of what the library counts: none of them imports its counting code."""
