"""Rows that a pass ends whose candidates it lists, and whose masks, edits and penalties it knows (sm90 kernels, aligned
weights): equal to the CPU's, whether the pass decides or leaves rows to a second one. Weights are small integers over
powers of two, so that both sides have the same logits, and many of them are equal."""
import numpy as np
import pytest
import torch

from draws import CPU, STREAM
import flashsampling as fs

SHAPES = [(1, 300, 64), (3, 5003, 64), (17, 40000, 128), (64, 20011, 64), (100, 9000, 72), (150, 9000, 64),
          (200, 16400, 64), (256, 17000, 64), (300, 9000, 64), (330, 5003, 64)]
FALLBACK, CHANGED = fs.Row.FALLBACK, ~np.uint32(fs.Row.FALLBACK)


def context(room, monkeypatch):
    if room is None:
        monkeypatch.delenv("FLASHSAMPLING_CUDA_LIST", raising=False)
    else:
        monkeypatch.setenv("FLASHSAMPLING_CUDA_LIST", str(room))
    return fs.Context("cuda", cuda_stream=STREAM.cuda_stream)


def weights(rng, rows, vocab, dim, dtype, fine):
    """Logits of a standard deviation of about 3; fine: few of them are equal."""
    W = rng.integers(-8, 9, (vocab, dim)) / (16.0 if fine else 8.0 * 2 ** np.ceil(np.log2(dim / 16) / 2))
    H = rng.integers(-4, 5, (rows, dim)) / 4.0
    if fine:  # one column more says which id it is: every partial sum is still a float
        W[:, 0] = rng.permutation(vocab) % 256 / 128.0
        H[:, 0] = 1.0
    return (torch.from_numpy(a.astype(np.float32)).to(dtype) for a in (W, H))


def rules(rng, rows):
    """Rows of every kind side by side: plain, greedy, k, p after k, min-p, wide."""
    values = dict(temperature=rng.choice([0.0, 0.3, 1.0, 1.0, 1.7], rows),
                  top_k=rng.choice([0, 1, 2, 20, 50, 100, 131, 400], rows),
                  top_p=rng.choice([1.0, 1.0, 0.9011, 0.5123], rows),
                  min_p=rng.choice([0.0, 0.0, 0.0513, 0.3, 1.0], rows))
    kinds = dict(temperature=np.float32, top_k=np.int32, top_p=np.float32, min_p=np.float32)
    return {name: torch.from_numpy(value.astype(kinds[name])) for name, value in values.items()}


