"""H-JEPA by example: train, resume, rates by level, watching, checkpoints, own recipes."""
