"""Screens decide rows with rules: tokens, status and scores are those of the same calls without one, bit for bit."""
import numpy as np
import pytest

from draws import STREAM, fs, torch
from test_screens import GPU, HEADS, check, hidden, opened, screen_of, weights

V, D = 32000, 1024
CUTS = [dict(top_k=1), dict(top_k=2), dict(top_k=50), dict(top_k=120), dict(min_p=0.05), dict(min_p=1.0),
        dict(min_p=1e-4), dict(top_k=50, top_p=0.9), dict(top_k=20, top_p=0.95, min_p=0.02), dict(min_p=0.01, top_p=0.8),
        dict(top_k=7, top_p=0.0), dict(top_k=120, top_p=0.999),
        dict(top_k=50, top_p=0.9, min_p=0.05, flags=int(fs.Flag.MIN_P_LAST)),
        dict(top_k=50, top_p=0.9, flags=int(fs.Flag.KEEP_TIES)),
        dict(top_k=50, top_p=0.9, flags=int(fs.Flag.CUT_BEFORE_TEMPERATURE))]
NOT_SERVED = [dict(top_p=0.9), dict(top_k=1000), dict(top_k=121), dict(top_k=50, top_p=0.9, flags=int(fs.Flag.JOINT_TOP_P))]
SCORES = ("noisy_logit", "logit")


def full(B, value):
    return torch.full((B,), value, dtype=torch.int32 if isinstance(value, int) else torch.float32, device="cuda")


def arrays(B, rules):
    return {name: value if name == "flags" else full(B, value) for name, value in rules.items()}


def generator(seed):
    return torch.Generator("cuda").manual_seed(seed)


def masks(B, V, share, seed=5):
    """[B, words] int32 with so many of the tokens allowed."""
    words = (V + 31) // 32
    bits = torch.rand(B, words * 32, device="cuda", generator=generator(seed)) < share
    return (bits.view(B, words, 32).long() << torch.arange(32, device="cuda")).sum(2).to(torch.int64).to(torch.int32)


def likely(w, h, count):
    """[B, count] the likeliest tokens of each row, in no order."""
    top = (h.float() @ w.float().T).topk(count, dim=1).indices
    return top[:, torch.randperm(count, device="cuda", generator=generator(3))].int()


def edits(tokens, low=-2.0, high=2.0, banned=7):
    """Every row's tokens with a bias each, some banned."""
    B, count = tokens.shape
    bias = torch.linspace(low, high, count, device="cuda")
    bias[::banned] = float("-inf")
    offset = torch.arange(B + 1, device="cuda") * count
    return offset, tokens.reshape(-1).contiguous(), bias.repeat(B)


def counts(tokens):
    B, count = tokens.shape
    offset = torch.arange(B + 1, device="cuda") * count
    return offset, tokens.reshape(-1).contiguous(), (torch.arange(B * count, device="cuda") % 3 + 1).int()


@pytest.fixture(params=[8, 4], ids=["8bits", "4bits"])
def bits(request):
    return request.param


@pytest.mark.parametrize("rules", CUTS + NOT_SERVED, ids=str)
@pytest.mark.parametrize("B", [1, 8, 16])
def test_cuts(bits, rules, B):
    w = weights(V, D)
    check(w, hidden(w, B), screen_of(w, bits), outputs=SCORES, **arrays(B, rules))


@pytest.mark.parametrize("size", [(151936, 1024), (20000, 4096), (50257, 768), (8192, 8192), (4099, 520), (130, 64),
                                  (16, 128), (1, 8), (262208, 256)], ids=str)
@pytest.mark.parametrize("rules", [dict(top_k=50), dict(min_p=0.05, top_p=0.9)], ids=str)
def test_sizes(bits, size, rules):
    w = weights(*size)
    for B in (1, 9, 16, 20):
        check(w, hidden(w, B), screen_of(w, bits), rounds=1, **arrays(B, rules))


@pytest.mark.parametrize("T", [0.0, 0.1, 0.7, 1.5, 5.0])
def test_every_temperature(bits, T):
    w = weights(V, D)
    check(w, hidden(w, 12), screen_of(w, bits), temperature=full(12, T), **arrays(12, dict(top_k=20, top_p=0.95)))
    check(w, hidden(w, 12), screen_of(w, bits), temperature=full(12, T), **arrays(12, dict(min_p=0.1)))


def mixed(B):
    """Rows of every kind by turns: greedy, plain, and each cut; the last of them such as a screen does not serve."""
    kinds = [dict(temperature=0.0), dict(), dict(top_k=50), dict(min_p=0.05), dict(top_k=20, top_p=0.9),
             dict(temperature=0.0, top_k=5), dict(temperature=0.5, min_p=0.3), dict(top_k=1)]
    off = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    rows = [{**off, **kinds[b % len(kinds)]} for b in range(B)]
    return {name: torch.tensor([row[name] for row in rows], device="cuda",
                               dtype=torch.int32 if name == "top_k" else torch.float32) for name in off}


