"""What the fused kernel returns beside the token: log Z, logprobs, largest logits; and the group modes that need
masses."""
import numpy as np
import pytest

from draws import CPU, GPU, STREAM, dots, hidden, on_host, rules, weights

import torch

import flashsampling as fs

FIELDS = ("noisy_logit", "logit", "log_z", "logprob", "max_logit")
SENTINEL = -12345.0
ROWS = (1, 3, 8, 17, 48, 64, 96, 128, 160, 192, 256, 300)


def draw(W, H, asked, fields=FIELDS, head=None, logits_mode="raw", context=None):
    """Tensors by name. A sentinel left in place is a row that was not written."""
    B = H.shape[0]
    out = {"tokens": torch.full((B,), -77, device="cuda", dtype=torch.int32),
           "status": torch.full((B,), -77, device="cuda", dtype=torch.int32)}
    for name in fields:
        out[name] = torch.full((B,), SENTINEL, device="cuda")
    (context or GPU).sample(fs.Head(W, **(head or {})), H, out=out, logits_mode=logits_mode, **asked)
    assert all((out[name] != SENTINEL).all() for name in fields)
    return out


def law(W, H, asked, logits, post_scale=1.0):
    """[B, V] logits in float64 of the kind asked."""
    x = dots(W, H) * post_scale
    T = asked["temperature"].double()[:, None]
    return x if logits == "raw" else torch.where(T > 0, x / T.clamp(min=1e-30), x)


def check(W, H, asked, logits, fields=FIELDS, scale=1.0, bound=3e-6):
    got = draw(W, H, asked, fields, dict(post_scale=scale), logits)
    l = law(W, H, asked, logits, scale)
    # The same draw and the same bits, whatever else is asked: calls without largest logits, and for tokens alone, have
    # kernels of their own.
    for less in (tuple(name for name in fields if name != "max_logit"), ("noisy_logit", "logit"), ()):
        other = draw(W, H, asked, less, dict(post_scale=scale), logits)
        assert all(torch.equal(got[name], other[name]) for name in other if name in got)
    own = l.gather(1, got["tokens"].long()[:, None])[:, 0]
    want = {"logit": own, "log_z": l.logsumexp(1), "max_logit": l.max(1).values}
    want["logprob"] = own - want["log_z"]
    for name in set(fields) & set(want):
        size = 1 + want["log_z"].abs() + own.abs()
        error = ((got[name].double() - want[name]).abs() / size).max().item()
        assert error < bound, (name, error)
    return got


@pytest.mark.parametrize("logits", ["raw", "processed"])
@pytest.mark.parametrize("B", ROWS)
def test_log_z_and_logprobs_are_those_of_float64(B, logits):
    check(weights(20011, 256), hidden(B, 256), rules(B), logits)


@pytest.mark.parametrize("fields", [("log_z",), ("logprob",), ("max_logit",), ("max_logit", "log_z")])
@pytest.mark.parametrize("B", [3, 64, 256])
def test_each_alone(B, fields):
    check(weights(20011, 256), hidden(B, 256), rules(B), "processed", fields)


@pytest.mark.parametrize("V", [1, 15, 16, 17, 63, 100, 127, 128, 129, 1000, 16897])
@pytest.mark.parametrize("B", [3, 160])
def test_every_tail_of_the_vocabulary(V, B):
    check(weights(V, 64), hidden(B, 64), rules(B), "raw")


@pytest.mark.parametrize("scale", [0.01, 30.0, 200.0])
@pytest.mark.parametrize("logits", ["raw", "processed"])
def test_flat_and_steep_rows(scale, logits):
    """With a scale of 200 and cold rows logits lie thousands apart: sums do not fit the exponent they were given and go
    to memory."""
    asked = rules(64)
    asked["temperature"][::3] = 0.01
    check(weights(20011, 128), hidden(64, 128), asked, logits, scale=scale, bound=1e-5)


@pytest.mark.parametrize("level", [-300.0, 300.0])
def test_rows_far_from_zero(level):
    W, H, asked = weights(20011, 128), hidden(17, 128), rules(17)
    bias = torch.full((20011,), level, device="cuda")
    got = draw(W, H, asked, head=dict(bias=bias), logits_mode="raw")
    want = (dots(W, H) + level).logsumexp(1)
    assert ((got["log_z"].double() - want).abs() < 1e-4).all()


@pytest.mark.parametrize("level", [-80.0, 80.0])
def test_log_z_beyond_its_reach_says_so_and_groups_do_without(level):
    """At T = 1e-4 l is about 800,000."""
    W, H, asked = weights(5003, 128), hidden(17, 128), rules(17, greedy_every=0)
    asked["temperature"] = torch.full((17,), 1e-4, device="cuda")
    head = dict(bias=torch.full((5003,), level, device="cuda"))
    plain = draw(W, H, asked, ("noisy_logit",), head, "processed")
    assert (plain["status"] == 0).all()
    for more in (dict(), dict(mode="group_parallel", group_size=1280), dict(mode="group_online", group_size=1280)):
        got = draw(W, H, dict(asked, **more), FIELDS, head, "processed")
        assert torch.equal(got["tokens"], plain["tokens"]) and (got["status"] == int(fs.Row.FAR)).all()
        assert torch.isnan(got["log_z"]).all() and torch.isnan(got["logprob"]).all()


