"""LBM: an online point tracker that keeps what it has seen of each point in two memories."""