@pytest.mark.parametrize("B", [3, 8, 16])
def test_rows_of_every_kind_side_by_side(bits, B):
    w = weights(V, D)
    h, rules = hidden(w, B), mixed(B)
    check(w, h, screen_of(w, bits), rounds=8, **rules)
    rules["top_p"][B - 1], rules["top_k"][B - 1], rules["temperature"][B - 1] = 0.9, 0, 1.0  # that W has to decide
    check(w, h, screen_of(w, bits), **rules)


def test_hidden_states_that_are_no_numbers(bits):
    w = weights(V, D)
    h = hidden(w, 16)
    h[3] = 0
    h[4] *= 10
    h[5] *= 0.01
    h[6, 17] = float("inf")
    h[7, 3] = float("nan")
    h[8] *= 1e30
    check(w, h, screen_of(w, bits), **mixed(16))


def test_weights_that_are_no_numbers(bits):
    w = weights(5000, 256)
    w[77, 3], w[1234, 200], w[4000, 0] = float("nan"), float("inf"), float("-inf")
    check(w, hidden(w, 8, picked=0), screen_of(w, bits), **mixed(8))


@pytest.mark.parametrize("share", [0.5, 0.02, 0.0005, 0.0])
@pytest.mark.parametrize("rules", [dict(), dict(top_k=50), dict(min_p=0.05, top_p=0.9)], ids=str)
def test_masks(bits, share, rules):
    w = weights(V, D)
    check(w, hidden(w, 16), screen_of(w, bits), allow=masks(16, V, share), **arrays(16, rules))
    check(w, hidden(w, 8), screen_of(w, bits), allow=masks(8, V, share), temperature=full(8, 0.0))


def test_masks_of_some_rows(bits):
    w = weights(V, D)
    index = torch.tensor([-1, 0, 2, -1, 1, 0, -1, 2], dtype=torch.int32, device="cuda")
    check(w, hidden(w, 8), screen_of(w, bits), allow=masks(3, V, 0.3), allow_index=index, **mixed(8))


@pytest.mark.parametrize("rules", [dict(), dict(temperature=0.0), dict(top_k=50), dict(min_p=0.05), dict(top_k=20, top_p=0.9)],
                         ids=str)
