"""torch.ops.flashsampling: the same draws, under torch.compile too, and every check torch has for operators."""
import pytest
import torch

import flashsampling as fs
import flashsampling.torch

ops = torch.ops.flashsampling
torch.manual_seed(1)
V, D, B = 300, 32, 7
W = torch.randn(V, D) / 4
H = torch.randn(B, D)
X = H @ W.T
BIAS = torch.randn(V)
EACH = dict(temperature=torch.linspace(0.5, 2, B), top_k=torch.arange(B, dtype=torch.int32) + 20,
            top_p=torch.full((B,), 0.9), min_p=torch.full((B,), 0.01), seed=torch.arange(B) * 977,
            position=torch.arange(B) + 40)
ALL = dict(temperature_all=0.8, top_k_all=40, top_p_all=0.9, min_p_all=0.01, seed_all=9, position_all=4)


def named(rules):
    """The operator's keywords as `sample` has them."""
    return {name.removesuffix("_all"): value for name, value in rules.items()}


@pytest.mark.parametrize("rules", [{}, ALL, EACH, dict(EACH, samples=3), dict(ALL, flags=int(fs.Flag.KEEP_TIES))],
                         ids=["nothing", "numbers", "tensors", "samples", "flags"])
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
def test_operators_draw_what_sample_draws(rules, bias):
    rules = dict({"seed_all": 1}, **rules) if "seed" not in rules else rules
    want = fs.sample(H, W, bias=bias, outputs=["logprob"], **named(rules))
    assert torch.equal(ops.sample(H, W, bias, **rules), want.tokens)
    tokens, logprob, status = ops.sample_logprob(H, W, bias, **rules)
    assert torch.equal(tokens, want.tokens) and torch.equal(logprob, want.logprob) and torch.equal(status, want.status)
    want = fs.sample_logits(X, bias=bias, outputs=["logprob"], **named(rules))
    assert torch.equal(ops.sample_logits(X, bias, **rules), want.tokens)
    tokens, logprob, status = ops.sample_logits_logprob(X, bias, **rules)
    assert torch.equal(tokens, want.tokens) and torch.equal(logprob, want.logprob)


def test_a_call_leaves_nothing_to_the_next():
    """Structures are kept: whatever one call sets, the next must not see."""
    allow = torch.zeros(B, (V + 31) // 32, dtype=torch.int32)
    allow[:, 3] = 1
    plain = ops.sample(H, W, seed_all=3)
    calls = [lambda: ops.sample(H, W, BIAS, **EACH), lambda: ops.sample(H, W, allow=allow),
             lambda: ops.sample(H, W, slot=torch.full((B,), -1)), lambda: ops.sample_logits(X, seed_all=3),
             lambda: ops.sample_logprob(H, W, scale=2.0, softcap=3.0, round_to="bf16", post_scale=2.0, vocab=V - 40),
             lambda: ops.sample(H[:2], W[:50]), lambda: ops.sample(H, W, samples=4, **ALL),
             lambda: ops.sample(torch.randn(B, 2 * D)[:, :D], torch.randn(2 * V, D)[::2])]
    for call in calls:
        call()
        assert torch.equal(ops.sample(H, W, seed_all=3), plain)


def test_the_head_is_described():
    about = dict(scale=0.5, softcap=3.0, post_scale=1.5, round_to="bf16", vocab=V - 9)
    assert torch.equal(ops.sample(H, W, **about, **ALL), fs.sample(H, W, **about, **named(ALL)).tokens)


def test_weights_that_move_are_seen():
    """The head's structure is kept as long as the weights lie as they did."""
    w = W.clone()
    for change in (lambda: w.mul_(-1), lambda: w.set_(torch.randn(V, D)), lambda: w.resize_(V - 10, D)):
        change()
        assert torch.equal(ops.sample(H, w, seed_all=3), fs.sample(H, w, seed=3).tokens)


def test_slots_and_masks():
    slot = torch.tensor([3, 1, -1, 0, 2, 2, 1])
    rules = dict(temperature=torch.tensor([0.5, 1.0, 1.5, 2.0]), seed=torch.arange(4))
    for dtype in (torch.int64, torch.int32):
        want = fs.sample(H, W, slot=slot.to(dtype), **rules).tokens
        assert torch.equal(ops.sample(H, W, slot=slot.to(dtype), **rules), want)
    assert want[2] == -1
    masks = torch.zeros(2, (V + 31) // 32, dtype=torch.int32)
    masks[0, 2], masks[1, 5] = 0b11, 1 << 4
    index = torch.tensor([0, 1, 1, -1, 0, 1, 0], dtype=torch.int32)
    tokens = ops.sample(H, W, allow=masks, allow_index=index, seed_all=1)
    assert torch.equal(tokens[[1, 2, 5]], torch.full((3,), 164)) and set(tokens[[0, 4, 6]].tolist()) <= {64, 65}


@pytest.mark.parametrize("name, arguments, rules", [
    ("sample", (H, W), dict(seed_all=3)), ("sample", (H, W, BIAS), dict(EACH, samples=2)),
    ("sample", (H[:, ::1], W), dict(slot=torch.arange(B), **EACH)), ("sample", (H, W, BIAS), EACH),
    ("sample_logprob", (H, W), ALL), ("sample_logprob", (H, W), EACH), ("sample_logits", (X,), EACH),
    ("sample_logits", (X,), ALL), ("sample_logits_logprob", (X.bfloat16(),), ALL),
    ("sample_logits_logprob", (X,), EACH)])
def test_torch_checks_the_operators(name, arguments, rules):
    torch.library.opcheck(flashsampling.torch._overload(getattr(ops, name), rules), arguments, rules)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_models_draw_the_same(backend):
    def step(h, w, temperature, seed, position):
        h = torch.tanh(h) * 2
        tokens, logprob, _ = fs.torch.sample(h, w, temperature=temperature, seed=seed, position=position, logprob=True)
        return tokens + 1, fs.torch.sample(h[:, :], w, top_k=5, seed=3, position=8), logprob

    arguments = (H, W, EACH["temperature"], EACH["seed"], EACH["position"])
    try:
        compiled = torch.compile(step, fullgraph=True, backend=backend)
        found = compiled(*arguments)
    except Exception as error:
        if "compiler" in str(error).lower() and backend == "inductor":
            pytest.skip("torch found no C++ compiler")
        raise
    # The compiler may round tanh otherwise: what the draws are compared with is computed by it too.
    states = torch.compile(lambda h: torch.tanh(h) * 2, backend=backend)(H)
    want = fs.sample(states, W, temperature=EACH["temperature"], seed=EACH["seed"], position=EACH["position"],
                     outputs=["logprob"])
    assert torch.equal(found[0], want.tokens + 1) and torch.equal(found[2], want.logprob)
    assert torch.equal(found[1], fs.sample(states, W, top_k=5, seed=3, position=8).tokens)


def test_compiled_code_takes_other_sizes_and_positions():
    step = torch.compile(lambda h, p: fs.torch.sample(h, W, seed=3, position=p), fullgraph=True, backend="aot_eager",
                         dynamic=True)
    for rows, position in ((2, 5), (7, 6), (3, 7), (5, 8)):
        assert torch.equal(step(H[:rows], position), fs.sample(H[:rows], W, seed=3, position=position).tokens)


def test_without_a_seed_torch_seeds():
    def tokens():
        torch.manual_seed(3)
        return [fs.torch.sample(H, W, temperature=3.0), fs.torch.sample_logits(X, temperature=3.0)]

    first, again = tokens(), tokens()
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and not torch.equal(*first)


def test_a_rule_that_is_none_is_off():
    nothing = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "position"))
    assert torch.equal(fs.torch.sample(H, W, seed=3, **nothing), fs.sample(H, W, seed=3, **nothing).tokens)


