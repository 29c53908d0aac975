"""The training of benchmarks/peers.py as a recipe of overt."""
