"""What the fuzz tests share: few, always the same examples, and ways to spoil a good file."""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from overt.errors import OvertError


def examples(count: int) -> settings:
    """So many examples, the same at every run, however slow the machine is."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def parses_or_refuses(parse: Callable[[], object]) -> bool:
    """True where it parsed, False where it was refused in words; anything else is a bug."""
    try:
        parse()
    except OvertError:
        return False
    return True


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """A good file after an accident: cut off, bytes changed, or something put in between."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("cut", "change", "insert", "remove"))):
            case "cut":
                del data[place:]
            case "change" if data:
                data[place] = draw(st.integers(0, 255))
            case "insert":
                data[place:place] = draw(st.binary(max_size=8))
            case "remove":
                del data[place : place + draw(st.integers(1, 16))]
    return bytes(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
