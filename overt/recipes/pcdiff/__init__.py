"""PCDiff: point-cloud diffusion that completes a skull with an implant."""