def test_rows_without_a_token_have_no_log_z():
    asked = rules(64)
    asked["slot"] = torch.arange(64, device="cuda", dtype=torch.int32)
    asked["slot"][::7] = -1
    got = draw(weights(20011, 128), hidden(64, 128), asked)
    absent = asked["slot"] < 0
    for name in FIELDS:
        assert torch.isnan(got[name][absent]).all() and torch.isfinite(got[name][~absent]).all(), name


def test_an_infinite_logit_has_an_infinite_log_z():
    W, H = weights(5003, 128).clone(), hidden(9, 128).abs() + 0.25
    W[4000] = float("inf")
    got = draw(W, H, dict(rules(9, greedy_every=0)))
    assert (got["tokens"] == 4000).all() and torch.isinf(got["log_z"]).all() and torch.isnan(got["logprob"]).all()
    assert torch.isinf(got["max_logit"]).all()


@pytest.mark.parametrize("logits", ["raw", "processed"])
def test_a_row_does_not_see_its_batch(logits):
    """Bit for bit, log Z too."""
    W, H, asked = weights(40007, 512, grid=False), hidden(256, 512, grid=False), rules(256)
    all_rows = draw(W, H, asked, logits_mode=logits)
    for size in (1, 7, 64, 130):
        rows = torch.arange(100, 100 + size, device="cuda")
        few = draw(W, H[rows], {name: v[rows] for name, v in asked.items()}, logits_mode=logits)
        for name, got in few.items():
            assert torch.equal(got.view(torch.int32), all_rows[name][rows].view(torch.int32)), (size, name)


def test_a_graph_with_log_z_replays():
    W, H, asked = weights(40007, 512), hidden(64, 512), rules(64)
    eager = draw(W, H, asked)
    out = {name: torch.zeros_like(value) for name, value in eager.items()}
    head = fs.Head(W)
    batch = fs.Batch(head, H, **asked)
    result = fs.Result.into(batch, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        GPU.sample(head, batch, out=result)
    for _ in range(5):
        for value in out.values():
            value.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out[name].view(torch.int32), eager[name].view(torch.int32)) for name in out)


# ------------------------------------------------------------------------------------------------------ groups ----


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [128, 1280, 4096, 20096])
@pytest.mark.parametrize("B", [3, 64, 256])
def test_group_modes_draw_what_the_cpu_draws(B, size, mode):
    W, H, asked = weights(20011, 256), hidden(B, 256), rules(B)
    got = draw(W, H, dict(asked, mode=mode, group_size=size), logits_mode="processed")
    logits = dots(W, H).float().cpu().numpy()
    want = CPU.sample(fs.Head(logits=logits), mode=mode, group_size=size, outputs=("log_z", "noisy_logit"),
                      logits_mode="processed", **on_host(asked))
    differ = int((got["tokens"].cpu().numpy() != want.tokens[:, 0]).sum())
    assert differ <= 1  # log masses agree to 1e-6: two groups may be that near
    assert np.allclose(got["log_z"].cpu().numpy(), want.log_z, atol=1e-5)
    assert (got["status"].cpu().numpy() == 0).all()


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
def test_groups_of_a_shard_and_group_draws_do_not_see_their_batch(mode):
    W, H, asked = weights(20011, 256), hidden(200, 256), rules(200)
    more = dict(mode=mode, group_size=1280)
    head = dict(first_token=3000, vocab=23011)
    whole = draw(W, H, dict(asked, **more), ("noisy_logit",), head)
    few = draw(W, H[:5], dict({name: v[:5] for name, v in asked.items()}, **more), ("noisy_logit",), head)
    assert torch.equal(whole["tokens"][:5], few["tokens"])
    assert (whole["tokens"] >= 3000).all()


def test_group_draws_follow_the_softmax():
    """131,072 draws of 256 tokens, chi-squared, false alarm once in a million; an error of 7 % in each of half the
    cells is seen."""
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    V, B, calls = 1024, 256, 512
    W, H = weights(V, 64), hidden(1, 64).expand(B, 64).contiguous()
    p = torch.softmax(dots(W, H[:1])[0], 0).cpu().numpy()
    for mode in ("group_parallel", "group_online"):
        counts = np.zeros(V)
        for i in range(calls):
            position = torch.arange(B, device="cuda") + i * B
            seed = torch.full((B,), 11, device="cuda", dtype=torch.int64)
            got = draw(W, H, dict(temperature=1.0, seed=seed, position=position, mode=mode, group_size=256), ())
            counts += np.bincount(got["tokens"].cpu().numpy(), minlength=V)
        expected, rare = p * counts.sum(), p * counts.sum() < 10
        seen = np.append(counts[~rare], counts[rare].sum())
        want = np.append(expected[~rare], expected[rare].sum())
        assert stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue > 1e-6, mode
