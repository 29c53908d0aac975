"""A recipe outside overt, as a user would write one; trained hundreds of times by the tests."""
