#!/usr/bin/env python3
"""Random calls of the shipped library, held against an oracle written from the documents alone.

    python tests/py/oracle_documents.py                                 2,000 calls, what the tests run
    python tests/py/oracle_documents.py --calls 100000                  as many as are named
    python tests/py/oracle_documents.py --seed 1 --first 42 --calls 1   one call again, as a failure says

FLASHSAMPLING_LIBRARY names the library. The oracle is oracle_rules.py and oracle_noise.py; the calls come from
oracle_cases.py. Tokens are compared exactly. Where a dot product depends on the order of additions, the oracle asks the
library for its raw logits (watch_logit), holds them against the documented error, and goes on from them.
"""
import argparse
import os
import sys
import time
from collections import Counter

import numpy as np

import oracle_cases
from oracle_calls import Library, _c
from oracle_rules import BIT, F32, LOG_Z, Oracle

SEED, CALLS = 1, 2_000
REFERENCE_EVERY, REFERENCE_SIZE = 5, 200_000  # the reference backend runs one in so many of the smaller cases
SCREEN_ROWS = "FLASHSAMPLING_SCREEN_ROWS"
FREE = BIT.FALLBACK | BIT.RANK_BOUND | BIT.FAR  # status bits that are looked at by themselves, or not at all
# The largest share of rows with more than one answer, as top-p may be too close to call: 0.005 is usual.
TOP_P_DOUBTS = 0.01


def tolerance(name, value, expected, fast):
    """How far a result may be from the oracle's: a rounding to float, and the documented error of log Z."""
    size = np.abs(np.nan_to_num(value, posinf=0, neginf=0))
    if name == "noisy_logit":  # fast noise has two logarithms in float, which differ between libraries
        return 1.2e-7 * size + (1e-6 if fast else 1e-12)
    if name not in LOG_Z:
        return 0
    largest = abs(np.nan_to_num(expected.max_logit, posinf=0, neginf=0))
    return (1e-6 if largest <= 45_000 else 2e-4) + 2.5e-7 * np.maximum(largest, size)


def equal(name, got, value, expected, fast):
    got, value = np.atleast_1d(got).astype(np.float64), np.atleast_1d(value).astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - value) <= tolerance(name, value, expected, fast)
    return bool((near | (got == value) | np.isnan(got) & np.isnan(value)).all())


def ranks_equal(got, rank, status, exact_rank):
    """Ranks above 256 may be lower bounds where the status says so, unless exact ones were asked for."""
    if not status & BIT.RANK_BOUND:
        return np.array_equal(got, rank)
    bound = (got >= 257) & (got <= rank)
    return not exact_rank and bool((bound | (got == rank)).all() and bound.any())


def row_of(results, case, oracle, b):
    """Row b of flat results."""
    n, top, watched = oracle.samples, case.top_count, oracle.watched(b)
    lengths = {**dict.fromkeys(("tokens", "noisy_logit", "logit", "logprob", "rank"), n),
               **dict.fromkeys(("top_token", "top_logit", "top_logprob"), top)}
    return {name: array[watched] if name.startswith("watch") else
            array[b * lengths.get(name, 1):(b + 1) * lengths.get(name, 1)] for name, array in results.items()}


def differences(case, got, expected, reference):
    """Texts, one for each of a row's results that is not the oracle's."""
    status, wrong = int(got["status"][0]), []
    if reference and expected.far == "yes":
        expected.far = "either"  # the reference backend's log Z has no limit
    far = bool(status & BIT.FAR)
    if (status ^ expected.status) & ~int(FREE) or expected.far != "either" and far != (expected.far == "yes"):
        wrong.append(f"status is {_c.row_text(status)}, not {_c.row_text(expected.status)}, FAR: {expected.far}")
    for name, value in got.items():
        if name == "status" or name in LOG_Z and expected.far == "either":
            continue
        right = getattr(expected, name)
        if not (ranks_equal(value, right, status, case.batch_flags & _c.Flag.EXACT_RANK) if name == "rank"
                else equal(name, value, right, expected, case.noise)):
            wrong.append(f"{name} is {value}, not {right}")
    return wrong


