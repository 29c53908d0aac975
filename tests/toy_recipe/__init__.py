"""A recipe outside overt, as a user would write one; small enough to train hundreds in a test run."""
