"""The portable tile, forced: what test_cuda.py and test_mass.py ask of the device's own, every width, data at any
address."""
import pytest

from draws import BF16, F16, NEAR, TILE, check, draw, forced, hidden, laid, rules, same_bits, weights

import torch

import draws
import flashsampling as fs
import test_cuda
import test_mass

PORTABLE = forced("portable")
WIDTHS = (8, 16, 32, 64)
UNSUPPORTED = -2


@pytest.fixture(autouse=True)
def everything_is_portable(monkeypatch):
    """Also for contexts that a test makes itself."""
    monkeypatch.setenv(TILE, "portable")
    for module in (draws, test_cuda, test_mass):
        monkeypatch.setattr(module, "GPU", PORTABLE)


# ------------------------------------------------------------------------- what is asked of the other tiles too ----

from test_cuda import (  # noqa: E402
    test_a_flat_row_is_noise_alone,
    test_a_graph_replays_with_positions_in_device_memory,
    test_a_large_vocabulary_off_the_grid,
    test_a_nan_logit_is_flagged_and_never_drawn,
    test_a_nan_row_is_empty_and_its_neighbours_are_not,
    test_a_row_draws_the_same_in_any_company,
    test_a_row_without_tokens_is_empty,
    test_bad_temperatures_are_their_own_rows_matter,
    test_data_that_is_not_aligned,
    test_equal_logits_go_to_the_lower_token,
    test_every_number_of_rows,
    test_every_tail_of_the_hidden_size,
    test_every_tail_of_the_vocabulary,
    test_logits_are_before_or_after_the_temperature,
    test_no_rows_is_a_call_that_does_nothing,
    test_peaked_rows,
    test_rows_share_slots_skip_and_name_bad_ones,
    test_rows_with_a_stride,
    test_scalars_are_spread_over_rows,
    test_shards_together_are_the_whole,
    test_the_life_of_a_logit,
    test_the_lowest_infinite_token_wins,
    test_tokens_are_the_argmax_of_scores_in_float64,
    test_tokens_of_64_bits,
    test_two_streams_at_once_with_a_context_each,
)
from test_mass import (  # noqa: E402
    test_a_graph_with_log_z_replays,
    test_a_row_does_not_see_its_batch,
    test_an_infinite_logit_has_an_infinite_log_z,
    test_each_alone,
    test_every_tail_of_the_vocabulary as test_every_tail_of_the_vocabulary_with_log_z,
    test_flat_and_steep_rows,
    test_group_draws_follow_the_softmax,
    test_group_modes_draw_what_the_cpu_draws,
    test_groups_of_a_shard_and_group_draws_do_not_see_their_batch,
    test_log_z_and_logprobs_are_those_of_float64,
    test_rows_far_from_zero,
    test_rows_without_a_token_have_no_log_z,
)


def test_the_context_says_which_tile_it_was_told():
    assert PORTABLE.text.endswith("tile portable")


# ------------------------------------------------------------------------------------------------------ widths ----


