"""Ranks over NCCL: several processes that share one device draw the tokens of one, in any split of the vocabulary.

NCCL takes processes on one device for one rank twice, unless each says it is another machine (NCCL_HOSTID); they then
talk over sockets, which is slow and right.
"""
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from draws import GPU, Outputs, draw, hidden, rules, same_bits, weights  # skips where there is no device

import numpy as np
import torch

import flashsampling as fs
from nccl import SHARING, load, shards

HERE = Path(__file__).resolve().parent
try:
    load()
    WHY = ""
except OSError as error:
    WHY = "no NCCL, or no transport for it: %s" % error
OVER_NCCL = pytest.mark.skipif(bool(WHY), reason=WHY or "-")


# ---------------------------------------------------------------------------------------- parts, in one process ----


@pytest.mark.parametrize("B", [1, 64, 300])
@pytest.mark.parametrize("floats", [(), ("noisy_logit",), ("log_z", "logprob"), ("max_logit",)],
                         ids=["tokens", "noisy_logit", "log Z", "max"])
@pytest.mark.parametrize("how", ["even", "uneven", "empty"])
def test_parts_merge_to_the_plain_call(how, floats, B):
    V, W, H, asked = 20011, weights(20011, 128), hidden(B, 128), dict(rules(B), logits_mode="processed")
    whole, merged = Outputs(B, floats=floats), Outputs(B, floats=floats)
    GPU.sample(fs.Head(W), H, out=whole.rows, **asked)
    heads = [fs.Head(W[a:b], first_token=a, vocab=V) for a, b in shards(V, 3, how)]
    parts = [GPU.partial(head, H, out=merged.rows, **asked) for head in heads]
    GPU.merge(parts, heads[0], H, out=merged.rows, **asked)
    torch.cuda.synchronize()
    assert same_bits(merged.taken(), whole.taken())


def test_parts_of_different_calls_are_refused_row_by_row():
    W, H = weights(20011, 128), hidden(5, 128)
    heads = [fs.Head(W[a:b], first_token=a, vocab=20011) for a, b in shards(20011, 2)]
    out = Outputs(5)
    parts = [GPU.partial(head, H, out=out.rows, **dict(rules(5), position=torch.full((5,), i, device="cuda")))
             for i, head in enumerate(heads)]
    GPU.merge(parts, heads[0], H, out=out.rows, **rules(5))
    torch.cuda.synchronize()
    got = out.taken()
    assert (got["tokens"] == -1).all() and (got["status"] & int(fs.Row.PEER) != 0).all()


def edits(token, bias):
    """The same edit of five rows."""
    return (torch.arange(6, device="cuda"), torch.full((5,), token, device="cuda", dtype=torch.int32),
            torch.full((5,), bias, device="cuda"))


@pytest.mark.parametrize("lists", [
    lambda i: dict(edits=edits(5, 1.0 + i)), lambda i: dict(edits=edits(5 + i, 1.0)),
    lambda i: dict(mode="score", score_tokens=torch.full((5, 1), i, device="cuda", dtype=torch.int32)),
], ids=["edited by other values", "other tokens edited", "other tokens given"])
def test_parts_with_other_lists_are_refused_row_by_row(lists):
    W, H = weights(20011, 128), hidden(5, 128)
    heads = [fs.Head(W[a:b], first_token=a, vocab=20011) for a, b in shards(20011, 2)]
    for other in (0, 1):
        out = Outputs(5)
        parts = [GPU.partial(head, H, out=out.rows, **rules(5), **lists(other * i)) for i, head in enumerate(heads)]
        GPU.merge(parts, heads[0], H, out=out.rows, **rules(5), **lists(0))
        torch.cuda.synchronize()
        assert (out.taken()["status"] & int(fs.Row.PEER) != 0).all() == bool(other)


def test_a_head_that_is_no_whole_vocabulary_is_refused():
    for about, text in ((dict(first_token=1000, vocab=1000), "head.rows is 0"), (dict(vocab=1001), "head.vocab is 1001")):
        W = weights(1000, 64)
        with pytest.raises(fs.Error, match=text):
            draw(W[1000:] if "first_token" in about else W, hidden(70, 64), rules(70), about)


# -------------------------------------------------------------------------------------------------------- ranks ----


def run(count, mode, seconds=240):
    """Starts the ranks; (their outputs, what each saved)."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [subprocess.Popen([sys.executable, HERE / "ranks_worker.py", str(rank), str(count), folder, mode],
                                    env={**os.environ, **SHARING, "NCCL_HOSTID": "rank%d" % rank}, cwd=HERE,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for rank in range(count)]
        try:
            printed = [worker.communicate(timeout=seconds)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        for rank, worker in enumerate(workers):
            assert worker.returncode == 0, "rank %d of %d:\n%s" % (rank, count, printed[rank][-3000:])
        saved = []
        for rank in range(count):
            path = os.path.join(folder, "%d.npz" % rank)
            if os.path.exists(path):
                with np.load(path) as file:
                    saved.append(dict(file))
        return printed, saved


@functools.lru_cache(maxsize=None)
def drawn(count):
    return run(count, "draw")[1]


def same(a, b):
    return np.array_equal(a.view(np.int32), b.view(np.int32))


@OVER_NCCL
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_rank_has_the_same_results(count):
    first, *others = drawn(count)
    assert len(others) == count - 1 and len(first) > 100
    for other in others:
        assert all(same(first[key], other[key]) for key in first if not key.startswith("plain/"))


@OVER_NCCL
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranks_draw_the_tokens_of_one_call(count):
    """Tokens, status, scores, log Z and the largest logit bit for bit. A logprob of stored logits is recovered from the
    score over ranks, and read in a plain call."""
    plain = {key: value for key, value in drawn(1)[0].items() if key.startswith("plain/")}
    found = drawn(count)[0]
    for how in ("even", "uneven", "empty"):
        for key, value in plain.items():
            assert same(found[how + key[len("plain"):]], value), (how, key)


@OVER_NCCL
@pytest.mark.parametrize("count", [1, 2, 4])
def test_groups_over_ranks_have_the_same_log_z(count):
    """Which token is drawn depends on the partition; the mass does not."""
    plain, found = drawn(1)[0], drawn(count)[0]
    for B in (1, 5, 64, 300):
        assert same(found["even/groups/%d/log_z" % B], plain["plain/processed/%d/log_z" % B])
        assert (found["even/groups/%d/tokens" % B] >= 0).all()


@OVER_NCCL
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_captured_call_replays(count):
    run(count, "graph")


@OVER_NCCL
@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_that_was_called_with_another_seed_is_noticed_by_all(count):
    run(count, "differ")


@OVER_NCCL
def test_a_rank_that_is_gone_is_found_out_in_time():
    printed, _ = run(3, "die", 120)
    assert all("survivor" in text and "peer" in text for text in printed[:2])
