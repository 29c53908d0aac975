"""overt/run/time_left.py: the time that is left, by the recent speed alone."""

import math

from overt.run.time_left import time_left


def test_only_recent_readings_count() -> None:
    left = time_left(10, [0.01] * 50 + [2.0] * 5)
    assert (left.seconds, left.varies) == (20.0, False)


def test_a_speed_that_varies_says_so() -> None:
    left = time_left(100, [1.0, 1.0, 1.0, 1.0, 4.0])
    assert (left.seconds, left.fastest, left.slowest, left.varies) == (160.0, 100.0, 400.0, True)
    assert not time_left(5, [1.0, 4.0]).varies  # of 20 seconds nobody needs to know more


def test_nothing_is_known_before_the_first_reading() -> None:
    left = time_left(10, [math.nan, math.inf])
    assert math.isnan(left.seconds)
    assert not left.varies
    assert time_left(-5, [1.0]).seconds == 0.0
