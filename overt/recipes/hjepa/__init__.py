"""H-JEPA and I-JEPA: self-supervised images by predicting features of hidden patches."""
