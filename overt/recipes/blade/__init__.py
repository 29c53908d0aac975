"""BLADE: depth of a person, then pose, then the camera, from one picture."""
