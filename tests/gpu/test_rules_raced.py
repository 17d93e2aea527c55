"""Rows that are drawn by the pass which keeps their logits, and then looked at once (src/cuda/rows/raced.cu): top-p
alone, ranks, the best tokens. Equal to the CPU's, whether the winner stays, the nucleus races again, or the row is left
to a team of CTAs. Weights are small integers over powers of two, so that both sides have the same logits. Rows with other cuts beside them, whose
candidates the pass lists: test_rules_listed.py."""
import numpy as np
import pytest
import torch

from draws import CPU, STREAM
import flashsampling as fs
from test_rules_listed import CHANGED, context, weights

SHAPES = [(1, 151936, 64), (5, 1000, 64), (7, 40003, 72), (64, 20011, 64), (130, 9000, 64), (300, 5001, 64)]
ALL = ("logprob", "log_z", "rank", "max_logit", "noisy_logit", "logit")


def rules(rng, rows, most=1.7):
    pick = lambda *values: torch.from_numpy(rng.choice(values, rows).astype(np.float32))
    return dict(temperature=pick(0.0, 0.3, 1.0, 1.0, most), top_p=pick(1.0, 0.9011, 0.5123, 0.9507, 0.0, 0.2))


def both(ours, W, H, values, seed, head=None, **asked):
    """Results of the GPU and the CPU, compared."""
    head = head or {}
    moved = {name: value.cuda() for name, value in values.items()}
    got = ours.sample(fs.Head(W.cuda(), **head), H.cuda(), seed=seed, **moved, **asked)
    want = CPU.sample(fs.Head(W, **head), H, seed=seed, on_error="status", **values, **asked)
    torch.cuda.synchronize()
    found, wanted = ({k: v.cpu().numpy() for k, v in r.arrays().items()} for r in (got, want))
    for status in (found, wanted):
        status["status"] = status["status"].view(np.uint32) & CHANGED
    exact = {"tokens", "rank", "top_token", "status"} & set(wanted)
    for name in exact:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    for name in set(wanted) - exact:
        np.testing.assert_allclose(found[name], wanted[name], rtol=3e-6, atol=1e-5, err_msg=name)
    return found


@pytest.mark.parametrize("room", [None, 0, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "%d-%dx%d" % s)
def test_top_p_alone(shape, dtype, room, monkeypatch):
    """Of fine logits and of many equal ones, ties kept or not; lists of any room."""
    rows, vocab, dim = shape
    ours = context(room, monkeypatch)
    for seed, flags in enumerate(({}, dict(keep_ties=True), {}, dict(rank_of_ties=True))):
        rng = np.random.default_rng([rows, seed])
        W, H = weights(rng, rows, vocab, dim, dtype, fine=seed % 2 == 0)
        both(ours, W, H, rules(rng, rows), seed, **flags)
        both(ours, W, H, rules(rng, rows), seed, logits_mode="processed", outputs=ALL, top=20, exact_rank=True, **flags)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "%d-%dx%d" % s)
@pytest.mark.parametrize("top", [0, 1, 20, 64, 65])
def test_ranks_and_the_best(shape, top, monkeypatch):
    """Raw and processed, of heads that round and scale their logits too; more than the kernel sorts go to teams."""
    rows, vocab, dim = shape
    ours = context(None, monkeypatch)
    for seed, head in enumerate(({}, dict(round_to="bf16"), dict(scale=0.5, post_scale=4.0))):
        rng = np.random.default_rng([rows, seed, top])
        W, H = weights(rng, rows, vocab, dim, torch.bfloat16, fine=seed % 2 == 0)
        values = dict(temperature=rules(rng, rows)["temperature"])
        outputs = ("logprob",) if top and seed == 1 else ALL
        both(ours, W, H, values, seed, head, logits_mode=("raw", "processed")[seed % 2], outputs=outputs, top=top,
             exact_rank=True, rank_of_ties=seed == 2)


