"""H-JEPA and I-JEPA: self-supervised image encoders that predict features of masked patches."""
