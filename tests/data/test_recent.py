"""overt/data/recent.py: the last values are kept, the others dropped, none sent elsewhere."""

import pickle

from overt.data.recent import Recent


def test_the_least_recently_used_value_is_dropped() -> None:
    dropped: list[str] = []
    recent: Recent[int, str] = Recent(2, dropped.append)
    made: list[int] = []

    def get(key: int) -> str:
        return recent.get(key, lambda: made.append(key) or f"value {key}")

    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [f"value {k}" for k in (1, 2, 1, 3, 1, 2)]
    assert made == [1, 2, 3, 2]
    assert dropped == ["value 2", "value 3"]
    recent.clear()
    assert dropped == ["value 2", "value 3", "value 1", "value 2"]


def test_a_copy_starts_empty() -> None:
    recent: Recent[int, bytes] = Recent(2)
    recent.get(1, lambda: b"long" * 1000)
    copy = pickle.loads(pickle.dumps(recent))
    assert copy.get(1, lambda: b"new") == b"new"
    assert len(pickle.dumps(recent)) < 300
