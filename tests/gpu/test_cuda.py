"""The CUDA backend against the CPU backend and torch: every width of tile, every tail, every rule it has."""
import pytest

from draws import (BF16, F16, GPU, NEAR, STREAM, Outputs, check, dots, draw, hidden, laid, rules, same_bits, select,
                   weights)

import numpy as np
import torch

import flashsampling as fs

ROWS = (1, 2, 3, 8, 17, 32, 48, 64, 96, 128, 160, 192, 256, 300, 512)
UNSUPPORTED = -2


# ------------------------------------------------------------------------------------------------------ shapes ----


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("B", ROWS)
def test_every_number_of_rows(B, dtype):
    check(weights(20011, 256, dtype), hidden(B, 256, dtype), rules(B))


@pytest.mark.parametrize("B", ROWS)
def test_a_large_vocabulary_off_the_grid(B):
    W = weights(151936, 512, grid=False)
    check(W, hidden(B, 512, grid=False), rules(B), near=NEAR)


@pytest.mark.parametrize("B", [3, 64, 160])
@pytest.mark.parametrize("V", [1, 7, 16, 63, 64, 65, 100, 127, 128, 129, 255, 257, 1000, 16895, 16897, 33793])
def test_every_tail_of_the_vocabulary(V, B):
    check(weights(V, 64), hidden(B, 64), rules(B))


@pytest.mark.parametrize("B", [8, 128, 256])
@pytest.mark.parametrize("D", [8, 24, 56, 64, 72, 120, 128, 136, 264, 1000, 2048])
def test_every_tail_of_the_hidden_size(D, B):
    check(weights(3001, D), hidden(B, D), rules(B))


@pytest.mark.parametrize("B", ROWS)
def test_tokens_are_the_argmax_of_scores_in_float64(B):
    """No backend in the oracle: logits of torch in float64 and the noise of the header, one value at a time."""
    V, D = 1009, 128
    W, H, asked = weights(V, D, grid=False), hidden(B, D, grid=False), rules(B)
    tokens = draw(W, H, asked)["tokens"].long()
    seeds, positions = [s % 2**64 for s in asked["seed"].tolist()], asked["position"].tolist()
    noise = [[fs.noise_gumbel(s, p, 0, 0, v) for v in range(V)] for s, p in zip(seeds, positions)]
    noise = torch.tensor(noise, device="cuda", dtype=torch.float64)
    T, x = asked["temperature"].double()[:, None], dots(W, H)
    scores = torch.where(T > 0, x / T + noise, x)
    gap = scores.max(1).values - scores.gather(1, tokens[:, None])[:, 0]
    assert gap.max() <= NEAR and (gap > 0).sum() <= 1, gap.max()


@pytest.mark.parametrize("B", [5, 64, 200])
def test_rows_with_a_stride(B):
    """What lies between the rows is NaN: a read of it shows."""
    V, D = 5003, 200
    W = torch.full((V, D + 24), float("nan"), device="cuda", dtype=BF16)
    H = torch.full((B, D + 8), float("nan"), device="cuda", dtype=BF16)
    W[:, :D], H[:, :D] = weights(V, D), hidden(B, D)
    check(W[:, :D], H[:, :D], rules(B))


@pytest.mark.parametrize("B", [5, 64, 200])
@pytest.mark.parametrize("offset, stride", [(1, 200), (2, 200), (0, 201), (0, 202), (3, 203)])
@pytest.mark.parametrize("which", ["weights", "hidden states"])
def test_data_that_is_not_aligned(which, offset, stride, B):
    W, H = weights(5003, 200), hidden(B, 200)
    W, H = (laid(W, offset, stride), H) if which == "weights" else (W, laid(H, offset, stride))
    check(W, H, rules(B))


def test_no_rows_is_a_call_that_does_nothing():
    draw(weights(1000, 64), hidden(0, 64), {})


# ------------------------------------------------------------------------------------------------------- rules ----


@pytest.mark.parametrize("B", [3, 64, 256])
@pytest.mark.parametrize("head, near", [
    (dict(softcap=5.0), 2e-5),
    (dict(bias=True), 0.0),
    (dict(scale=0.5, post_scale=1.75), 0.0),
    (dict(scale=-1.0), 0.0),
    (dict(round_to="bf16"), 0.0),
    (dict(round_to="f16"), 0.0),
    (dict(bias=True, round_to="bf16", scale=0.25, softcap=3.0, post_scale=2.0), 2e-5),
    (dict(vocab=9001), 0.0),
], ids=["softcap", "bias", "scales", "negative", "bf16", "f16", "everything", "padding"])
def test_the_life_of_a_logit(head, near, B):
    V, D = 10007, 128
    if head.get("bias"):
        head = dict(head, bias=(torch.arange(V, device="cuda") % 37).float() / 8)  # on the grid: sums stay exact
    check(weights(V, D), hidden(B, D), rules(B), head, near)


