"""Draws from stored logits on the device against the CPU backend. The logits are the same floats on both, so tokens
must be equal without a tolerance; only a soft-cap, whose tanh is not the same, may move a near tie."""
import numpy as np
import pytest

from draws import BF16, CPU, F16, GPU, STREAM, Outputs, close, hidden, on_host, rules, same_bits, select, weights

import torch

import flashsampling as fs

F32 = torch.float32
PLAIN = ("noisy_logit", "logit")
FIELDS = ("noisy_logit", "logit", "log_z", "logprob", "max_logit")
ROWS = (1, 2, 3, 8, 17, 64, 256, 300)
TYPES = {"f32": F32, "f16": F16, "bf16": BF16}


def logits(B, V, dtype=F32, scale=2.5, level=0.0):
    """[B, V] normal ones."""
    generator = torch.Generator("cuda").manual_seed(1000 * B + V)
    return (torch.randn(B, V, device="cuda", generator=generator) * scale + level).to(dtype)


def draw(X, asked, head=None, fields=PLAIN, kind="raw", tokens=torch.int32, context=GPU):
    """What the device draws: tensors by name."""
    out = Outputs(X.shape[0], tokens, fields)
    context.sample(fs.Head(logits=X, **(head or {})), out=out.rows, logits_mode=kind, **asked)
    return out.taken()


def check(X, asked, head=None, fields=PLAIN, kind="raw", near=0.0, tokens=torch.int32):
    """Draws on the device and on the CPU. With `near`, one row may draw another token, and logits differ by that."""
    got = on_host(draw(X, asked, head, fields, kind, tokens))
    oracle = fs.Head(logits=X.float().cpu().numpy(), **on_host(head or {}))
    want = CPU.sample(oracle, outputs=fields, logits_mode=kind, on_error="status", **on_host(asked))
    assert (got["status"].view(np.uint32) == want.status).all()
    same = got["tokens"] == want.tokens[:, 0]
    assert same.sum() >= len(same) - (near > 0), np.flatnonzero(~same)
    drawn = want.status & fs.Row.NO_TOKEN == 0
    for name in fields:
        reference = getattr(want, name)
        reference = reference[:, 0] if reference.ndim == 2 else reference
        size = np.maximum(1.0, np.abs(np.where(np.isfinite(reference), reference, 0)))
        bound = {"noisy_logit": 1e-6 * size, "log_z": 1e-5 + 1e-6 * size, "logprob": 1e-5 + 1e-6 * size}.get(name, 0.0)
        right = close(got[name], reference, bound + near * size)
        assert right[same & drawn].all(), (name, got[name][~right], reference[~right])
        assert np.isnan(got[name][~drawn]).all(), name
    return got


# ------------------------------------------------------------------------------------------------------ shapes ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("B", ROWS)
def test_every_number_of_rows(B, dtype):
    check(logits(B, 20011, TYPES[dtype]), rules(B))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("B", ROWS)
def test_a_large_vocabulary(B, dtype):
    check(logits(B, 151936, TYPES[dtype]), rules(B))


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("B", ROWS)
def test_every_field(B, dtype, kind):
    check(logits(B, 20011, TYPES[dtype]), rules(B), fields=FIELDS, kind=kind)


@pytest.mark.parametrize("fields", [("log_z",), ("logprob",), ("max_logit",), ("max_logit", "log_z"),
                                    ("noisy_logit",), ()])
@pytest.mark.parametrize("B", [3, 256])
def test_each_field_alone(B, fields):
    check(logits(B, 20011), rules(B), fields=fields, kind="processed")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("V", [1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 1000, 1535, 1537,
                               3073, 16895, 16897, 33793])
def test_every_tail_of_the_vocabulary(V, dtype):
    """Packed rows of an odd length: every alignment of a row occurs."""
    for fields in (PLAIN, FIELDS):
        check(logits(9, V, TYPES[dtype]), rules(9), fields=fields)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shift", range(9))
