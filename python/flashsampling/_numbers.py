"""Numbers that go into the C structures: names of constants, and scalars within their limits.

Where the library's 0 is its default and Python's 0 is a value, the value is spelled as the header says, or refused.
"""
from collections.abc import Iterable, Mapping
from typing import Any

from . import _c
from ._arrays import integer, real
from ._rules import SLOT_RULES, hint


def choice(table: Mapping[str, int], value: Any, what: str) -> int:
    """The number of a name; numbers pass, the library judges them."""
    if isinstance(value, str):
        if value not in table:
            raise ValueError("%s %r: expected one of %s%s" % (what, value, ", ".join(table), hint(value, table)))
        return table[value]
    return integer(value, "i32", what)


def check_words(found: Iterable[Any], known: Iterable[str], what: str) -> None:
    """Refuses words of a list that are none of those known."""
    known = list(known)
    wrong = sorted({str(word) for word in found}.difference(known))
    if wrong:
        hints = dict.fromkeys(hint(word, known) for word in wrong)
        raise ValueError("%s: %s: expected some of %s%s" % (what, ", ".join(wrong), ", ".join(known), "".join(hints)))


def number(value: Any, name: str) -> float:
    """A rule that is one number for all rows."""
    found, rule = real(value, name), SLOT_RULES[name]
    vanishes = name == "temperature" and 0 < found < 1e-45  # a float32 has it as 0, which is greedy
    if vanishes or not rule.least <= found <= rule.largest:
        raise ValueError("%s: %g, expected a number %s" % (name, found, rule.text))
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