def on_device(value, counts):
    """An array there; or lists of (token, value) per row as arrays: offsets, tokens, values."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    flat = [entry for line in value for entry in line]
    kind = torch.int32 if all(isinstance(v, int) for _, v in flat) and counts else torch.float32
    offsets = np.cumsum([0] + [len(line) for line in value])
    return (torch.from_numpy(offsets).cuda(), torch.tensor([t for t, _ in flat], dtype=torch.int32).cuda(),
            torch.tensor([v for _, v in flat], dtype=kind).cuda())


def compare(ours, W, H, values, logits, outputs, seed, **flags):
    """Which rows took a second pass."""
    moved = {name: on_device(value, name == "count_list") for name, value in values.items()}
    got = ours.sample(fs.Head(W.cuda()), H.cuda(), seed=seed, logits_mode=logits, outputs=outputs, **moved, **flags)
    want = CPU.sample(fs.Head(W), H, seed=seed, logits_mode=logits, outputs=outputs, on_error="status", **values,
                      **flags)
    torch.cuda.synchronize()
    status, expected = (r.status.cpu().numpy().view(np.uint32) for r in (got, want))
    wrong = np.flatnonzero((got.tokens.cpu() != want.tokens).any(1).numpy())
    first = ["%s = %s" % (name, str(value[wrong[0]])[:80]) for name, value in values.items()] if len(wrong) else []
    assert len(wrong) == 0, "%d rows differ, the first %d: %s, %s for %s" % (
        len(wrong), wrong[0], ", ".join(first), got.tokens[wrong[0]].item(), want.tokens[wrong[0]].item())
    np.testing.assert_array_equal(status & CHANGED, expected & CHANGED)
    for name in outputs:
        np.testing.assert_allclose(getattr(got, name).cpu().numpy(), getattr(want, name).numpy(), rtol=3e-6, atol=1e-5,
                                   err_msg=name)
    return (status & FALLBACK) != 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "%d-%dx%d" % s)
def test_rows_of_every_kind(shape, dtype, monkeypatch):
    rows, vocab, dim = shape
    ours = context(None, monkeypatch)
    for seed, flags in enumerate(({}, dict(keep_ties=True), dict(min_p_last=True), dict(cut_before_temperature=True))):
        rng = np.random.default_rng([rows, seed])
        W, H = weights(rng, rows, vocab, dim, dtype, fine=seed % 2 == 0)
        compare(ours, W, H, rules(rng, rows), "raw", (), seed, **flags)
    compare(ours, W, H, rules(rng, rows), "processed", ("noisy_logit", "logit", "max_logit"), 7)
    compare(ours, W, H, rules(rng, rows), "raw", ("logprob", "log_z"), 8)


def lines(rng, rows, vocab, values, most):
    """Per row a list of (token, value): empty ones, long ones, some with a token twice."""
    counts = rng.choice([0, 1, 5, most], rows)
    return [[(int(t), values[i % len(values)]) for i, t in enumerate(rng.integers(0, vocab, n))] for n in counts]


def touched(rng, rows, vocab, which):
    """What is done to tokens, of the kinds whose letters are given: masks, edits, padded or listed counts, seen."""
    inf, some = float("inf"), lambda share: torch.from_numpy(fs.pack_bits(rng.random((rows, vocab)) < share))
    values = {}
    if "m" in which:
        values.update(allow=some(rng.choice([0.5, 0.002])),
                      allow_index=torch.from_numpy(rng.integers(-1, rows, rows).astype(np.int32)))
    if "e" in which:
        values["edits"] = lines(rng, rows, vocab, (-inf, 1.25, -2.0, 0.5, 3.0, -inf, 0.0), 700)
        values["edits"][0] = [(5, 1e9), (5, -1e9), (6, float("nan"))][: 1 + rows % 3]
    if "b" in which:  # lowers, as bans do
        values["edits"] = lines(rng, rows, vocab, (-inf, -2.0, -0.25), 1500)
    if set("sdl") & set(which):
        pick = lambda *choice: torch.from_numpy(rng.choice(choice, rows).astype(np.float32))
        values.update(repetition=pick(1.0, 1.25, 2.0, 1.5, 0.75), frequency=pick(0.0, 0.5, 0.25, 1.0, -0.5),
                      presence=pick(0.0, 0.5, 1.0, 2.0, 2.0))
    if "s" in which:
        values["seen"] = some(0.2)
    if "d" in which:
        values["counts"] = torch.from_numpy(np.maximum(rng.integers(-9, 4, (rows, vocab)), -1).astype(np.int32))
    if "l" in which:
        values["count_list"] = lines(rng, rows, vocab, (1, 2, 0, 3, -1), 900)
    return values


@pytest.mark.parametrize("which", ["m", "e", "b", "s", "d", "l", "ms", "med", "bsl", "mesl"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "%d-%dx%d" % s)
def test_masks_edits_and_penalties(shape, which, monkeypatch):
    """Without cuts, and with; rounded logits too. Where nothing is cut, raised by a penalty or NaN, no row of masks and
    bans takes a second pass."""
    rows, vocab, dim = shape
    ours = context(None, monkeypatch)
    for seed in range(4):
        rng = np.random.default_rng([rows, seed, len(which)])
        W, H = weights(rng, rows, vocab, dim, torch.bfloat16, fine=seed % 2 == 0)
        values = dict(touched(rng, rows, vocab, which), **rules(rng, rows))
        if seed < 2:
            values = {k: v for k, v in values.items() if k not in ("top_k", "top_p", "min_p")}
        second = compare(ours, W, H, values, "raw", ("noisy_logit",), seed,
                         **dict(edits_last=True) if seed == 3 else {})
        assert seed >= 2 or not set(which) <= set("mb") or not second.any()
        compare(ours, W, H, values, "processed", ("logit", "logprob"), seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_flat_rows_with_penalties(temperature, monkeypatch):
    """All tokens equal, most of them penalised, the lowest ones banned: the rest tie or race."""
    rows, vocab = 70, 20011
    W, H = torch.zeros(vocab, 64, dtype=torch.bfloat16), torch.zeros(rows, 64, dtype=torch.bfloat16)
    rng = np.random.default_rng(3)
    values = dict(temperature=torch.full((rows,), temperature), presence=torch.full((rows,), 1.0),
                  counts=torch.from_numpy((rng.random((rows, vocab)) < 0.9).astype(np.int32)),
                  edits=[[(t, -float("inf")) for t in range(b)] + [(19000 + b, 0.25)] * (b % 2) for b in range(rows)])
    compare(context(None, monkeypatch), W, H, values, "raw", (), 5)


def test_entries_that_are_no_tokens(monkeypatch):
    """And lists too long for a table: such rows have their logits stored, and say what the CPU says."""
    rows, vocab = 9, 9000
    rng = np.random.default_rng(4)
    W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
    edits = [[(int(t), -1.0) for t in rng.integers(0, vocab, n)] for n in (0, 10, 2048, 2049, 4000, 1, 1, 1, 1)]
    edits[5], edits[6] = [(-1, 1.0)], [(vocab, 1.0)]
    status = compare(context(None, monkeypatch), W, H, dict(edits=edits), "raw", (), 6)
    assert list(status) == [False] * 3 + [True] * 4 + [False] * 2


@pytest.mark.parametrize("room", [0, 3, 60])
@pytest.mark.parametrize("rows", [1, 40, 257])
def test_lists_that_are_too_short_leave_rows_to_a_second_pass(rows, room, monkeypatch):
    rng = np.random.default_rng(rows)
    W, H = weights(rng, rows, 9000, 64, torch.bfloat16, fine=True)
    cut = dict(top_k=torch.full((rows,), 50, dtype=torch.int32), temperature=torch.full((rows,), 0.9))
    second = compare(context(room, monkeypatch), W, H, cut, "raw", ("logit",), 3)
    assert second.all() if room < 50 else True
    assert not compare(context(None, monkeypatch), W, H, cut, "raw", ("logit",), 3).any()
    compare(context(room, monkeypatch), W, H, rules(rng, rows), "raw", (), 4)


@pytest.mark.parametrize("rows", [7, 64, 250])
@pytest.mark.parametrize("allowed", [2, 20, 60])
def test_masks_that_leave_fewer_tokens_than_tiles(allowed, rows, monkeypatch):
    """Then there is no floor, and all that is allowed is a candidate; it races too, those of small logits and much noise
    as well, which here win often."""
    ours, vocab = context(None, monkeypatch), 60000
    for seed in range(6):
        rng = np.random.default_rng([rows, allowed, seed])
        W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
        mask = np.zeros((rows, vocab), bool)
        np.put_along_axis(mask, np.stack([rng.choice(vocab, allowed, replace=False) for _ in range(rows)]), True, 1)
        values = dict(allow=torch.from_numpy(fs.pack_bits(mask)), temperature=torch.full((rows,), 4.0),
                      top_k=torch.from_numpy(rng.choice([0, 30, 50, 100], rows).astype(np.int32)),
                      min_p=torch.from_numpy(rng.choice([0.0, 1e-9], rows).astype(np.float32)))
        compare(ours, W, H, values, "raw", (), seed)


def test_hot_ids_in_one_tile_overflow_their_segment(monkeypatch):
    """200 of a row's largest tokens are one CTA's, which has room for 128 of a row."""
    W, H = torch.zeros(20000, 64, dtype=torch.bfloat16), torch.zeros(9, 64, dtype=torch.bfloat16)
    for tile in 3, 3 + 132:
        W[128 * tile : 128 * tile + 100, 0] = (torch.arange(100) % 7 + 8).bfloat16()
    H[:, 0] = 1.0
    W[:, 1], H[:, 1] = (torch.arange(20000) % 97 / 64).bfloat16(), 1.0
    k = dict(top_k=torch.tensor([1, 2, 50, 64, 65, 127, 128, 129, 132], dtype=torch.int32))
    compare(context(None, monkeypatch), W, H, k, "raw", ("logit",), 5)


@pytest.mark.parametrize("text", ["-1", "8193", "many", ""])
def test_a_bad_length_of_lists_is_refused(text, monkeypatch):
    with pytest.raises(fs.Error, match="FLASHSAMPLING_CUDA_LIST"):
        context(text, monkeypatch)


def test_graphs_replay_with_other_rules(monkeypatch):
    """Parameters change in device memory between replays, and lists are found anew."""
    rng, ours, rows = np.random.default_rng(1), context(None, monkeypatch), 33
    W, H = weights(rng, rows, 9000, 64, torch.bfloat16, fine=True)
    device = {name: value.cuda() for name, value in rules(rng, rows).items()}
    head, hidden = fs.Head(W.cuda()), H.cuda()
    batch = fs.Batch(head, hidden, seed=11, **device)
    out = fs.Result(batch)
    ours.sample(head, batch, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        ours.sample(head, batch, out=out)
    for turn in range(4):
        values = rules(np.random.default_rng([2, turn]), rows)
        for name, value in values.items():
            device[name].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        want = CPU.sample(fs.Head(W), H, seed=11, **values)
        assert torch.equal(out.tokens.cpu(), want.tokens)


@pytest.mark.parametrize("vocab", [5003, 40000])
def test_several_launches(vocab, monkeypatch):
    """More rows than a launch draws: the next one has other rows, and other CTAs for each."""
    rows = 1100
    ours = context(None, monkeypatch)
    rng = np.random.default_rng(rows)
    W, H = weights(rng, rows, vocab, 64, torch.bfloat16, fine=True)
    for seed in range(2):
        compare(ours, W, H, dict(touched(rng, rows, vocab, "mb"[seed:]), **rules(rng, rows)), "raw", ("noisy_logit",),
                seed)
        compare(ours, W, H, rules(rng, rows), "raw", (), seed)