def test_rows_with_a_stride_at_any_address(shift, dtype):
    """What lies between the rows is NaN: a read of it shows."""
    B, V = 5, 3001 + 13 * shift
    flat = torch.full((B * (V + 3 * shift) + shift,), float("nan"), device="cuda", dtype=TYPES[dtype])
    X = flat[shift:].view(B, V + 3 * shift)[:, :V]
    X.copy_(logits(B, V))
    for first in (0, 1, 64, 700):
        check(X, rules(B), dict(first_token=first, vocab=first + V - 5), FIELDS)


@pytest.mark.parametrize("B", [3, 64, 300])
def test_tokens_of_64_bits(B):
    assert check(logits(B, 10007), rules(B), tokens=torch.int64)["tokens"].dtype == np.int64


def test_no_rows_is_a_call_that_does_nothing():
    X = logits(1, 1000)
    head, out = fs.Head(logits=fs.Pointer(X.data_ptr(), (0, 1000), "f32", device="cuda")), Outputs(0)
    GPU.sample(head, out=out.rows)
    out.taken()


# ------------------------------------------------------------------------------------------------------- rules ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("B", [3, 64])
@pytest.mark.parametrize("head, near", [
    (dict(softcap=5.0), 2e-6),
    (dict(bias=True), 0.0),
    (dict(scale=0.5, post_scale=1.75), 0.0),
    (dict(scale=-1.0), 0.0),
    (dict(round_to="bf16"), 0.0),
    (dict(round_to="f16"), 0.0),
    (dict(bias=True, round_to="bf16", scale=0.25, softcap=3.0, post_scale=2.0), 2e-6),
    (dict(vocab=9001), 0.0),
], ids=["softcap", "bias", "scales", "negative", "bf16", "f16", "everything", "padding"])
def test_the_life_of_a_logit(head, near, B, dtype):
    V = 10007
    if head.get("bias"):
        head = dict(head, bias=torch.linspace(-3, 3, V, device="cuda"))
    for kind in ("raw", "processed"):
        check(logits(B, V, TYPES[dtype]), rules(B), head, FIELDS, kind, near)


def test_a_head_that_is_all_padding_draws_nothing():
    got = check(logits(3, 1000), rules(3), dict(first_token=700, vocab=600), FIELDS)
    assert (got["status"] == fs.Row.EMPTY).all()


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
def test_rows_share_slots_skip_and_name_bad_ones(fields):
    S = 9
    slot = torch.tensor([3, -1, 8, 0, 9, 3, -5, 2, -1, 1, 7, 2**31 - 1, 4], device="cuda", dtype=torch.int32)
    asked = dict(rules(S), slot=slot, slots=S, position=torch.arange(13, device="cuda"), fallback_token=-7,
                 substream=torch.arange(S, device="cuda", dtype=torch.int32) - 4)
    got = check(logits(13, 10007), asked, fields=fields)
    assert got["status"][[1, 8]].tolist() == [fs.Row.SKIPPED] * 2
    assert got["status"][[4, 6, 11]].tolist() == [fs.Row.BAD_SLOT] * 3
    assert got["tokens"][[1, 4, 6, 8, 11]].tolist() == [-7] * 5


def test_bad_temperatures_are_their_own_rows_matter():
    T = torch.tensor([1.0, -1.0, float("nan"), float("inf"), 1e-39, 0.0, -0.0, 3.0, 0.5], device="cuda")
    got = check(logits(9, 10007), dict(temperature=T, seed=5, position=8), fields=FIELDS)
    assert got["status"].tolist() == [0] + [fs.Row.BAD_TEMPERATURE] * 4 + [0] * 4


@pytest.mark.parametrize("B", [1, 64, 300])
def test_scalars_are_spread_over_rows(B):
    X = logits(1, 20011).expand(B, 20011).contiguous()
    got = check(X, dict(temperature=1.5, seed=42, position=3))
    assert B == 1 or len(set(got["tokens"].tolist())) > B // 4