class Suite:
    """Runs cases in its contexts and counts them."""

    def __init__(self, oracle=Oracle, with_reference=True):
        self.oracle, self.count = oracle, Counter()
        # A screen is read whatever the number of rows, and also after calls that it did not decide.
        self.screen_rows = os.environ.get(SCREEN_ROWS)
        os.environ[SCREEN_ROWS] = "1000"
        self.libraries = [Library("cpu"), Library("cpu", threads=2, block=128)]
        self.reference = Library("reference") if with_reference else None

    def logits(self, library, case, oracle):
        """The raw logits of a case [B, V] without masks, as a backend has them; a text where they are wrong."""
        dots, error = oracle_cases.dots(case)
        if case.exact:
            return oracle.transform(dots), ""
        error = np.where(np.isfinite(dots), error, 0)
        low, high = (oracle.transform(np.nextafter((dots + sign * error).astype(F32), F32(sign * np.inf)))
                     for sign in (-1, 1))
        low, high = np.minimum(low, high), np.maximum(low, high)
        capped = 1e-5 * abs(case.post_scale or 1) * max(1, case.softcap) if case.softcap else 0
        plain = oracle_cases.watch_all(case, oracle.ids)
        out = library.sample(plain)
        x = out.results["watch_logit"].reshape(case.rows, -1)
        low, high = low[:, :x.shape[1]], high[:, :x.shape[1]]
        missing = ~np.isfinite(low) & ((low == high) | np.isnan(low)) | np.isnan(high)
        x = np.where(missing, low, x)
        far = ~missing & ~((x >= low - capped) & (x <= high + capped))
        if out.status or far.any():
            at = tuple(np.argwhere(far)[0]) if far.any() else (0, 0)
            return x, f"{out.text} raw logit {at} (row, place) is {x[at]}, not in {low[at]} .. {high[at]}"
        return x, ""

    def compare(self, case, out, oracle, x, reference):
        """Says which row of a call is wrong, and how; "" if none is."""
        if out.status or out.text:
            return f"status {out.status}: {out.text}"
        for b in range(case.rows):
            with np.errstate(all="ignore"):
                allowed = oracle.row(b, x[b])
            self.count["rows"] += 1
            self.count["rows with more than one answer"] += len(allowed) > 1
            got = row_of(out.results, case, oracle, b)
            wrong = [differences(case, got, expected, reference) for expected in allowed]
            if all(wrong):
                return f"row {b}: " + "; ".join(wrong[0])
        return ""

    def case(self, seed, number):
        """Runs a case; "" or what is wrong with it."""
        with np.errstate(all="ignore"):
            case = oracle_cases.make(seed, number)
            oracle = self.oracle(case)
        runs = [self.libraries[number % 4 == 3]]
        size = case.data.size if case.kind else case.rows * case.data.size
        if self.reference and number % REFERENCE_EVERY == 0 and size < REFERENCE_SIZE:
            runs.append(self.reference)
        for library in runs:
            with np.errstate(all="ignore"):
                x, wrong = self.logits(library, case, oracle)
            out = library.sample(case)
            wrong = wrong or self.compare(case, out, oracle, x, library is self.reference)
            self.count["calls"] += 1
            if case.screen and not wrong:
                self.count["calls with a screen"] += 1
                wrong = self.screened(library, case, out)
            if wrong:
                return ("reference: " if library is self.reference else "") + wrong
        return ""

    def screened(self, library, case, plain):
        """The same call with a screen: the same bytes."""
        out = library.sample(case, library.screen(case, case.screen))
        self.count["rows decided by a screen"] += out.screened
        if out.status or out.text:
            return f"screen of {case.screen} bits: status {out.status}: {out.text}"
        for name, array in out.results.items():
            other = plain.results[name]
            if name == "status":
                array, other = array & ~int(BIT.FALLBACK), other & ~int(BIT.FALLBACK)
            if array.tobytes() != other.tobytes():
                i = np.flatnonzero(array.view(np.uint8) != other.view(np.uint8))[0] // array.itemsize
                return f"screen of {case.screen} bits: {name}[{i}] is {array[i]}, without it {other[i]}"
        return ""

    def too_many_doubts(self):
        """In a run that is long enough to tell."""
        rows = self.count["rows"]
        return rows > 5_000 and self.count["rows with more than one answer"] > TOP_P_DOUBTS * rows

    def close(self):
        for library in (*self.libraries, *([self.reference] if self.reference else [])):
            library.close()
        os.environ.pop(SCREEN_ROWS)
        if self.screen_rows is not None:
            os.environ[SCREEN_ROWS] = self.screen_rows


def run(seed, first, calls, say=print, most=10):
    """Runs cases and says what is wrong; how many were."""
    suite, wrong, start = Suite(), 0, time.monotonic()
    said = start
    for number in range(first, first + calls):
        text = suite.case(seed, number)
        if text:
            wrong += 1
            say(f"{text}\n    again: python tests/py/oracle_documents.py --seed {seed} --first {number} --calls 1")
            if wrong == most:
                break
        if time.monotonic() - said > 30:
            said = time.monotonic()
            say(f"{number - first + 1} of {calls} cases, {wrong} wrong, {said - start:.0f} s")
    if suite.too_many_doubts():
        wrong += 1
        say(f"more than {TOP_P_DOUBTS:.1%} of rows have more than one answer")
    say(f"{number - first + 1} cases, {wrong} wrong, {time.monotonic() - start:.1f} s: "
        + ", ".join(f"{value} {name}" for name, value in suite.count.items()))
    suite.close()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--calls", type=int, default=CALLS)
    arguments = parser.parse_args()
    sys.exit(run(arguments.seed, arguments.first, arguments.calls, lambda text: print(text, flush=True)) > 0)


if __name__ == "__main__":
    main()