@pytest.mark.parametrize("kind", ["lowered", "raised", "far up", "penalties", "dense", "seen", "all"])
def test_edits_and_penalties(bits, rules, kind):
    w, B = weights(V, D), 8
    h = hidden(w, B)
    top = likely(w, h, 300)
    prices = dict(repetition=full(B, 1.3), frequency=full(B, 0.4), presence=full(B, 0.2))
    given = {}
    if kind == "lowered":
        given = dict(edits=edits(top, -3.0, -0.1))
    if kind in ("raised", "all"):
        given = dict(edits=edits(top[:, :100]))
    if kind == "far up":
        given = dict(edits=edits(torch.arange(B * 5, device="cuda", dtype=torch.int32).view(B, 5) * 601, 50.0, 60.0, 5))
    if kind in ("penalties", "all"):
        given.update(count_list=counts(top[:, 100:]), **prices)
    if kind == "dense":
        dense = torch.zeros(B, V, dtype=torch.int32, device="cuda")
        given = dict(counts=dense.scatter_(1, top.long(), 2), **prices)
    if kind == "seen":
        seen = torch.zeros(B, (V + 31) // 32 * 32, dtype=torch.int64, device="cuda").scatter_(1, top.long(), 1)
        words = (seen.view(B, -1, 32) << torch.arange(32, device="cuda")).sum(2)
        given = dict(seen=words.to(torch.int32), repetition=prices["repetition"])
    if kind == "all":
        given["allow"] = masks(B, V, 0.7)
    check(w, h, screen_of(w, bits), outputs=("noisy_logit",), **given, **arrays(B, rules))
    check(w, h, screen_of(w, bits), outputs=("noisy_logit",), **given, **mixed(B))


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_what_a_head_does_to_its_logits(bits, head, biased):
    w = weights(V, 512)
    if biased:
        head = dict(head, bias=torch.randn(V, device="cuda", generator=generator(9)))
    check(w, hidden(w, 12), screen_of(w, bits), head=head, **mixed(12))


def test_equal_weights(bits):
    w = weights(4096, 256)
    w[1::2] = w[::2]
    for rules in (dict(top_k=3), dict(top_k=4, flags=int(fs.Flag.KEEP_TIES)), dict(min_p=0.2), dict(top_k=5, top_p=0.5)):
        check(w, hidden(w, 16), screen_of(w, bits), rounds=8, **arrays(16, rules))


def test_rows_too_flat_for_a_list(bits):
    w = weights(V, D)
    w[:, :] = w[:1]
    check(w, hidden(w, 4), screen_of(w, bits), **arrays(4, dict(top_k=50)))
    check(w, hidden(w, 4), screen_of(w, bits), **arrays(4, dict(min_p=0.5)))


@pytest.mark.parametrize("room", [0, 20, 100])
def test_short_lists_leave_rows_to_the_weights(bits, room, monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_CUDA_LIST", str(room))
    context = opened()
    w = weights(V, D)
    check(w, hidden(w, 16), screen_of(w, bits), context=context, **mixed(16))
    context.close()


@pytest.mark.parametrize("team", ["1", "2", "4", "8:256"])
def test_teams(bits, team, monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_CUDA_TEAM", team)
    context = opened()
    w = weights(V, D)
    check(w, hidden(w, 16), screen_of(w, bits), context=context, **mixed(16))
    context.close()


def test_portable_kernels_draw_the_same(bits):
    w = weights(20000, 512)
    context = opened("portable")
    check(w, hidden(w, 8), screen_of(w, bits), context=context, **mixed(8))
    context.close()


def test_a_graph_replays_with_other_rules(bits):
    w = weights(V, D)
    rows, rules = hidden(w, 8).clone(), mixed(8)
    screened, plain = fs.Head(w, screen=screen_of(w, bits), constant=True), fs.Head(w)
    allow = masks(8, V, 0.5)
    batch = fs.Batch(screened, rows, seed=4, allow=allow, **rules)
    out = fs.Result(batch)
    GPU.sample(screened, batch, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        GPU.sample(screened, batch, out=out)
    for turn in range(8):
        rows.copy_(hidden(w, 8, seed=turn, size=0.01 if turn == 3 else 100.0))
        allow.copy_(masks(8, V, 0.5 if turn % 2 else 0.01, seed=turn))
        for name in rules:
            rules[name].copy_(rules[name].roll(1).clone())
        if turn == 5:
            rules["top_p"].fill_(0.9)  # on some rows alone: W decides
        graph.replay()
        expected = GPU.sample(plain, rows, seed=4, allow=allow, **rules)
        torch.cuda.synchronize()
        assert torch.equal(out.tokens, expected.tokens), turn
        assert not bool(((out.status ^ expected.status) & ~int(fs.Row.FALLBACK)).any()), turn


@pytest.mark.parametrize("rules", [dict(top_k=5), dict(min_p=0.1), dict(top_k=5, top_p=0.9), dict(allow=1), dict(edits=1)],
                         ids=str)
def test_it_is_the_screen_that_decides(bits, rules):
    """A token that only W knows of, since nobody has told the screen, is not drawn."""
    w, context = weights(V, D), opened()  # whose screens have not failed before
    h, screen = hidden(w, 1), screen_of(w, bits)
    call = dict(rules)
    if "allow" in call:
        call = dict(allow=torch.full((1, V // 32), -1, dtype=torch.int32, device="cuda"), temperature=full(1, 0.0))
    elif "edits" in call:
        call = dict(edits=edits(likely(w, h, 5), -1.0, -0.5), temperature=full(1, 0.0))
    else:
        call = arrays(1, call)
    plain, screened = fs.Head(w), fs.Head(w, screen=screen)
    before = context.sample(screened, h, **call).tokens.clone()
    assert torch.equal(before, context.sample(plain, h, **call).tokens)
    last = int((h.float() @ w.float().T).argmin())
    w[last] = h[0] * (1000 / h[0].float().square().sum())
    assert int(context.sample(plain, h, **call).tokens) == last
    assert torch.equal(before, context.sample(screened, h, **call).tokens)
    torch.cuda.synchronize()
    context.close()


def test_weights_that_are_written_over_are_noticed(bits):
    w = weights(20000, 512)
    screen = screen_of(w, bits)
    check(w, hidden(w, 8), screen, **mixed(8))
    w.copy_(weights(20000, 512, seed=7))
    check(w, hidden(w, 8), screen, **mixed(8))


@pytest.mark.parametrize("rules", [dict(top_k=50, top_p=0.95), dict(min_p=0.05)], ids=str)
def test_a_screen_that_has_lost_tokens_is_seen(bits, rules):
    """What the comparison above would say if bounds were wrong: every other 16 tokens have weights and bounds of 0."""
    w = weights(V, D)
    h, screen, context = hidden(w, 16), screen_of(w, bits), opened()
    context.sample(fs.Head(w, screen=screen), h)  # its bytes are compared with its checksum once
    strips = screen[128:].reshape((V + 15) // 16, -1)
    strips[::2, :64] = 0
    strips[::2, 128:] = 0
    plain, screened = fs.Head(w), fs.Head(w, screen=screen)
    call = dict(seed=1, **arrays(16, rules))
    assert not torch.equal(context.sample(plain, h, **call).tokens, context.sample(screened, h, **call).tokens)
    torch.cuda.synchronize()
    context.close()