# ---------------------------------------------------------------------------------------------- ties and extremes ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("B", [3, 256])
def test_equal_logits_go_to_the_lower_token(B, dtype):
    X = torch.zeros(B, 20011, device="cuda", dtype=TYPES[dtype])
    assert (draw(X, dict(temperature=0.0))["tokens"] == 0).all()
    X[:, [19000, 7013, 130, 200]] = 4
    assert draw(X, dict(temperature=0.0))["tokens"].tolist() == [130] * B


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 10.0, 600.0])
@pytest.mark.parametrize("B", [3, 256])
def test_flat_and_steep_rows(B, scale):
    check(logits(B, 20011, scale=scale), rules(B), fields=FIELDS)


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("T", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("level", [-300.0, 300.0])
def test_rows_far_from_zero_and_cold_and_hot_ones(level, T, kind):
    """At T = 0.01 processed logits are around 30,000: near the end of where masses are exact to 1e-6."""
    asked = rules(17)
    asked["temperature"][asked["temperature"] > 0] = T
    check(logits(17, 20011, level=level), asked, fields=FIELDS, kind=kind)


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_nan_logit_is_flagged_and_never_drawn(dtype, fields):
    X = logits(17, 10007, TYPES[dtype])
    X[:, [0, 777, 10006]] = float("nan")
    X[5] = float("nan")
    got = check(X, rules(17), fields=fields)
    assert got["status"][5] == fs.Row.NAN | fs.Row.EMPTY and (np.delete(got["status"], 5) == fs.Row.NAN).all()


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
@pytest.mark.parametrize("B", [3, 64, 200])
def test_the_lowest_infinite_token_wins(B, fields):
    X = logits(B, 10007)
    X[:, [9999, 4242, 5000]] = float("inf")
    got = check(X, rules(B), fields=fields)
    assert (got["tokens"] == 4242).all() and (got["status"] == fs.Row.INF).all()


def test_a_logit_the_temperature_makes_infinite_wins_by_its_id():
    X = logits(6, 10007)
    X[:, 9999], X[:, 4242], X[:, 5000] = 3e38, 3e38, 3.1e38
    got = check(X, dict(rules(6, greedy_every=0), temperature=torch.full((6,), 0.05, device="cuda")), fields=FIELDS)
    assert (got["tokens"] == 4242).all() and (got["status"] == fs.Row.INF | fs.Row.FAR).all()  # of raw log Z


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
@pytest.mark.parametrize("B", [3, 64, 200])
def test_a_logit_the_temperature_makes_minus_infinite_is_never_drawn(B, fields):
    """Of most rows that is all of them; greedy ones race without a temperature, and every third row has one token
    left."""
    X = logits(B, 10007, scale=1e36, level=-1e38)
    X[::3, 9876] = -1e35
    asked = rules(B)
    greedy = asked["temperature"].cpu().numpy() == 0
    asked["temperature"][asked["temperature"] > 0] = 0.01
    got = check(X, dict(asked, fallback_token=-7), fields=fields)
    left = np.arange(B) % 3 == 0
    assert (got["tokens"][left] == 9876).all() and (got["tokens"][~left & ~greedy] == -7).all()
    assert (got["tokens"][greedy] >= 0).all()


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
@pytest.mark.parametrize("B", [3, 64, 200])
def test_a_row_without_tokens_is_empty(B, fields):
    X = torch.full((B, 10007), -float("inf"), device="cuda")
    X[1, 9876] = 0
    got = check(X, dict(rules(B), fallback_token=-7), fields=fields)
    assert got["status"][1] == 0 and got["tokens"][1] == 9876
    assert (np.delete(got["status"], 1) == fs.Row.EMPTY).all() and (np.delete(got["tokens"], 1) == -7).all()


@pytest.mark.parametrize("B", [3, 256])
def test_masked_rows(B):
    """Most of a row -inf, as grammars leave it: whole blocks, and every third token of the others."""
    X = logits(B, 20011)
    X[:, :9000] = -float("inf")
    X[:, 9001::3] = -float("inf")
    check(X, rules(B), fields=FIELDS)


# -------------------------------------------------------------------------------------------------- invariance ----


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_draws_the_same_in_any_company(dtype, kind):
    """Bit for bit, log Z too, in batches of other sizes and orders."""
    X, asked = logits(256, 40007, TYPES[dtype]), rules(256)
    whole = draw(X, asked, fields=FIELDS, kind=kind)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3)).cuda()
    for n in (1, 7, 20, 64, 130, 256):
        for places in order.split(n)[:16]:
            few = draw(X[places], select(asked, places), fields=FIELDS, kind=kind)
            assert same_bits(few, select(whole, places)), n


