"""Checkpoints as folders of the Hugging Face Hub: weights, configuration, model card."""
