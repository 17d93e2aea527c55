"""Greedy rows full of equal and of ascending logits: the lowest id among the best wins, wherever they lie in strips,
tiles, CTAs and shards, on the device's own tile and on the portable one."""
import itertools

import pytest

from draws import BF16, CPU, F16, GPU, check, dots, forced, on_host, rules

import numpy as np
import torch

import draws
import flashsampling as fs
import test_mass

V, D = 65521, 64  # some tiles for every CTA
ROWS = (3, 16, 27, 48, 64, 96, 128, 160, 192, 256)
INFINITE, ODD = 3, 4  # columns of W for what is no number
TILES = {"own": GPU, "portable": forced("portable")}


@pytest.fixture(autouse=True, params=TILES)
def every_tile(request, monkeypatch):
    for module in (draws, test_mass):
        monkeypatch.setattr(module, "GPU", TILES[request.param])


def digits(dtype=BF16):
    """[V, D], whose first columns are digits of the token's id: its place in a strip, the strip among 16, the rest."""
    v = torch.arange(V, device="cuda")
    W = torch.zeros(V, D, device="cuda", dtype=dtype)
    W[:, 0], W[:, 1], W[:, 2] = v % 16, v // 16 % 16, v // 256
    return W


def orders(B, dtype=BF16):
    """[B, D]: logits that rise, fall or stay the same with each digit, all zero in the first row. Their sums are
    exact."""
    signs = torch.tensor(list(itertools.product((0, 1, -1), repeat=3)), device="cuda")
    H = torch.zeros(B, D, device="cuda", dtype=dtype)
    H[:, :3] = (signs * torch.tensor([1, 16, 256], device="cuda"))[torch.arange(B, device="cuda") % 27].to(dtype)
    return H


def lowest_of_the_best(W, H):
    """No backend in the oracle: the first id whose logit is the largest."""
    x = dots(W, H).nan_to_num(nan=-float("inf"), posinf=float("inf"), neginf=-float("inf"))
    ids = torch.arange(W.shape[0], device="cuda")
    return torch.where(x == x.max(1, keepdim=True).values, ids, W.shape[0]).min(1).values.cpu().numpy()


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("B", ROWS)
def test_the_lowest_of_equal_logits_wins_in_every_order(B, dtype):
    W, H = digits(dtype), orders(B, dtype)
    assert (check(W, H, dict(temperature=0.0))["tokens"] == lowest_of_the_best(W, H)).all()


@pytest.mark.parametrize("B", ROWS)
def test_rows_with_noise_beside_them_draw_what_they_do(B):
    W, H = digits(), orders(B)
    check(W, H, rules(B, greedy_every=2))


@pytest.mark.parametrize("B", [3, 64, 256])
@pytest.mark.parametrize("length", [1, 16, 77, 128, 300, 5000])
def test_blocks_of_equal_rows_of_w(length, B):
    """Small integers: a row of W has one logit wherever it lies. The best of seven comes back again and again."""
    numbers = torch.Generator("cuda").manual_seed(length)
    seven = torch.randint(-8, 9, (7, D), device="cuda", generator=numbers).to(BF16)
    H = torch.randint(-8, 9, (B, D), device="cuda", generator=numbers).to(BF16)
    W = seven[torch.arange(V, device="cuda") // length % 7]
    assert (check(W, H, dict(temperature=0.0))["tokens"] == lowest_of_the_best(W, H)).all()


@pytest.mark.parametrize("B", [3, 64, 256])
@pytest.mark.parametrize("first, end", [(0, 64), (1, 130), (127, 129), (777, 40000), (12345, V), (V - 1, V)])
def test_ties_of_a_shard_go_to_its_lowest_token(first, end, B):
    W, H = digits()[first:end], orders(B)
    tokens = check(W, H, dict(temperature=0.0), dict(first_token=first))["tokens"]
    assert (tokens == first + lowest_of_the_best(W, H)).all() and tokens[0] == first


@pytest.mark.parametrize("B", [3, 27, 64, 200, 256])
def test_infinities_and_nans_among_ties_keep_their_flags(B):
    """+inf, or -inf in every second row, in the first tiles of all CTAs. A NaN lies in a tile that comes later."""
    W, H = digits(), orders(B)
    W[64:17000, INFINITE] = float("inf")
    H[0::2, INFINITE], H[1::2, INFINITE] = 1, -1
    even = np.arange(B) % 2 == 0
    for late in (False, True):
        if late:
            W[60000, ODD] = float("nan")
        got = check(W, H, dict(temperature=0.0))
        assert (got["tokens"][even] == 64).all() and (got["tokens"][~even] != 64).all()
        flags = np.where(even, int(fs.Row.INF), 0) | (int(fs.Row.NAN) if late else 0)
        assert (got["status"] == flags).all()


@pytest.mark.parametrize("B", [3, 64, 256])
def test_rows_of_nothing_but_infinities_or_nans(B):
    W, H = digits(), orders(B)
    W[:, INFINITE] = float("inf")
    H[0::2, INFINITE] = 1  # the others multiply infinity by 0
    got = check(W, H, dict(temperature=0.0, fallback_token=-7))
    assert (got["tokens"][0::2] == 0).all() and (got["status"][0::2] == fs.Row.INF).all()
    assert (got["tokens"][1::2] == -7).all() and (got["status"][1::2] == fs.Row.NAN | fs.Row.EMPTY).all()


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [128, 1280, 20096])
@pytest.mark.parametrize("B", [3, 64, 192, 256])
def test_groups(B, size, mode):
    """A group has a race of its own, and the lowest id of the best in any of them wins."""
    W, H = digits(), orders(B)
    asked = dict(rules(B, greedy_every=2), mode=mode, group_size=size)
    got = on_host(test_mass.draw(W, H, asked, ("noisy_logit", "logit")))
    want = CPU.sample(fs.Head(logits=dots(W, H).float().cpu().numpy()), outputs=("noisy_logit", "logit"),
                      **on_host(asked))
    greedy = asked["temperature"].cpu().numpy() == 0
    assert (got["tokens"][greedy] == lowest_of_the_best(W, H)[greedy]).all()
    assert (got["tokens"] != want.tokens[:, 0]).sum() <= 1  # as in test_group_modes_draw_what_the_cpu_draws
    assert (got["logit"][greedy] == want.logit[greedy, 0]).all() and (got["status"] == 0).all()