def test_winners_stay_and_do_not(monkeypatch):
    """In this test's rows both happen often, as plain draws of the same noise show; and nuclei are short and long."""
    rows, vocab = 256, 40000
    rng = np.random.default_rng(5)
    W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
    ours = context(None, monkeypatch)
    cut = both(ours, W, H, dict(top_p=torch.full((rows,), 0.7)), 1)["tokens"]
    plain = both(ours, W, H, {}, 1)["tokens"]
    assert 0.2 < (cut == plain).mean() < 0.9


ODD = {
    "flat": lambda id: 0.0 * id, "steps": lambda id: id % 128 / 16.0,
    "one NaN": lambda id: np.where(id == 77, np.nan, 1.0), "one token": lambda id: np.where(id == 9, 2.0, -np.inf),
    "two +inf": lambda id: np.where((id == 5) | (id == 9000), np.inf, 1.0),
    "huge": lambda id: id % 64 * 1000.0, "far below": lambda id: -(id % 64 + 1.0) * 1000.0,
    "a hot tile": lambda id: np.where((id >= 128) & (id < 256), 24.0, 0.0),
}


@pytest.mark.parametrize("logits", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("top_p", [0.0, 0.5, 0.999])
def test_odd_rows(logits, top_p, monkeypatch):
    rows, vocab = 9, 20011
    W = torch.zeros(vocab, 64, dtype=torch.bfloat16)
    W[:, 0] = torch.from_numpy(logits(np.arange(vocab)).astype(np.float32))
    H = torch.zeros(rows, 64, dtype=torch.bfloat16)
    H[:, 0] = 1.0
    ours = context(None, monkeypatch)
    for temperature in (1e-3, 0.3, 1.0, 100.0):
        values = dict(top_p=torch.full((rows,), top_p), temperature=torch.full((rows,), temperature))
        both(ours, W, H, values, 3, outputs=("rank",), top=3, exact_rank=True)


def test_a_small_budget_takes_rows_in_turn(monkeypatch):
    """As many passes as the logits of their rows need; the same tokens."""
    rows, vocab = 70, 20011
    rng = np.random.default_rng(6)
    W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
    values = dict(top_p=torch.full((rows,), 0.9))
    small = fs.Context("cuda", cuda_stream=STREAM.cuda_stream, fallback_bytes=20 * 4 * 20032)
    want = both(context(None, monkeypatch), W, H, values, 2, outputs=("rank",), top=5, exact_rank=True)
    got = both(small, W, H, values, 2, outputs=("rank",), top=5, exact_rank=True)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def test_memory_for_many_rows_is_enough_for_fewer():
    """Fewer rows may have their logits kept, where those of more have no room: what is said to be enough is."""
    rows, vocab = 300, 60000
    rng = np.random.default_rng(8)
    W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
    head, H = fs.Head(W.cuda()), H.cuda()
    cuts = dict(top_p=torch.full((rows,), 0.9, device="cuda"), top_k=torch.arange(rows, device="cuda").int() % 3 * 20)
    few = lambda n: {name: value[:n].contiguous() for name, value in cuts.items()}
    for budget in (100, 200, 400):  # rows
        ours = fs.Context("cuda", cuda_stream=STREAM.cuda_stream, fallback_bytes=budget * 4 * 60032)
        whole = fs.Batch(head, H, **cuts)
        out = fs.Result(whole, ("logprob", "rank"), top=20)
        ours.set_work(ours.work_size(head, whole, out=out).max_bytes)
        for n in (1, 17, 100, 101, 200, 256, 300):
            want = CPU.sample(fs.Head(W), H[:n].cpu(), seed=4, **{k: v.cpu() for k, v in few(n).items()})
            got = ours.sample(head, H[:n], seed=4, **few(n))
            assert torch.equal(got.tokens.cpu(), want.tokens), (budget, n)
            batch = fs.Batch(head, H[:n], **few(n))
            ours.sample(head, batch, out=fs.Result(batch, ("logprob", "rank"), top=20))
        ours.set_work(0)
        ours.close()
