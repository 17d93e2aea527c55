"""The law of draws by screens, and what the same statistics say of a screen that has lost a tile.

The head of test_law.py, a million draws for each format, in calls of 16 rows. Every p-value is held against 1e-6
(fit.ALPHA), so that the 16 of this file together raise a false alarm for one set of seeds in 60,000; seeds are fixed.
"""
import pytest

pytest.importorskip("scipy.stats", reason="scipy is not installed")

import numpy as np

import fit
import flashsampling as fs
from law import draw, known
from test_law import BODY, SOME, accept, refuse
from test_screens import opened

ROWS = 16
HEADER, STRIP_HEAD = 128, 128  # bytes of a screen, of 16 tokens (src/core/screen.h)


@pytest.fixture(scope="module", params=[8, 4], ids=["8bits", "4bits"])
def screened(request):
    """A context that reads screens of a head as small as this, the head, and its screen."""
    context, source = opened(), known(*BODY)
    yield context, source, context.screen(fs.Head(source.W), request.param, seed=11)
    context.close()


def test_draws_follow_the_softmax(screened):
    context, source, screen = screened
    law = source.law()[0]
    tally = draw(source, SOME, B=ROWS, context=context, screen=screen)
    accept(fit.cells(tally.counts, law))
    accept(fit.tiles(tally.counts, law))
    accept(fit.decades(tally.counts, law)[0])
    accept(fit.even(tally.scores, "best score, bins"))
    for table in ("positions", "seeds", "high_seeds", "tokens_scores"):
        accept(fit.independence(getattr(tally, table), "independent: " + table))


def test_a_tile_that_a_screen_has_lost_is_seen(screened):
    """Planted: a tile of average mass, whose weights and bounds are 0 in the screen."""
    context, source, screen = screened
    law = source.law()[0]
    masses = fit.by_tile(law)[:-1]  # the last may be partial
    tile, strips = int(np.abs(masses - 1 / len(masses)).argmin()), fit.TILE // 16
    screen = screen.clone()
    draw(source, 1, B=ROWS, context=context, screen=screen)  # its bytes are compared with its checksum once
    lost = screen[HEADER:].view((len(law) + 15) // 16, -1)[tile * strips : (tile + 1) * strips]
    lost[:, :64] = 0  # norms; what a screen is recognised by stays
    lost[:, STRIP_HEAD:] = 0
    planted = draw(source, SOME // 8, B=ROWS, context=context, screen=screen)
    refuse(fit.tiles(planted.counts, law))
