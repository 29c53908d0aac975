"""overt/tools/doctor/report.py: findings of all processes in one table."""

from overt.errors import DataError
from overt.tools.doctor.report import Check, Level, attempt, fail, merged, ok, table, warn


def test_the_worst_process_is_named() -> None:
    labels = ["rank 0 on a", "rank 1 on b", "rank 2 on b"]
    well, ill = ok("GPUs", "8 visible"), warn("GPUs", "7 visible", "look at it")
    (check,) = merged([[well], [ill], [well]], labels)
    assert check.level is Level.WARN
    assert check.finding == "7 visible (rank 1 on b)"
    assert merged([[well], [well], [well]], labels) == [well]
    other = ok("GPUs", "of another kind")
    assert merged([[well], [other], [well]], labels) == [well]


def test_a_check_that_breaks_off_is_a_failure() -> None:
    def breaks() -> Check:
        raise DataError("nothing there; look elsewhere")

    check = attempt("data", breaks, "mend it")
    assert (check.level, check.finding) == (Level.FAIL, "nothing there; look elsewhere")


def test_the_table_shows_the_remedy_below() -> None:
    text = table([ok("one", "fine"), fail("another", "bad " * 40, "do this")])
    assert text.splitlines()[0] == "OK    one      fine"
    assert text.splitlines()[-1].strip() == "-> do this"
    assert max(map(len, text.splitlines())) <= 100