def test_what_else_is_asked_does_not_change_a_draw():
    X, asked = logits(64, 40007), rules(64)
    plain = draw(X, asked)
    for fields in ((), ("noisy_logit", "logit", "max_logit"), FIELDS):
        got = draw(X, asked, fields=fields)
        assert same_bits({name: plain[name] for name in plain if name in got}, got)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("edges", [(0, 20032, 40007), (0, 64, 128, 10048, 30016, 40007), (0, 1, 131, 12345, 40007)])
def test_shards_together_are_the_whole(edges, dtype):
    X, asked = logits(17, 40007, TYPES[dtype]), rules(17)
    bias = torch.linspace(-1, 1, 40007, device="cuda")
    whole = draw(X, asked, dict(bias=bias), FIELDS)
    parts = [draw(X[:, a:b], asked, dict(first_token=a, bias=bias[a:b]), FIELDS)
             for a, b in zip(edges, edges[1:])]
    winner = torch.stack([p["noisy_logit"] for p in parts]).argmax(0)[None]
    for name in ("tokens", "status", "noisy_logit", "logit"):
        best = torch.stack([p[name] for p in parts]).gather(0, winner)[0]
        assert torch.equal(best.view(torch.int32), whole[name].view(torch.int32)), name
    assert torch.equal(torch.stack([p["max_logit"] for p in parts]).max(0).values, whole["max_logit"])
    together = torch.stack([p["log_z"] for p in parts]).double().logsumexp(0)
    assert (together - whole["log_z"].double()).abs().max() < 1e-5


def test_stored_logits_draw_what_the_fused_kernel_draws():
    """On the grid dot products are exact, so both have the same logits. Their masses are summed in other ways, to the
    same accuracy."""
    W, H, asked = weights(20011, 256), hidden(64, 256), rules(64)
    out = Outputs(64, floats=FIELDS)
    GPU.sample(fs.Head(W), H, out=out.rows, **asked)
    X = (H.double() @ W.double().T).float()
    fused, got = out.taken(), draw(X, asked, fields=FIELDS)
    for name in ("tokens", "status", "noisy_logit", "max_logit"):
        assert torch.equal(got[name].view(torch.int32), fused[name].view(torch.int32)), name
    assert (got["log_z"] - fused["log_z"]).abs().max() < 1e-5


def test_calls_of_every_kind_take_turns():
    """Each leaves the work memory as the next one needs it."""
    X, asked, W, H = logits(48, 30011), rules(48), weights(20011, 256), hidden(48, 256)
    kinds = {
        "plain": lambda: draw(X, asked),
        "one row": lambda: draw(X[:1], select(asked, slice(0, 1))),
        "masses": lambda: draw(X, asked, fields=FIELDS),
        "groups": lambda: draw(X, dict(asked, mode="group_parallel", group_size=1280), fields=FIELDS, kind="processed"),
        "halves": lambda: draw(X.half(), asked, fields=FIELDS),
    }

    def fused():
        out = Outputs(48, floats=FIELDS)
        GPU.sample(fs.Head(W), H, out=out.rows, **asked)
        return out.taken()

    kinds["fused"] = fused
    first = {name: call() for name, call in kinds.items()}
    for _ in range(3):
        for name, call in kinds.items():
            assert same_bits(call(), first[name]), name