@pytest.mark.parametrize("logits", ["raw", "processed"])
def test_logits_are_before_or_after_the_temperature(logits):
    check(weights(10007, 128), hidden(40, 128), rules(40), logits_mode=logits)


@pytest.mark.parametrize("B", [3, 64, 256, 300])
def test_tokens_of_64_bits(B):
    got = check(weights(10007, 128), hidden(B, 128), rules(B), tokens=torch.int64)
    assert got["tokens"].dtype == np.int64


def test_rows_share_slots_skip_and_name_bad_ones():
    S = 9
    slot = torch.tensor([3, -1, 8, 0, 9, 3, -5, 2, -1, 1, 7, 2**31 - 1, 4], device="cuda", dtype=torch.int32)
    asked = dict(rules(S), slot=slot, slots=S, position=torch.arange(13, device="cuda"), fallback_token=-7,
                 substream=torch.arange(S, device="cuda", dtype=torch.int32) - 4)
    got = check(weights(10007, 128), hidden(13, 128), asked)
    assert got["status"][[1, 8]].tolist() == [fs.Row.SKIPPED] * 2
    assert got["status"][[4, 6, 11]].tolist() == [fs.Row.BAD_SLOT] * 3
    assert got["tokens"][[1, 4, 6, 8, 11]].tolist() == [-7] * 5


def test_bad_temperatures_are_their_own_rows_matter():
    T = torch.tensor([1.0, -1.0, float("nan"), float("inf"), 1e-39, 0.0, -0.0, 3.0, 0.5], device="cuda")
    got = check(weights(10007, 128), hidden(9, 128), dict(temperature=T, seed=5, position=8))
    assert got["status"].tolist() == [0] + [fs.Row.BAD_TEMPERATURE] * 4 + [0] * 4


@pytest.mark.parametrize("B", [1, 64, 300])
def test_scalars_are_spread_over_rows(B):
    H = hidden(1, 64).expand(B, 64).contiguous()
    got = check(weights(20011, 64), H, dict(temperature=1.5, seed=42, position=3))
    assert B == 1 or len(set(got["tokens"].tolist())) > B // 4


# ---------------------------------------------------------------------------------------------- ties and extremes ----


@pytest.mark.parametrize("B", [3, 64, 256])
def test_equal_logits_go_to_the_lower_token(B):
    W = torch.zeros(20011, 64, device="cuda", dtype=BF16)
    H = hidden(B, 64)
    assert (draw(W, H, dict(temperature=0.0))["tokens"] == 0).all()
    W[[19000, 7013, 130, 200]] = H[0] * 4
    assert draw(W, H[:1].expand(B, 64).contiguous(), dict(temperature=0.0))["tokens"].tolist() == [130] * B


@pytest.mark.parametrize("B", [3, 64, 256])
def test_a_flat_row_is_noise_alone(B):
    check(torch.zeros(20011, 64, device="cuda", dtype=BF16), hidden(B, 64), rules(B))


@pytest.mark.parametrize("scale", [64.0, 1e4])
def test_peaked_rows(scale):
    check(weights(20011, 256), hidden(64, 256), rules(64), dict(scale=scale))


@pytest.mark.parametrize("B", [3, 17, 64, 200])
def test_a_nan_logit_is_flagged_and_never_drawn(B):
    W = weights(10007, 128).clone()
    W[[0, 777, 10006]] = float("nan")
    got = check(W, hidden(B, 128), rules(B))
    assert (got["status"] == fs.Row.NAN).all() and not np.isin(got["tokens"], [0, 777, 10006]).any()


def test_a_nan_row_is_empty_and_its_neighbours_are_not():
    H = hidden(20, 128)
    H[7, 3] = float("nan")
    got = check(weights(10007, 128), H, rules(20))
    assert got["status"][7] == fs.Row.NAN | fs.Row.EMPTY and (np.delete(got["status"], 7) == 0).all()


@pytest.mark.parametrize("B", [3, 64, 200])
def test_the_lowest_infinite_token_wins(B):
    bias = torch.zeros(10007, device="cuda")
    bias[[9999, 4242, 5000]] = float("inf")
    got = check(weights(10007, 128), hidden(B, 128), rules(B), dict(bias=bias))
    assert (got["tokens"] == 4242).all() and (got["status"] == fs.Row.INF).all()


