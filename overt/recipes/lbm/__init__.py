"""LBM: an online point tracker with two short memories per point."""
