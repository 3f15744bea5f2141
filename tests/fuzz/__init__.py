"""Fuzzers of everything that reads text or files of others: `python -m tests.fuzz --seconds 600`."""