@pytest.mark.parametrize("B", [3, 64, 200])
def test_a_logit_the_temperature_makes_minus_infinite_is_never_drawn(B):
    W, H, bias = weights(10007, 128), hidden(B, 128), torch.full((10007,), -1e38, device="cuda")
    asked = rules(B)
    greedy = asked["temperature"].cpu().numpy() == 0
    asked["temperature"][asked["temperature"] > 0] = 0.01
    got = check(W, H, dict(asked, fallback_token=-7), dict(bias=bias))
    assert (got["tokens"][~greedy] == -7).all() and (got["tokens"][greedy] == 0).all()
    bias[9876] = 0
    got = check(W, H, asked, dict(bias=bias))
    assert (got["status"] == 0).all() and (got["tokens"] == 9876).all()


@pytest.mark.parametrize("B", [3, 64, 200])
def test_a_row_without_tokens_is_empty(B):
    W, H = weights(10007, 128), hidden(B, 128)
    bias = torch.full((10007,), -float("inf"), device="cuda")
    got = check(W, H, dict(rules(B), fallback_token=-7), dict(bias=bias))
    assert (got["status"] == fs.Row.EMPTY).all() and (got["tokens"] == -7).all() and np.isnan(got["noisy_logit"]).all()
    bias[9876] = 0
    got = check(W, H, rules(B), dict(bias=bias))
    assert (got["status"] == 0).all() and (got["tokens"] == 9876).all()


# -------------------------------------------------------------------------------------------------- invariance ----


def test_a_row_draws_the_same_in_any_company():
    """Bit for bit: token, status, score and logit of every row, in batches of other sizes and orders."""
    W, H, asked = weights(40007, 512, grid=False), hidden(256, 512, grid=False), rules(256)
    whole = draw(W, H, asked)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3)).cuda()
    for n in (1, 7, 20, 64, 90, 128, 180, 256):
        for places in order.split(n):
            assert same_bits(draw(W, H[places], select(asked, places)), select(whole, places)), n


@pytest.mark.parametrize("B", [3, 64, 256])
@pytest.mark.parametrize("edges", [(0, 20032, 40007), (0, 64, 128, 10048, 30016, 40007), (0, 1, 131, 12345, 40007)])
def test_shards_together_are_the_whole(edges, B):
    """Every shard draws from its own rows of W; the best score is the token of the whole, bit for bit."""
    W, H, asked = weights(40007, 512, grid=False), hidden(B, 512, grid=False), rules(B)
    bias = torch.linspace(-1, 1, 40007, device="cuda")
    whole = draw(W, H, asked, dict(bias=bias))
    parts = []
    for a, b in zip(edges, edges[1:]):
        parts.append(draw(W[a:b], H, asked, dict(first_token=a, bias=bias[a:b])))
    winner = torch.stack([p["noisy_logit"] for p in parts]).argmax(0)[None]
    for name in whole:
        best = torch.stack([p[name] for p in parts]).gather(0, winner)[0]
        assert torch.equal(best.view(torch.int32), whole[name].view(torch.int32)), name


# ------------------------------------------------------------------------------------------- streams and graphs ----


@pytest.mark.parametrize("B", [1, 64, 300])
def test_a_graph_replays_with_positions_in_device_memory(B):
    W, H, asked = weights(40007, 512), hidden(B, 512), rules(B)
    start, asked["position"] = asked["position"], asked["position"].clone()
    head, out = fs.Head(W), Outputs(B)
    batch = fs.Batch(head, H, **asked)
    result = fs.Result.into(batch, out.rows)
    GPU.sample(head, batch, out=result)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        GPU.sample(head, batch, out=result)
        asked["position"].add_(1)
    asked["position"].copy_(start)
    for step in range(20):
        graph.replay()
        eager = draw(W, H, dict(asked, position=start + step))
        assert same_bits(out.taken(), eager), step


def test_two_streams_at_once_with_a_context_each():
    W, steps = weights(40007, 512), 40
    head, sides, calls = fs.Head(W), [], []
    for B in (8, 200):
        stream = torch.cuda.Stream()
        H, asked = hidden(B, 512), rules(B)
        batches = [fs.Batch(head, H, **dict(asked, position=asked["position"] + i)) for i in range(steps)]
        want = torch.stack([draw(W, H, dict(asked, position=asked["position"] + i))["tokens"] for i in range(steps)])
        tokens = torch.full((steps, B), -9, device="cuda", dtype=torch.int32)
        sides.append((fs.Context("cuda", cuda_stream=stream.cuda_stream), batches, tokens, want))
    torch.cuda.synchronize()
    for i in range(steps):
        for context, batches, tokens, _ in sides:
            calls.append(context.sample(head, batches[i], out={"tokens": tokens[i]}))
    torch.cuda.synchronize()
    for context, _, tokens, want in sides:
        assert torch.equal(tokens, want)
        context.close()


def test_a_constant_head_draws_the_same():
    """W may be read before the launches ahead have ended; hidden states, which they write, may not."""
    for B in (3, 64, 200, 300):
        W, H, asked = weights(40007, 512), hidden(B, 512), rules(B)
        want, late = draw(W, H, asked), torch.zeros_like(H)
        for _ in range(20):
            late.zero_()
            late.copy_(H)
            assert same_bits(draw(W, late, asked, head=dict(constant=True)), want), B


