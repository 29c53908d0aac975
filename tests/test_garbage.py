"""overt/garbage.py: nothing is collected within, and the switch is put back."""

import gc

import pytest

from overt.garbage import no_collection


def fail_within() -> None:
    with no_collection():
        assert not gc.isenabled()
        raise KeyError


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_switch_is_put_back_after_an_error_too(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError):
            fail_within()
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
