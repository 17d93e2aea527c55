"""Parts on the device: what does not belong together, is not whole or has changed makes every row FS_ROW_PEER."""
import pytest

from draws import GPU, Outputs, draw, fs, hidden, rules, same_bits, torch, weights

V, D, B = 5003, 128, 37
EDGES = (0, 128, 1024, 1024, 4000, V)  # an empty shard too
FIELDS = {"tokens": (), "scores": ("noisy_logit",), "log Z": ("noisy_logit", "log_z", "max_logit")}


def shard(a, b):
    return fs.Head(weights(V, D)[a:b], first_token=a, vocab=V)


def parts_of(floats, edges=EDGES, **changed):
    out = Outputs(B, floats=floats).rows
    asked = dict(rules(B), **changed)
    return [GPU.partial(shard(a, b), hidden(B, D), out=out, **asked) for a, b in zip(edges, edges[1:])]


def merged(parts, floats, **changed):
    out = Outputs(B, floats=floats)
    GPU.merge(parts, shard(0, 128), hidden(B, D), out=out.rows, **dict(rules(B), **changed))
    return out.taken()


def refused(got):
    return bool((got["status"] == int(fs.Row.PEER)).all() and (got["tokens"] == -1).all())


@pytest.mark.parametrize("name", FIELDS)
def test_whole_parts_in_any_order_are_one_call(name):
    floats, out = FIELDS[name], Outputs(B, floats=FIELDS[name])
    GPU.sample(fs.Head(weights(V, D)), hidden(B, D), out=out.rows, **rules(B))
    parts = parts_of(floats)
    assert same_bits(merged(parts, floats), out.taken())
    assert same_bits(merged(parts[::-1], floats), out.taken())
    assert same_bits(merged(parts_of(floats, (0, V)), floats), out.taken())


@pytest.mark.parametrize("name", FIELDS)
def test_parts_that_are_not_the_vocabulary_are_noticed(name):
    floats = FIELDS[name]
    parts = parts_of(floats)
    assert refused(merged(parts[1:], floats)), "the first is missing"
    assert refused(merged(parts[:-1], floats)), "the last is missing"
    assert refused(merged(parts[:1] + parts[3:], floats)), "one in between is missing"
    assert refused(merged(parts + parts[1:2], floats)), "one is there twice"
    assert refused(merged(parts + parts_of(floats, (1024, 2048)), floats)), "two overlap"
    assert refused(merged(parts_of(floats, (0, 128)) + parts_of(floats, (256, V)), floats)), "a gap"
    assert refused(merged(parts_of(floats, (0, 256)) + parts_of(floats, (128, V)), floats)), "an overlap"


@pytest.mark.parametrize("name", FIELDS)
def test_parts_of_another_call_are_noticed(name):
    floats = FIELDS[name]
    parts, asked = parts_of(floats), rules(B)
    for changed in (dict(position=asked["position"] + 1), dict(seed=asked["seed"] + 1),
                    dict(temperature=asked["temperature"] + 0.5)):
        assert refused(merged(parts, floats, **changed)), list(changed)
        assert refused(merged(parts[:2] + parts_of(floats, **changed)[2:], floats)), list(changed)
    assert not refused(merged(parts, floats))


@pytest.mark.parametrize("name", FIELDS)
def test_flipped_bits_are_noticed(name):
    floats = FIELDS[name]
    parts = parts_of(floats)
    words = parts[0].numel() // 4
    used = 8 + (B + 15) // 16 + B * (2 + (6 if name == "log Z" else 0))
    generator, hits = torch.Generator().manual_seed(3), 0
    for at in list(range(8 + (B + 15) // 16 + 10)) + torch.randint(0, used, (40,), generator=generator).tolist():
        if at >= words or 8 <= at < 8 + (B + 15) // 16 and at == 8 + B // 16:
            continue  # the last word of bits has some that are nobody's
        broken = parts[1].clone()
        broken.view(torch.int32)[at] ^= 1 << int(torch.randint(0, 31, (1,), generator=generator))
        assert refused(merged([parts[0], broken, *parts[2:]], floats)), at
        hits += 1
    assert hits > 40


def test_a_shard_of_padding_alone_is_empty():
    floats, padded = ("noisy_logit",), torch.cat([weights(V, D), weights(V, D)[:100]])
    out = Outputs(B, floats=floats)
    GPU.sample(fs.Head(weights(V, D)), hidden(B, D), out=out.rows, **rules(B))
    asked = Outputs(B, floats=floats).rows
    heads = [fs.Head(padded[a:b], first_token=a, vocab=V) for a, b in ((0, 4992), (4992, V + 50), (V + 50, V + 100))]
    parts = [GPU.partial(head, hidden(B, D), out=asked, **rules(B)) for head in heads]
    assert same_bits(merged(parts, floats), out.taken())


def test_an_l_of_infinity_from_a_finite_x_is_drawn():
    """The lowest id, as on the CPU, for kernels that compare logits with thresholds."""
    W, H = weights(V, D).clone(), hidden(70, D)
    H[:, 0], W[:, 0] = 1.0, 0.0
    bias = torch.zeros(V, device="cuda")
    bias[[4000, 77, 3001]] = 1e38
    for head, temperature in ((dict(bias=bias), 0.1), ({}, 1e-38)):
        got = draw(W, H, dict(temperature=temperature, seed=3), head)
        x = H.double() @ W.double().T + (bias.double() if head else 0)
        l = x.float() * torch.tensor(1.0, device="cuda").div(temperature)
        want = torch.where(torch.isinf(l) & (l > 0), 1, 0).argmax(1)
        assert torch.isinf(l).any(1).all()
        assert torch.equal(got["tokens"].long(), want) and (got["status"] == int(fs.Row.INF)).all()


@pytest.mark.parametrize("kind", ["weights", "logits"])
def test_logprobs_are_not_positive(kind):
    rows = 256
    x = torch.full((rows, 300), -60.0, device="cuda")
    x[torch.arange(rows), torch.arange(rows) % 300] = torch.linspace(-2, 2, rows, device="cuda")
    head, H = fs.Head(logits=x), None
    if kind == "weights":
        H = torch.eye(rows, device="cuda", dtype=torch.bfloat16)
        head = fs.Head(x.T.contiguous().bfloat16())
    out = Outputs(rows, floats=("logprob", "log_z", "logit"))
    GPU.sample(head, H, out=out.rows, seed=1)
    got = out.taken()
    assert (got["logprob"] <= 0).all()
    assert (got["logit"].double() > got["log_z"].double()).any(), "a row where it would be positive"
