"""Ranks over NCCL: several processes that share one device draw the tokens of one, in any split of the vocabulary.

NCCL takes processes on one device for one rank twice, unless each says it is another machine (NCCL_HOSTID); they then talk over
sockets, which is slow and right.
"""
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import draws  # noqa: F401  skips where there is no device
import numpy as np

from nccl import SHARING, load

HERE = Path(__file__).resolve().parent
try:
    load()
except OSError as error:
    pytest.skip("no NCCL, or no transport for it: %s" % error, allow_module_level=True)


def run(count, mode, seconds=240):
    """Starts the ranks; (their outputs, what each saved)."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [subprocess.Popen([sys.executable, HERE / "ranks_worker.py", str(rank), str(count), folder, mode],
                                    env={**os.environ, **SHARING, "NCCL_HOSTID": "rank%d" % rank}, cwd=HERE,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(count)]
        try:
            said = [worker.communicate(timeout=seconds)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        for rank, worker in enumerate(workers):
            assert worker.returncode == 0, "rank %d of %d:\n%s" % (rank, count, said[rank][-3000:])
        saved = []
        for rank in range(count):
            path = os.path.join(folder, "%d.npz" % rank)
            if os.path.exists(path):
                with np.load(path) as file:
                    saved.append(dict(file))
        return said, saved


@functools.lru_cache(maxsize=None)
def drawn(count):
    return run(count, "draw")[1]


def same(a, b):
    return np.array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_rank_has_the_same_results(count):
    first, *others = drawn(count)
    assert len(others) == count - 1 and len(first) > 100
    for other in others:
        assert all(same(first[key], other[key]) for key in first if not key.startswith("plain/"))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranks_draw_the_tokens_of_one_call(count):
    """Tokens, status, scores, log Z and the largest logit bit for bit. A logprob of stored logits is recovered from the score over
    ranks, and read in a plain call."""
    plain = {key: value for key, value in drawn(1)[0].items() if key.startswith("plain/")}
    found = drawn(count)[0]
    for how in ("even", "uneven", "empty"):
        for key, value in plain.items():
            assert same(found[how + key[len("plain"):]], value), (how, key)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_groups_over_ranks_have_the_same_log_z(count):
    """Which token is drawn depends on the partition; the mass does not."""
    plain, found = drawn(1)[0], drawn(count)[0]
    for B in (1, 5, 64, 300):
        assert same(found["even/groups/%d/log_z" % B], plain["plain/processed/%d/log_z" % B])
        assert (found["even/groups/%d/tokens" % B] >= 0).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_captured_call_replays(count):
    run(count, "graph")


@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_that_was_called_with_another_seed_is_noticed_by_all(count):
    run(count, "differ")


def test_a_rank_that_is_gone_is_found_out_in_time():
    said, _ = run(3, "die", 120)
    assert all("survivor" in text and "peer" in text for text in said[:2])
