"""A recipe outside overt: learn to tell circles, squares and triangles apart."""
