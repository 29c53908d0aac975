"""Every verb names a module with a `main`, and says what it does as an imperative."""

from importlib.util import find_spec

import pytest

from overt.verbs import VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_module_and_a_line(verb: str) -> None:
    module, text = VERBS[verb]
    assert find_spec(module) is not None
    assert 10 < len(text) < 70
    assert text[0].islower()
    assert not text.startswith(("a ", "an ", "the "))
