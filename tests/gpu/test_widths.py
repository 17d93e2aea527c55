"""Every width of Hopper's tile, in one block of rows and in several: tokens, log Z and groups against the CPU backend,
rows of every kind side by side, and bits that do not depend on the width."""
import pytest

from draws import check, draw, forced, hidden, rules, same_bits, weights

import torch

import draws
import test_mass

WIDTHS = (8, 16, 32, 48, 64, 96, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288, 304, 320)
V, D = 20011, 256
KINDS = 8  # of rows

if torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("the tile of these tests is Hopper's", allow_module_level=True)


@pytest.fixture(params=WIDTHS)
def width(request, monkeypatch):
    context = forced("sm90:%d" % request.param)
    for module in (draws, test_mass):
        monkeypatch.setattr(module, "GPU", context)
    yield request.param
    context.close()


def batches(width):
    """One block, not full; three, of which the last is shorter."""
    return width - width // 5, 2 * width + 5


def test_tokens_in_one_block_and_in_several(width):
    for B in batches(width):
        check(weights(V, D), hidden(B, D), rules(B))


def test_log_z_in_one_block_and_in_several(width):
    for B in batches(width):
        test_mass.check(weights(V, D), hidden(B, D), rules(B), "processed")


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
def test_groups_in_several_blocks(width, mode):
    B = 2 * width + 5
    check(weights(V, D), hidden(B, D), dict(rules(B), mode=mode, group_size=1280))


def structured():
    """Weights whose first columns depend on the token: flat, rising gently and steeply, falling, Zipf, a few peaks,
    blocks; and hidden states that pick one of them each, random ones between. On the grid, so that sums are exact."""
    W = weights(V, D).clone()
    v = torch.arange(V, device="cuda")
    shuffled = torch.randperm(V, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    zipf = (-16 * torch.log(1.0 + shuffled)).round() / 16
    columns = (0 * v, v // 1250 / 4, v // 128 / 2, (V - v) // 1250 / 4, zipf, (shuffled < 9) * 12.0, v // 3000 % 7)
    for i, column in enumerate(columns):
        W[:, i] = column.to(W.dtype)
    return W


def picked(B):
    H = hidden(B, D)
    kind = torch.arange(B, device="cuda") % KINDS
    H[kind > 0] = 0
    H[:, : KINDS - 1] = 0
    for i in range(KINDS - 1):
        H[kind == i + 1, i] = 1
    return H


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_rows_of_every_kind_side_by_side(width, temperature):
    """Floods of survivors, ties by the thousand, one token hot in every row."""
    W = structured()
    for B in batches(width):
        asked = dict(rules(B, 0), temperature=torch.full((B,), temperature, device="cuda"))
        check(W, picked(B), asked)
        for kind in range(1, KINDS) if temperature == 1 else ():
            H = picked(KINDS)[kind : kind + 1].expand(B, D).contiguous()
            check(W, H, asked)


def test_bits_do_not_depend_on_the_width():
    W, H, asked = weights(V, D, grid=False), hidden(700, D, grid=False), rules(700)
    want = draw(W, H, asked)
    for width in WIDTHS:
        context = forced("sm90:%d" % width)
        assert same_bits(draw(W, H, asked, context=context), want), width
        context.close()
