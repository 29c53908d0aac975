"""Calls of the original systems, over the same engine."""
