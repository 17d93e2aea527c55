"""Numbers that go into the C structures: names of constants, and scalars within their limits.

Where the library's 0 is its default and Python's 0 is a value, the value is spelled as the header says, or refused.
"""
from collections.abc import Mapping
from typing import Any

from . import _c
from ._arrays import integer, real


def choice(table: Mapping[str, int], value: Any, what: str) -> int:
    """The number of a name; numbers pass, the library judges them."""
    if isinstance(value, str):
        if value not in table:
            raise ValueError("%s %r: expected one of %s" % (what, value, ", ".join(table)))
        return table[value]
    return integer(value, "i32", what)


# Least and largest of a rule that is one number for all rows. A bad value of an array is its row's own, see Row.
_FLOAT = 3.4028234663852886e38  # the largest float32
_RANGES = {
    "temperature": (0.0, _FLOAT, "0 (greedy) or more"),
    "top_p": (0.0, 1.0 + 1e-5, "from 0 to 1 (off)"),
    "min_p": (0.0, 1.0, "from 0 (off) to 1"),
    "repetition": (1 / _FLOAT, _FLOAT, "above 0, 1 is off"),
    "frequency": (-_FLOAT, _FLOAT, "that is finite"),
    "presence": (-_FLOAT, _FLOAT, "that is finite"),
}


def number(value: Any, name: str) -> float:
    """A rule that is one number for all rows."""
    found, (least, largest, text) = real(value, name), _RANGES[name]
    if not least <= found <= largest or (name == "temperature" and 0 < found < 1e-45):  # which a float has as 0
        raise ValueError("%s: %g, expected a number %s" % (name, found, text))
    return min(max(found, _c.LEAST), 1.0) if name == "top_p" else found


def factor(value: Any, name: str) -> float:
    """A scale of logits; the library's 0 is its default, 1."""
    found = real(value, name)
    if abs(found) < _c.LEAST:
        raise ValueError("%s: %g, expected a number other than 0" % (name, found))
    return found


def count_of_samples(value: Any) -> int:
    """`samples`; the library's 0 is its default, 1."""
    found = integer(value, "i32", "samples")
    if not 1 <= found <= 1024:
        raise ValueError("samples: %d, expected 1 to 1024" % found)
    return found


def fallback_token_of(value: Any) -> int:
    """The token of rows that have none, as the library takes it."""
    found = integer(value, "i32", "fallback_token")
    if found == _c.FALLBACK_TOKEN_ZERO:
        raise ValueError("fallback_token: %d, expected an integer from %d to %d" % (found, found + 1, 2**31 - 1))
    return found or _c.FALLBACK_TOKEN_ZERO