# ------------------------------------------------------------------------------------------- streams and graphs ----


@pytest.mark.parametrize("fields", [PLAIN, FIELDS])
@pytest.mark.parametrize("B", [1, 64, 300])
def test_a_graph_replays_with_logits_and_positions_in_device_memory(B, fields):
    X, asked = logits(B, 40007), rules(B)
    start, asked["position"] = asked["position"], asked["position"].clone()
    head, out = fs.Head(logits=X), Outputs(B, floats=fields)
    batch = fs.Batch(head, **asked)
    result = fs.Result.into(batch, out.rows)
    GPU.sample(head, batch, out=result)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        X.add_(0.125)  # the call reads what the launch before it has written
        GPU.sample(head, batch, out=result)
        asked["position"].add_(1)
    asked["position"].copy_(start)
    Y = X.clone()
    for step in range(10):
        graph.replay()
        Y.add_(0.125)
        eager = draw(Y, dict(asked, position=start + step), fields=fields)
        assert same_bits(out.taken(), eager), step


def test_two_streams_at_once_with_a_context_each():
    steps, sides, calls = 40, [], []
    for B in (8, 200):
        stream = torch.cuda.Stream()
        X, asked = logits(B, 40007), rules(B)
        head = fs.Head(logits=X)
        batches = [fs.Batch(head, **dict(asked, position=asked["position"] + i)) for i in range(steps)]
        want = torch.stack([draw(X, dict(asked, position=asked["position"] + i))["tokens"] for i in range(steps)])
        tokens = torch.full((steps, B), -9, device="cuda", dtype=torch.int32)
        sides.append((fs.Context("cuda", cuda_stream=stream.cuda_stream), head, batches, tokens, want))
    torch.cuda.synchronize()
    for i in range(steps):
        for context, head, batches, tokens, _ in sides:
            calls.append(context.sample(head, batches[i], out={"tokens": tokens[i]}))
    torch.cuda.synchronize()
    for context, _, _, tokens, want in sides:
        assert torch.equal(tokens, want)
        context.close()


# ------------------------------------------------------------------------------------------------------ groups ----


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [128, 384, 1280, 8064, 8192, 20096, 1 << 20])
@pytest.mark.parametrize("B", [1, 3, 64, 256])
def test_group_modes_draw_what_the_cpu_draws(B, size, mode):
    X, asked = logits(B, 20011), dict(rules(B), mode=mode, group_size=size)
    got = draw(X, asked, fields=FIELDS, kind="processed")
    want = CPU.sample(fs.Head(logits=X.cpu().numpy()), outputs=FIELDS, logits_mode="processed", **on_host(asked))
    differ = got["tokens"].cpu().numpy() != want.tokens[:, 0]
    assert differ.sum() <= 1  # log masses agree to 1e-6: two groups may be that near
    assert np.allclose(got["log_z"].cpu().numpy(), want.log_z, atol=1e-5)
    assert (got["status"].cpu().numpy().view(np.uint32) == want.status).all()


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [256, 1280, 12800])
def test_groups_of_a_shard_with_padding_do_not_see_their_batch(size, mode):
    X, asked = logits(100, 20011), rules(100)
    head, more = dict(first_token=3000, vocab=13000), dict(mode=mode, group_size=size)
    whole = draw(X, dict(asked, **more), head)
    few = draw(X[:5], dict(select(asked, slice(0, 5)), **more), head)
    assert same_bits(few, select(whole, slice(0, 5)))
    assert (whole["tokens"] >= 3000).all() and (whole["tokens"] < 13000).all()
    want = CPU.sample(fs.Head(logits=X.cpu().numpy(), **head), **more, **on_host(asked))
    assert (whole["tokens"].cpu().numpy() != want.tokens[:, 0]).sum() <= 1
