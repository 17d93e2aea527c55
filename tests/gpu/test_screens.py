"""Screens on the device: their bytes are the CPU's, and every token is that of the call without one, bit for bit."""
import numpy as np
import pytest

from draws import BF16, CPU, STREAM, forced, fs, torch


def opened(tile=""):
    """A context that reads screens of heads as small as these too, and for many rows, where W is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHSAMPLING_SCREEN_ROWS", "1000")
        return forced(tile) if tile else fs.Context("cuda", cuda_stream=STREAM.cuda_stream)


GPU = opened()


HEADS = [dict(round_to="bf16"), dict(softcap=30.0), dict(scale=0.3, post_scale=2.0),
         dict(round_to="f16", softcap=5.0, scale=2.0), dict(vocab=31990)]


def weights(V, D, seed=0, outliers=0.05):
    """[V, D] bf16, rows of norm 1 or so; some have one large weight."""
    g = torch.Generator("cuda").manual_seed(seed)
    w = torch.randn(V, D, device="cuda", generator=g) / D**0.5
    w *= 1 + 0.15 * torch.randn(V, 1, device="cuda", generator=g)
    rows = (torch.rand(V, device="cuda", generator=g) < outliers).nonzero()[:, 0]
    w[rows, torch.randint(0, D, (len(rows),), device="cuda", generator=g)] *= 6
    return w.to(BF16)


def hidden(w, B, seed=0, size=100.0, picked=20):
    """Rows of about this norm that make some tokens likely."""
    g, picked = torch.Generator("cuda").manual_seed(seed + 1), min(picked, len(w))
    h = torch.randn(B, w.shape[1], device="cuda", generator=g)
    h *= size / h.norm(dim=1, keepdim=True)
    for b in range(B):
        at = torch.randperm(len(w), device="cuda", generator=g)[:picked]
        h[b] += (torch.rand(picked, device="cuda", generator=g) * size / 15) @ w[at].float()
    return h.to(BF16)


def screen_of(w, bits, **more):
    return GPU.screen(fs.Head(w), bits, seed=11, **more)


def check(w, h, screen, context=GPU, head={}, rounds=3, outputs=("noisy_logit", "logit"), **rules):
    """Token, status and outputs of the same calls with and without the screen; that W was read twice is no
    difference."""
    plain, screened = fs.Head(w, **head), fs.Head(w, screen=screen, **head)
    for seed in range(rounds):
        call = dict(seed=seed, position=100 * seed, outputs=outputs, **rules)
        one, two = context.sample(screened, h, **call), context.sample(plain, h, **call)
        for name in ("tokens", "status", *outputs):
            a, b = getattr(one, name).cpu().numpy(), getattr(two, name).cpu().numpy()
            if name == "status":
                a, b = a & ~int(fs.Row.FALLBACK), b & ~int(fs.Row.FALLBACK)
            assert np.array_equal(a, b, equal_nan=name in ("noisy_logit", "logit")), (name, a[a != b][:4],
                                                                                      b[a != b][:4])
    return one


@pytest.fixture(params=[8, 4], ids=["8bits", "4bits"])
def bits(request):
    return request.param


@pytest.mark.parametrize("V, D, dtype", [(1000, 64, "bf16"), (37, 200, "bf16"), (4099, 520, "bf16"),
                                         (513, 1024, "f16"), (300, 136, "f32")])
def test_a_screen_is_the_one_the_cpu_makes(bits, V, D, dtype):
    w = weights(V, D)
    w = w if dtype == "bf16" else w.to(torch.float16 if dtype == "f16" else torch.float32)
    here, there = GPU.screen(fs.Head(w), bits, seed=3), CPU.screen(fs.Head(w.cpu()), bits, seed=3)
    assert np.array_equal(here.cpu().numpy(), there)


@pytest.mark.parametrize("V, D", [(151936, 1024), (20000, 4096), (50257, 768), (8192, 8192), (4099, 520), (130, 64),
                                  (16, 128), (1, 8)])
@pytest.mark.parametrize("B", [1, 2, 8, 9, 16, 17, 31, 32])
def test_tokens_are_those_of_the_weights(bits, V, D, B):
    w = weights(V, D)
    check(w, hidden(w, B), screen_of(w, bits))


@pytest.mark.parametrize("B", [8, 24])
@pytest.mark.parametrize("V", [4096, 32000, 100000])
def test_tokens_alone(bits, V, B):
    w = weights(V, 1024)
    check(w, hidden(w, B), screen_of(w, bits), outputs=(), rounds=8)


@pytest.mark.parametrize("B", [16, 32])
@pytest.mark.parametrize("T", [0.0, 0.1, 0.7, 1.5, 5.0])
def test_every_temperature(bits, T, B):
    w = weights(32000, 1024)
    check(w, hidden(w, B), screen_of(w, bits), temperature=torch.full((B,), T, device="cuda"))


@pytest.mark.parametrize("B", [16, 32])
def test_rows_of_every_kind_side_by_side(bits, B):
    w = weights(32000, 1024)
    h = hidden(w, B)
    h[3] = 0
    h[4] *= 10
    h[5] *= 0.01
    h[6, 17] = float("inf")
    h[7, 3] = float("nan")
    h[8] *= 1e30
    T = torch.tensor([0, 1, 0.5, 1, 1, 1, 1, 1, 0, 2, 3, 100, 1e-3, 1, 1, 0], dtype=torch.float32, device="cuda")
    check(w, h, screen_of(w, bits), temperature=T.repeat(B // 16))
    # A row that is not finite opens the call, so the screen decides the others only where it is not there.
    h[6:9] = hidden(w, 3, seed=5)
    check(w, h, screen_of(w, bits), temperature=T.repeat(B // 16))


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("B", [12, 20])
def test_what_a_head_does_to_its_logits(bits, head, biased, B):
    w = weights(32000, 512)
    if biased:
        head = dict(head, bias=torch.randn(32000, device="cuda", generator=torch.Generator("cuda").manual_seed(9)))
    check(w, hidden(w, B), screen_of(w, bits), head=head)


@pytest.mark.parametrize("B", [8, 20])
def test_weights_that_are_no_numbers(bits, B):
    w = weights(5000, 256)
    w[77, 3], w[1234, 200], w[4000, 0] = float("nan"), float("inf"), float("-inf")
    check(w, hidden(w, B, picked=0), screen_of(w, bits))
    w[100:4000, 5] = float("inf")  # more than a list holds
    check(w, hidden(w, B, picked=0), screen_of(w, bits))


def test_equal_weights_give_the_lowest_token(bits):
    w = weights(4096, 256)
    w[1::2] = w[::2]
    for B in (16, 32):
        check(w, hidden(w, B), screen_of(w, bits), temperature=torch.zeros(B, device="cuda"))


def test_rows_too_flat_for_a_list_take_the_pass_over_the_weights(bits):
    w = weights(32000, 1024)
    w[:, :] = w[:1]  # all tokens alike: nobody can be told apart
    check(w, hidden(w, 4), screen_of(w, bits))
    for B in (16, 32):
        h = hidden(w, B)
        h[::2] = 0
        check(weights(32000, 1024), h, screen_of(weights(32000, 1024), bits))


@pytest.mark.parametrize("B", [1, 8, 16, 32])
def test_a_row_whose_list_is_on_its_way_to_be_too_long_ends_the_pass(bits, B):
    """Columns that one step does not hold beside the others: 4 bits tell nobody apart, and W decides after a tile."""
    w = weights(100000, 1024)
    w[:, :16] *= 40
    check(w, hidden(w, B, picked=0), screen_of(w, bits))


@pytest.mark.parametrize("B", [33, 64, 100])
def test_more_rows_than_a_pass_takes(bits, B):
    w = weights(20000, 512)
    check(w, hidden(w, B), screen_of(w, bits))


def test_calls_a_screen_does_not_serve_read_the_weights(bits):
    w = weights(20000, 512)
    h, screen = hidden(w, 8), screen_of(w, bits)
    for rules in (dict(top_k=50), dict(top_p=0.9), dict(min_p=0.05)):
        check(w, h, screen, **rules)
    one = GPU.sample(fs.Head(w, screen=screen), h, seed=1, outputs=("logprob", "log_z"))
    two = GPU.sample(fs.Head(w), h, seed=1, outputs=("logprob", "log_z"))
    for name in ("tokens", "logprob", "log_z"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.parametrize("tile", ["", "portable"])
@pytest.mark.parametrize("B, n", [(1, 2), (1, 16), (2, 3), (3, 7), (4, 8), (1, 33), (5, 20)])
def test_several_samples_of_a_row(bits, B, n, tile):
    """They are beside each other in a pass, and may be in several."""
    w, context = weights(32000, 1024), opened(tile) if tile else GPU
    h, screen, T = hidden(w, B), screen_of(w, bits), torch.linspace(0.5, 1.5, B, device="cuda")
    one = check(w, h, screen, context=context, outputs=("noisy_logit",), samples=n, temperature=T)
    assert one.tokens.shape == (B, n)
    T[B // 2] = 0
    check(w, h, screen, context=context, outputs=(), samples=n, temperature=T)
    check(w, h, screen, context=context, outputs=("logit",), samples=n)  # which read W
    check(w, h, screen, context=context, outputs=("noisy_logit",), samples=n, top_k=20)
    h[0, 3] = float("nan")
    check(w, h, screen, context=context, outputs=("noisy_logit",), samples=n)


def test_several_samples_of_weights_that_are_no_numbers(bits):
    w = weights(5000, 256)
    w[77, 3], w[1234, 200], w[4000, 0] = float("nan"), float("inf"), float("-inf")
    check(w, hidden(w, 3, picked=0), screen_of(w, bits), outputs=("noisy_logit",), samples=5)


def test_portable_kernels_draw_the_same(bits):
    w = weights(20000, 512)
    context = opened("portable")
    check(w, hidden(w, 8), screen_of(w, bits), context=context)
    context.close()


@pytest.mark.parametrize("B, n", [(8, 1), (32, 1), (3, 6)])
def test_a_graph_replays_with_other_rows(bits, B, n):
    w = weights(32000, 1024)
    rows, position = hidden(w, B).clone(), torch.arange(B, dtype=torch.int64, device="cuda")
    screened, plain = fs.Head(w, screen=screen_of(w, bits), constant=True), fs.Head(w)
    batch = fs.Batch(screened, rows, seed=4, position=position, samples=n)
    out = fs.Result(batch)
    GPU.sample(screened, batch, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        GPU.sample(screened, batch, out=out)
    for turn in range(5):
        rows.copy_(hidden(w, B, seed=turn, size=0.01 if turn == 3 else 100.0))
        position += B
        graph.replay()
        expected = GPU.sample(plain, rows, seed=4, position=position, samples=n)
        torch.cuda.synchronize()
        assert torch.equal(out.tokens, expected.tokens), turn


def test_a_capture_without_a_call_before_is_refused(bits):
    w = weights(2000, 256)
    screen = screen_of(w, bits).clone()
    head, rows = fs.Head(w, screen=screen), hidden(w, 2)
    batch = fs.Batch(head, rows, seed=1)
    out = fs.Result(batch)
    with pytest.raises(fs.Error, match="being captured.*make one call with head.screen before"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=STREAM):
            GPU.sample(head, batch, out=out)
    torch.cuda.synchronize()


def test_memory_of_a_screen_that_holds_another_now(bits):
    """Of the same weights, in other bits: what is remembered of the address is not that."""
    w = weights(20000, 512)
    head, rows = fs.Head(w), hidden(w, 8)
    first, second = GPU.screen(head, bits, seed=1), GPU.screen(head, 12 - bits, seed=1)
    memory = torch.zeros(max(len(first), len(second)), dtype=torch.uint8, device="cuda")
    for made in (first, second, first):
        memory[:len(made)] = made
        check(w, rows, memory[:len(made)])


def test_what_is_no_screen_of_these_weights_is_refused(bits):
    w = weights(2000, 256)
    screen, rows = screen_of(w, bits), hidden(w, 2)
    with pytest.raises(fs.Error, match="made of other weights"):
        GPU.sample(fs.Head(weights(2000, 256, seed=1), screen=screen), rows)
    with pytest.raises(fs.Error, match=r"is of \[2000, 256\] weights"):
        GPU.sample(fs.Head(w[:1000], screen=screen), rows)
    with pytest.raises(fs.Error, match="is no screen"):
        GPU.sample(fs.Head(w, screen=torch.zeros_like(screen)), rows)
    with pytest.raises(ValueError, match="on cpu, expected uint8"):
        fs.Head(w, screen=screen.cpu())


def test_a_screen_of_other_rows_or_other_bytes_is_refused(bits):
    """One row that training has changed is seen by the first call, one weight by check_screen, a byte by both."""
    w, rows = weights(20000, 512), hidden(weights(20000, 512), 4)
    screen = screen_of(w, bits)
    for row in (0, 7777, 19999):
        other = w.clone()
        other[row] += 0.25
        with pytest.raises(fs.Error, match="made of other weights: some of rows"):
            opened().sample(fs.Head(other, screen=screen), rows)
    other = w.clone()
    other[1234, 77] += 1.0
    GPU.check_screen(fs.Head(w, screen=screen))
    with pytest.raises(fs.Error, match="rows 1232 to 1247 differ"):
        GPU.check_screen(fs.Head(other, screen=screen))
    damaged = screen.clone()
    damaged[len(damaged) // 2] ^= 8
    for call in (GPU.check_screen, lambda head: GPU.sample(head, rows)):
        with pytest.raises(fs.Error, match="was changed: the checksum of its body"):
            call(fs.Head(w, screen=damaged))


def test_screens_of_one_context_have_histories_of_their_own(bits):
    """Two heads whose screens decide nothing, in turn, and a third that is served all the while: how often W is read a
    token shows that only W knows of."""
    context, heads, rows, known = opened(), [], [], []
    for i in range(3):
        w = weights(20000, 512, seed=20 + i)
        h = hidden(w, 1)
        heads.append(fs.Head(w, screen=GPU.screen(fs.Head(w), bits, seed=23)))
        rows.append(h)
        context.sample(heads[i], h)
        known.append(int((h.float() @ w.float().T).amax(0).argmin()))  # in nobody's list
        w[known[i]] = h[0] * (1000 / h[0].float().square().sum())

    def reads_weights(i):
        return int(context.sample(heads[i], rows[i]).tokens[0]) == known[i]

    bad = torch.full_like(rows[0], float("nan"))
    assert not any(reads_weights(i) for i in range(3))
    for i in range(2):
        context.sample(heads[i], bad)
    assert reads_weights(0) and reads_weights(1) and not reads_weights(2)
    assert not any(reads_weights(i) for i in range(3))
    torch.cuda.synchronize()
    context.close()


def test_a_screen_that_is_written_over_decides_nothing(bits):
    w = weights(20000, 512)
    screen, rows = screen_of(w, bits), hidden(w, 8)
    check(w, rows, screen)
    screen.copy_(GPU.screen(fs.Head(weights(20000, 512, seed=5)), bits, seed=12))
    check(w, rows, screen)  # its header is not the one that the context remembers, so W is read
    others = [screen_of(w, bits) for _ in range(8)]  # as many as it remembers
    for other in others:
        GPU.sample(fs.Head(w, screen=other), rows)
    with pytest.raises(fs.Error, match="made of other weights"):
        GPU.sample(fs.Head(w, screen=screen), rows)


def test_weights_that_are_written_over_are_noticed(bits):
    """The screen is that of other weights, and nobody has said so: what is settled is not where it should be."""
    w = weights(20000, 512)
    screen, rows = screen_of(w, bits), hidden(w, 8)
    check(w, rows, screen)
    w.copy_(weights(20000, 512, seed=7))
    rows = hidden(w, 8)
    check(w, rows, screen)


@pytest.mark.parametrize("tile", ["", "portable"])
@pytest.mark.parametrize("outputs", [(), ("noisy_logit", "logit")], ids=["tokens", "scores"])
@pytest.mark.parametrize("V, B, n", [(32000, 1, 1), (100000, 1, 1), (100000, 32, 1), (32000, 2, 3), (32000, 3, 9)])
def test_it_is_the_screen_that_decides(bits, V, B, n, outputs, tile):
    """Whatever kernel may follow: a token that only W knows of, since nobody has told the screen, is not drawn."""
    if n > 1 and "logit" in outputs:
        outputs = ("noisy_logit",)  # logits of several samples are W's
    w = weights(V, 1024)
    h, screen, context = hidden(w, B), screen_of(w, bits), opened(tile)  # whose screens have not failed before
    call = dict(temperature=torch.zeros(B, device="cuda"), outputs=outputs, samples=n)
    plain, screened = fs.Head(w), fs.Head(w, screen=screen)
    before = context.sample(screened, h, **call).tokens.clone()
    assert torch.equal(before, context.sample(plain, h, **call).tokens)
    last = int((h.float() @ w.float().T).amax(0).argmin())  # in nobody's list
    w[last] = h[0] * (1000 / h[0].float().square().sum())
    assert int(context.sample(plain, h, **call).tokens.flatten()[0]) == last
    assert torch.equal(before, context.sample(screened, h, **call).tokens)
    torch.cuda.synchronize()
    context.close()


@pytest.mark.parametrize("captured", [False, True], ids=["called", "captured"])
@pytest.mark.parametrize("top_k, B", [(0, 1), (0, 8), (0, 16), (0, 32), (0, 70), (20, 1), (20, 16)])
def test_calls_go_to_the_weights_at_once_where_a_screen_keeps_failing(bits, B, top_k, captured):
    """One call behind the first failure, 31 behind each further one. Whether W is read a token shows that only W knows of."""
    context, w, more = opened(), weights(32000, 1024), {}
    good, rows = hidden(w, B), torch.empty(B, 1024, dtype=BF16, device="cuda")
    if top_k:
        more["top_k"] = torch.full((B,), top_k, dtype=torch.int32, device="cuda")
    head = fs.Head(w, screen=GPU.screen(fs.Head(w), bits, seed=23))
    batch = fs.Batch(head, rows, **more)
    out = fs.Result(batch)
    rows.copy_(good)
    context.sample(head, batch, out=out)  # the screen is compared with W as it is
    last = int((good.float() @ w.float().T).amax(0).argmin())  # in nobody's list
    w[last] = good[0] * (1000 / good[0].float().square().sum())
    bad = good.clone()
    bad[0] = float("nan")  # nothing is known of such a row's logits
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=STREAM):
            context.sample(head, batch, out=out)

    def reads_weights(h):
        rows.copy_(h)
        if captured:
            graph.replay()
        else:
            context.sample(head, batch, out=out)
        return int(out.tokens[0]) == last

    assert not reads_weights(good)
    for skipped in (1, 31, 31):
        reads_weights(bad)
        assert all(reads_weights(good) for _ in range(skipped))
    for _ in range(2):
        assert not reads_weights(good)  # and now it decides, so the next failure is the first
    reads_weights(bad)
    assert reads_weights(good) and not reads_weights(good)
    torch.cuda.synchronize()
    context.close()


def test_bounds_that_are_broken_open_the_row():
    """Scales an eighth of what they are: what is settled is not where it should be, and W decides."""
    w = weights(32000, 1024)
    screen = screen_of(w, 4)
    check(w, hidden(w, 16), screen)  # its bytes are compared with its checksum once
    records = screen[128:].view(2000, -1)[:, 128:].view(2000, 8, 1024 + 64)
    tails = records[:, :, 1024:].contiguous().view(torch.bfloat16)
    records[:, :, 1024:] = (tails / 8).view(torch.uint8)
    for B in (16, 32):
        check(w, hidden(w, B), screen, rounds=20)
