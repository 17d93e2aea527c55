"""Several samples of a row, drawn as rows of their own beside each other: they are those that the row's stored logits
give, which is how they are drawn where more is asked (test_rules.py compares both with the CPU)."""
import numpy as np
import pytest

from draws import BF16, F16, GPU, STREAM, forced, fs, hidden, laid, torch, weights

V, D = 20000, 512


def both(w, h, context=GPU, head={}, outputs=("noisy_logit",), **call):
    """The same draws as rows, and from logits in memory: those of tokens that are asked for are."""
    head = fs.Head(w, **head)
    one = context.sample(head, h, outputs=outputs, **call)
    two = context.sample(head, h, outputs=("noisy_logit", "logit"), **call)
    torch.cuda.synchronize()
    return one, two


def check(*arguments, **more):
    one, two = both(*arguments, **more)
    for name in ("tokens", "status", *more.get("outputs", ("noisy_logit",))):
        a, b = getattr(one, name).cpu().numpy(), getattr(two, name).cpu().numpy()
        a, b = (a, b) if name != "status" else (a & ~int(fs.Row.FALLBACK), b & ~int(fs.Row.FALLBACK))
        assert np.array_equal(a, b, equal_nan=name == "noisy_logit"), (name, a[a != b][:4], b[a != b][:4])
    return one


@pytest.mark.parametrize("tile", ["", "portable"])
@pytest.mark.parametrize("B, n", [(1, 2), (1, 160), (1, 161), (3, 5), (8, 8), (20, 8), (21, 8), (64, 2), (2, 1024)])
def test_samples_are_those_of_stored_logits(B, n, tile):
    context = forced(tile) if tile else GPU
    T = torch.linspace(0.5, 1.5, B, device="cuda")
    if B > 2:
        T[1] = 0
    one = check(weights(V, D), hidden(B, D), context=context, samples=n, seed=5, temperature=T)
    assert one.tokens.shape == (B, n)
    first = context.sample(fs.Head(weights(V, D)), hidden(B, D), seed=5, temperature=T)
    assert torch.equal(one.tokens[:, 0], first.tokens.flatten())
    if tile:
        context.close()


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("head", [{}, dict(round_to="bf16"), dict(softcap=5.0, scale=0.5), dict(vocab=V - 7)], ids=str)
def test_heads(dtype, head):
    check(weights(V, D, dtype), hidden(5, D, dtype), head=head, samples=6, outputs=())


@pytest.mark.parametrize("columns, offset, stride", [(130, 0, 0), (96, 1, 101), (128, 4, 136), (256, 0, 1000)])
def test_hidden_states_that_lie_anywhere(columns, offset, stride):
    check(weights(3000, columns), laid(hidden(4, columns), offset, stride), samples=7)


def test_rows_that_have_no_number_or_no_token():
    h = hidden(6, D)
    h[1, 3], h[2, 7], h[4] = float("nan"), float("inf"), 0
    one = check(weights(V, D), h, samples=4, fallback_token=7)
    assert one.status.shape == (6,)
    assert int(one.status[1]) & int(fs.Row.NAN)


def test_slots_streams_and_positions():
    B = 5
    slot = torch.tensor([3, 0, 7, 1, 6], dtype=torch.int32, device="cuda")
    T = torch.rand(8, device="cuda") + 0.5
    check(weights(V, D), hidden(B, D), samples=9, slots=8, slot=slot, temperature=T,
          substream=torch.arange(8, dtype=torch.int32, device="cuda"),
          position=torch.arange(B, dtype=torch.int64, device="cuda") * 2**33)


def test_work_memory_is_enough():
    head, context = fs.Head(weights(V, D)), fs.Context("cuda", cuda_stream=STREAM.cuda_stream)
    most = fs.Batch(head, hidden(16, D), samples=16)
    context.set_work(context.work_size(head, most).min_bytes)
    for B, n in ((16, 16), (8, 16), (16, 8), (1, 16), (16, 1), (5, 3)):
        one = context.sample(head, hidden(B, D), samples=n, seed=2, outputs=())
        assert torch.equal(one.tokens, GPU.sample(head, hidden(B, D), samples=n, seed=2, outputs=()).tokens)
    context.close()


def test_a_graph_replays_other_rows():
    head, rows = fs.Head(weights(V, D), constant=True), hidden(4, D).clone()
    position = torch.arange(4, dtype=torch.int64, device="cuda")
    batch = fs.Batch(head, rows, seed=4, position=position, samples=6)
    out = fs.Result(batch)
    GPU.sample(head, batch, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        GPU.sample(head, batch, out=out)
    for turn in range(3):
        rows.copy_(hidden(4, D).roll(turn, 0))
        position += 4
        graph.replay()
        expected = GPU.sample(head, rows, seed=4, position=position, samples=6, outputs=("logit",))
        torch.cuda.synchronize()
        assert torch.equal(out.tokens, expected.tokens), turn


def test_a_sample_that_is_another_s_is_seen():
    """What the comparison above would say if rows and samples were mixed up."""
    one, two = both(weights(V, D), hidden(4, D), samples=4, seed=3)
    assert torch.equal(one.tokens, two.tokens) and not torch.equal(one.tokens.T, two.tokens)
