"""Equal rows of W give equal logits, and of equal logits the lowest id wins, with the tiles of every family: in other
places of a tile, in the other tile of a pair, in other pairs, CTAs and shards, and in the last tile, which is not
whole. Weights are off the grid, where another order of additions in K shows."""
import functools

import pytest

from draws import BF16, F16, GPU, NEAR, Outputs, dots, draw, forced, hidden, normal, weights

import torch

import flashsampling as fs

V = 40011
# How far equal tokens are apart: in a strip, in the other half of a tile, in the next tile, in the next pair, further,
# and in the next tiles that 132 processors take.
APART = (1, 8, 15, 64, 127, 128, 129, 256, 1000, 16896, 17000, 33792)
EDGES = (0, 200, 8192, 20011, V - 1, V)
ROWS = (1, 16, 64, 200, 300)
CASES = [(tile, D) for D in (768, 1000, 2048, 4096) for tile in ("sm90", "portable")]
CASES += [("portable", 769), ("portable", 2050)]  # copies of 2 and of 4 bytes


@functools.lru_cache(maxsize=None)
def context(tile):
    if tile == "sm90" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("Hopper's tile runs on Hopper")
    return forced(tile)


@functools.lru_cache(maxsize=1)
def lowest_ids():
    """[V]: the lowest of the ids equal to each. Two thirds repeat the one that is APART before them, and who is then
    alone repeats the one before."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.arange(V)
    apart = torch.tensor(APART)[torch.randint(len(APART), (V,), generator=generator)]
    lowest = torch.where((torch.rand(V, generator=generator) < 2 / 3) & (apart <= ids), ids - apart, ids)
    alone = (lowest == ids) & (torch.bincount(lowest, minlength=V) == 1)
    lowest = torch.where(alone & (ids > 0), ids - 1, lowest)
    while not torch.equal(lowest, lowest[lowest]):
        lowest = lowest[lowest]
    return lowest.cuda()


@functools.lru_cache(maxsize=2)
def repeated(D, dtype):
    return weights(V, D, dtype, grid=False).index_select(0, lowest_ids())


def check_greedy(tokens):
    """Every token is the lowest of its equals."""
    lowest = lowest_ids()
    higher = (tokens != lowest[tokens]).sum().item()
    print("%d of %d greedy rows drew the higher id" % (higher, len(tokens)))
    assert higher == 0


@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("tile, D", CASES)
def test_greedy_rows_draw_the_lowest_of_equal_tokens(tile, D, dtype, B):
    W, H = repeated(D, dtype), hidden(B, D, dtype, grid=False)
    tokens = draw(W, H, dict(temperature=0.0), context=context(tile))["tokens"].long()
    check_greedy(tokens)
    x = dots(W, H)
    assert (x.max(1).values - x.gather(1, tokens[:, None])[:, 0]).max() <= NEAR


@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("tile, D", CASES)
def test_shards_together_draw_the_lowest_of_equal_tokens(tile, D, B):
    W, H, asked = repeated(D, BF16), hidden(B, D, grid=False), dict(temperature=0.0)
    whole = draw(W, H, asked, context=context(tile))["tokens"]
    heads = [fs.Head(W[a:b], first_token=a, vocab=V) for a, b in zip(EDGES, EDGES[1:])]
    out = Outputs(B, floats=())
    parts = [context(tile).partial(head, H, out=Outputs(B, floats=()).rows, **asked) for head in heads]
    context(tile).merge(parts, heads[0], H, out=out.rows, **asked)
    merged = out.taken()["tokens"]
    check_greedy(merged.long())
    assert torch.equal(merged, whole)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("tile, D", CASES)
def test_a_logit_does_not_depend_on_where_its_token_lies(tile, D, dtype):
    """Few kinds of tokens: whatever stretch of them is the head, the largest logit of a row has the same bits."""
    kinds, B = 32, 64
    kind = torch.randint(kinds, (V,), generator=torch.Generator().manual_seed(2)).cuda()
    W, H = weights(kinds, D, dtype, grid=False).index_select(0, kind), hidden(B, D, dtype, grid=False)
    logits = []
    for start in range(0, V - 8192, 1237):
        out = Outputs(B, floats=("logit",))
        context(tile).sample(fs.Head(W[start:]), H, out=out.rows, temperature=0.0)
        logits.append(out.taken()["logit"].view(torch.int32))
    assert (torch.stack(logits) == logits[0]).all()


@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, BF16, F16], ids=["f32", "bf16", "f16"])
def test_stored_logits_that_are_equal(dtype, B):
    x = (2.5 * normal(B, V, B)).to(dtype).index_select(1, lowest_ids())
    out = Outputs(B, floats=())
    GPU.sample(fs.Head(logits=x), out=out.rows, temperature=0.0)
    tokens = out.taken()["tokens"].long()
    check_greedy(tokens)
    ids = torch.arange(V, device="cuda")
    assert torch.equal(tokens, torch.where(x == x.max(1, keepdim=True).values, ids, V).min(1).values)