def test_a_context_without_a_stream_says_so_and_the_device_stays_current():
    W, H, out = weights(1000, 64), hidden(2, 64), Outputs(2)
    with fs.Context("cuda") as context:
        context.set_stream(None)
        with pytest.raises(fs.Error, match="stream is NULL"):
            context.sample(fs.Head(W), H, out=out.rows)
        torch.cuda.synchronize()
        assert out.untouched() and torch.cuda.current_device() == 0
        context.set_stream(STREAM.cuda_stream)
        context.sample(fs.Head(W), H, out=out.rows)
        out.taken()


# --------------------------------------------------------------------------------- each rule, and over shards ----

UNWRITTEN = -12345


def cuda(values, dtype=torch.int32):
    return torch.tensor(values, device="cuda", dtype=dtype)


def field(name, dtype=torch.float32, shape=(2,)):
    return dict(out={name: torch.full(shape, UNWRITTEN, device="cuda", dtype=dtype)})


W0, H0 = weights(1000, 64), hidden(2, 64)
LISTS = (cuda([0, 1, 1], torch.int64), cuda([5]))
REQUESTS = {
    "float32 weights": dict(head=lambda: fs.Head(W0.float()), hidden=H0.float()),
    "two types": dict(hidden=H0.half()),
    "without replacement": dict(mode="without_replacement"),
    "scoring": dict(mode="score", score_tokens=cuda([[1], [2]])),
    "two samples": dict(samples=2),
    "fast noise": dict(noise="fast"),
    "top-k": dict(top_k=5),
    "top-p": dict(top_p=0.9),
    "min-p": dict(min_p=0.1),
    "top-k of slots": dict(top_k=cuda([5, 0])),
    "top-p of slots": dict(top_p=cuda([0.9, 1.0], torch.float32)),
    "min-p of slots": dict(min_p=cuda([0.1, 0.0], torch.float32)),
    "allow": dict(allow=torch.full((2, 32), -1, device="cuda", dtype=torch.int32)),
    "edits": dict(edits=LISTS + (cuda([1.0], torch.float32),)),
    "seen": dict(seen=torch.zeros(2, 32, device="cuda", dtype=torch.int32), repetition=1.5),
    "counts": dict(counts=torch.zeros(2, 1000, device="cuda", dtype=torch.int32), presence=1.0),
    "count lists": dict(count_list=LISTS + (cuda([1]),), presence=1.0),
    "watch": dict(field("watch_logit", shape=(1,)), watch=LISTS),
    "rank": dict(field("rank", torch.int32), exact_rank=True, list_capacity=1000),
    "top tokens": field("top_token", torch.int32, (2, 3)),
    "top logits": field("top_logit", shape=(2, 3)),
    "top logprobs": field("top_logprob", shape=(2, 3)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_writes_all_it_asks_for_and_a_part_that_is_the_whole_the_same(name):
    request = dict(REQUESTS[name])
    head, states = request.pop("head", lambda: fs.Head(W0))(), request.pop("hidden", H0)
    asked = {**field("tokens", torch.int32, (2, request.get("samples", 1)))["out"],
             **field("status", torch.int32)["out"], **request.pop("out", {})}
    arrays = [{key: array.clone() for key, array in asked.items()} for _ in range(2)]
    GPU.sample(head, states, out=arrays[0], **request)
    part = GPU.partial(head, states, out=arrays[1], **request)
    torch.cuda.synchronize()
    assert all((array == UNWRITTEN).all() for array in arrays[1].values())
    GPU.merge([part], head, states, out=arrays[1], **request)
    torch.cuda.synchronize()
    assert not any((array == UNWRITTEN).any() for array in arrays[0].values()) and not arrays[0]["status"].any()
    for key in asked:
        assert torch.equal(arrays[0][key].nan_to_num(), arrays[1][key].nan_to_num()), key


@pytest.mark.parametrize("call", [
    lambda: GPU.sample(fs.Head(W0), H0, temperature=[1.0, 0.5], out=Outputs(2).rows),
    lambda: GPU.sample(fs.Head(W0, bias=[0.0] * 1000), H0, out=Outputs(2).rows),
    lambda: GPU.sample(fs.Head(np.zeros((9, 8), "f4")), np.zeros((2, 8), "f4")),
    lambda: fs.Context("cpu").sample(fs.Head(W0), H0, out=Outputs(2).rows),
], ids=["a list", "a bias", "a head", "a context"])
def test_host_memory_never_reaches_the_device_nor_the_reverse(call):
    with pytest.raises(ValueError, match="memory"):
        call()