@pytest.fixture(scope="module")
def by_width():
    return {width: forced("portable:%d" % width) for width in WIDTHS}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_with_every_number_of_rows(width, dtype, by_width, monkeypatch):
    """Fewer rows than the tile has, as many, and more than one launch takes."""
    monkeypatch.setattr(draws, "GPU", by_width[width])
    for B in sorted({1, width // 2 + 1, width - 1, width, width + 3}):
        check(weights(20011, 200, dtype), hidden(B, 200, dtype), rules(B))


@pytest.mark.parametrize("D", [64, 512, 2881])
def test_a_width_does_not_change_a_bit(D, by_width):
    """One K order for all: token, score and logit of off-grid data, in the tiles of every width."""
    W, H, asked = weights(20011, D, grid=False), hidden(100, D, grid=False), rules(100)
    first = draw(W, H, asked, context=by_width[WIDTHS[0]])
    for width in WIDTHS[1:]:
        assert same_bits(draw(W, H, asked, context=by_width[width]), first), width


# --------------------------------------------------------------------------------------------------- addresses ----


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("B", [1, 8, 17, 64, 130])
@pytest.mark.parametrize("D", [1, 3, 7, 33, 63, 65, 1000, 2881])
def test_every_hidden_size(D, B, dtype):
    check(weights(3001, D, dtype), hidden(B, D, dtype), rules(B))


@pytest.mark.parametrize("V", [1, 2, 127, 129, 16897])
@pytest.mark.parametrize("D", [1, 33, 127])
def test_tails_of_both_at_any_address(V, D):
    check(laid(weights(V, D), 1), laid(hidden(40, D), 3), rules(40))


# Elements of a row between copies of 16 bytes, of 4, and of 2, with a tail inside such a copy where the row has one.
LAYOUTS = {"16": (0, 208), "16 later": (8, 200), "4": (2, 208), "4 by its rows": (0, 202), "2": (1, 208),
           "2 by its rows": (0, 203)}


@pytest.mark.parametrize("D", [193, 195, 200])
@pytest.mark.parametrize("B", [5, 64, 100])
@pytest.mark.parametrize("h", LAYOUTS)
@pytest.mark.parametrize("w", LAYOUTS)
def test_weights_and_hidden_states_each_at_any_address(w, h, B, D):
    check(laid(weights(3001, D), *LAYOUTS[w]), laid(hidden(B, D), *LAYOUTS[h]), rules(B))


def test_an_address_does_not_change_a_bit():
    W, H, asked = weights(20011, 200, grid=False), hidden(70, 200, grid=False), rules(70)
    first = draw(W, H, asked)
    for w in LAYOUTS.values():
        for h in LAYOUTS.values():
            assert same_bits(draw(laid(W, *w), laid(H, *h), asked), first), (w, h)


@pytest.mark.parametrize("edges", [(0, 1, 131, 12345, 20011), (0, 64, 10048, 20011)])
def test_shards_at_any_address_together_are_the_whole(edges):
    """Rows of an odd hidden size: every shard begins at another alignment. Bit for bit."""
    W, H, asked = weights(20011, 129, grid=False), hidden(20, 129, grid=False), rules(20)
    whole = draw(W, H, asked)
    parts = [draw(W[a:b], H, asked, dict(first_token=a)) for a, b in zip(edges, edges[1:])]
    winner = torch.stack([p["noisy_logit"] for p in parts]).argmax(0)[None]
    for name in whole:
        best = torch.stack([p[name] for p in parts]).gather(0, winner)[0]
        assert torch.equal(best.view(torch.int32), whole[name].view(torch.int32)), name


@pytest.mark.parametrize("offset", [1, 2])
def test_log_z_at_any_address(offset):
    W, H, asked = weights(20011, 256), hidden(64, 256), rules(64)
    first = test_mass.check(W, H, asked, "processed")
    again = test_mass.check(laid(W, offset), laid(H, offset), asked, "processed")
    assert all(torch.equal(first[name].view(torch.int32), again[name].view(torch.int32)) for name in first)


def test_a_large_vocabulary_at_any_address():
    W, H = weights(151936, 512, grid=False), hidden(33, 512, grid=False)
    for offset in (1, 2):
        check(laid(W, offset), H, rules(33), near=NEAR)


# ---------------------------------------------------------------------------------------------------- refusals ----


@pytest.mark.parametrize("name", ["portable:7", "portable:", "portables", "sm80"])
def test_an_unknown_tile_is_an_error(name):
    with pytest.raises(fs.Error) as error:
        forced(name)
    assert "tile" in error.value.text.lower()


@pytest.mark.skipif(torch.cuda.get_device_capability()[0] != 9, reason="Hopper's tile runs on Hopper")
def test_a_forced_tile_that_cannot_take_the_data_is_an_error():
    hopper = forced("sm90")
    W, H = weights(1000, 64), hidden(2, 64)
    check_it = dict(asked=rules(2), context=hopper)
    draw(W, H, **check_it)
    with pytest.raises(fs.Error) as error:
        draw(laid(W, 1), H, **check_it)
    assert error.value.status == UNSUPPORTED and "unaligned" in error.value.text
