"""A fixture of the tests of launching."""

import signal

import pytest


@pytest.fixture
def restored_signals() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
