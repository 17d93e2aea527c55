"""Shards with screens, which begin at multiples of 16: what is merged of their parts is what shards without give, bit
for bit."""
import numpy as np
import pytest

from draws import STREAM, fs, torch
from test_screens import GPU, hidden, opened, weights

CUTS = [(0, 128), (0, 16, 4096, 20000), (0, 10016), (0, 31984)]


def shards_of(w, cuts, bits=0, **head):
    """Heads of the rows between these cuts; with a screen each of so many bits."""
    ends = (*cuts[1:], len(w))
    bias = head.pop("bias", None)
    for first, end in zip(cuts, ends):
        more = dict(head, bias=bias[first:end]) if bias is not None else head
        where = dict(first_token=first, vocab=len(w))
        screen = GPU.screen(fs.Head(w[first:end], **where), bits, seed=11) if bits else None
        yield fs.Head(w[first:end], screen=screen, **where, **more)


def merged(shards, h, context=GPU, outputs=("noisy_logit", "logit"), **rules):
    """Results of the call over shards, as bits."""
    parts = [context.partial(shard, h, outputs=outputs, **rules) for shard in shards]
    out = context.merge(parts[::-1], shards[0], h, outputs=outputs, **rules)
    torch.cuda.synchronize()
    found = {name: getattr(out, name) for name in ("tokens", "status", *outputs)}
    return {name: (a if name == "tokens" else a.view(torch.int32)).cpu().numpy() for name, a in found.items()}


def check(w, h, cuts, bits, context=GPU, head={}, rounds=3, **rules):
    plain, screened = list(shards_of(w, cuts, **head)), list(shards_of(w, cuts, bits, **head))
    for seed in range(rounds):
        call = dict(seed=seed, position=100 * seed, **rules)
        one, two = merged(screened, h, context, **call), merged(plain, h, context, **call)
        for name in two:
            assert np.array_equal(one[name], two[name]), (name, one[name], two[name])


@pytest.fixture(params=[8, 4], ids=["8bits", "4bits"])
def bits(request):
    return request.param


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("B", [1, 8, 9, 16, 17, 32, 33, 70])
def test_parts_are_those_of_the_weights(bits, B, cuts):
    w = weights(32000, 1024)
    check(w, hidden(w, B), cuts, bits)


@pytest.mark.parametrize("B", [8, 16, 32])
def test_rows_of_every_kind_side_by_side(bits, B):
    """Some are open, and the pass over the weights finds what a screen has left of the others."""
    w = weights(32000, 1024)
    T = torch.linspace(0.3, 2.0, B, device="cuda")
    T[::3] = 0
    h = hidden(w, B)
    for spoil in (lambda: None, lambda: h[3].zero_(), lambda: h[4].mul_(1e30), lambda: h[5, :1].fill_(float("nan"))):
        spoil()
        check(w, h, (0, 16000), bits, temperature=T)


@pytest.mark.parametrize("B", [6, 20])
def test_weights_that_are_no_numbers(bits, B):
    w = weights(5000, 256)
    w[77, 3], w[1234, 200], w[4000, 0] = float("nan"), float("inf"), float("-inf")
    check(w, hidden(w, B, picked=0), (0, 128, 1216, 3008), bits)
    w[100:4000, 5] = float("inf")  # more than a list holds
    check(w, hidden(w, B, picked=0), (0, 128, 4096), bits)


@pytest.mark.parametrize("head", [dict(round_to="bf16"), dict(softcap=30.0, scale=0.3)], ids=str)
def test_what_a_head_does_to_its_logits(bits, head):
    w = weights(32000, 512)
    bias = torch.randn(32000, device="cuda", generator=torch.Generator("cuda").manual_seed(9))
    check(w, hidden(w, 12), (0, 9008, 20000), bits, head=dict(head, bias=bias))


@pytest.mark.parametrize("rules", [dict(top_k=20), dict(mode="group_parallel", group_size=128), dict(samples=3)],
                         ids=str)
def test_calls_that_read_the_weights(bits, rules):
    w = weights(32000, 512)
    check(w, hidden(w, 6), (0, 12800), bits, outputs=(), **rules)


@pytest.mark.parametrize("B", [3, 32])
def test_portable_kernels_draw_the_same(bits, B):
    w = weights(20000, 512)
    context = opened("portable")
    check(w, hidden(w, B), (0, 7008), bits, context=context)
    context.close()


def test_a_graph_replays_with_other_rows(bits):
    w = weights(32000, 1024)
    plain, shards = list(shards_of(w, (0, 16016))), list(shards_of(w, (0, 16016), bits))
    rows, position = hidden(w, 8).clone(), torch.arange(8, dtype=torch.int64, device="cuda")
    call = dict(seed=4, position=position)
    merged(shards, rows, outputs=(), **call)
    out = fs.Result(fs.Batch(shards[0], rows, **call))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        parts = [GPU.partial(shard, rows, **call) for shard in shards]
        GPU.merge(parts, shards[0], rows, out=out, **call)
    for turn in range(5):
        rows.copy_(hidden(w, 8, seed=turn, size=0.01 if turn == 3 else 100.0))
        position += 8
        graph.replay()
        expected = merged(plain, rows, outputs=(), **call)
        assert np.array_equal(out.tokens.cpu().numpy(), expected["tokens"]), turn


@pytest.mark.parametrize("B", [1, 16, 32])
def test_it_is_the_screen_that_decides(bits, B):
    """A token that only W knows of, since nobody has told the screen, is not drawn."""
    w, context = weights(32000, 1024), opened()  # whose screens have not failed before
    h, T = hidden(w, B), torch.zeros(B, device="cuda")
    shards = list(shards_of(w, (0, 16000), bits))
    before = merged(shards, h, context, temperature=T)["tokens"]
    last = int((h.float() @ w.float().T).amax(0).argmin())  # in nobody's list
    w[last] = h[0] * (1000 / h[0].float().square().sum())
    assert merged(list(shards_of(w, (0, 16000))), h, context, temperature=T)["tokens"][0] == last
    assert np.array_equal(merged(shards, h, context, temperature=T)["tokens"], before)
    context.close()


def test_work_memory_as_asked_for_is_enough(bits):
    w = weights(32000, 1024)
    for B in (1, 16, 32, 40):
        h = hidden(w, B)
        shards = list(shards_of(w, (0, 16000), bits))
        expected = merged(list(shards_of(w, (0, 16000))), h, seed=1)
        context = opened()
        size = max(context.work_size(shard, h, outputs=("noisy_logit", "logit")).max_bytes for shard in shards)
        context.set_work(size)
        found = merged(shards, h, context, seed=1)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        context.close()