def test_seeds_are_64_bits():
    for seed in (2**64 - 1, 2**63, 0, 5):
        assert torch.equal(fs.torch.sample(H, W, seed=seed), fs.sample(H, W, seed=seed).tokens)
    for seed in (-1, 2**64, 1.0):
        with pytest.raises(ValueError, match="seed: %s, expected an integer from 0 to 18446744073709551615" % seed):
            fs.torch.sample(H, W, seed=seed)


@pytest.mark.parametrize("call, text", [
    (lambda: ops.sample(H.double(), W), "hidden: float64.*expected float32 or float16 or bfloat16"),
    (lambda: ops.sample(H[:, :5], W), r"hidden: float32\[7, 5\].*expected .*\[rows, 32\]"),
    (lambda: ops.sample(H.T, W), "hidden"),
    (lambda: ops.sample(H, W.T.contiguous().T), "weight: .*strides"),
    (lambda: ops.sample(H, W, temperature=torch.ones(B - 1)), r"temperature: float32\[6\].*expected float32\[7\]"),
    (lambda: ops.sample(H, W, temperature=torch.ones(2 * B)[::2]), r"temperature: .*strides \[2\].*packed"),
    (lambda: ops.sample(H, W, top_k=torch.ones(B)), "top_k: float32.*expected int32"),
    (lambda: ops.sample(H, W, seed=torch.ones(B, dtype=torch.int32)), "seed: int32.*expected int64 or uint64"),
    (lambda: ops.sample(H, W, allow=torch.ones(B, 2, dtype=torch.int32)), r"allow: .*\[7 or more, 10 or more\]"),
    (lambda: ops.sample(H, W, bias=torch.ones(5)), r"bias: float32\[5\]"),
    (lambda: ops.sample(H, W, round_to="f64"), "round_to 'f64'"),
    (lambda: ops.sample(H, W, samples=5000), "samples is 5000"),
    (lambda: ops.sample(H[0], W), "hidden"),
    (lambda: ops.sample(H, W, slot=torch.full((B,), -1), allow=torch.ones(B, 2, dtype=torch.int32)), "allow: "),
    (lambda: ops.sample(H, W, slot=torch.full((B,), -1), allow_index=torch.zeros(B, dtype=torch.int32)), "allow_index"),
], ids=range(15))
def test_what_does_not_fit_is_named_and_the_next_call_is_right(call, text):
    with pytest.raises(RuntimeError, match=text):
        call()
    assert torch.equal(ops.sample(H, W, seed_all=3), fs.sample(H, W, seed=3).tokens)


def test_a_row_without_a_token_gets_none():
    h = H.clone()
    h[2] = float("nan")
    tokens, logprob, status = ops.sample_logprob(h, W, seed_all=3, raise_error=False)
    assert tokens[2] == -1 and logprob[2].isnan() and status[2] & fs.Row.EMPTY and (tokens[:2] >= 0).all()
