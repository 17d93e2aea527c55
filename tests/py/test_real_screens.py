"""Screens on the head of a real model, which `make real` fetches: every row is drawn as from W, nearly all are decided by
the screen, and few logits are computed from W for them."""
import sys
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs

REAL = Path(__file__).resolve().parents[2] / "build" / "real"
TEXTS = ("prose", "code", "chat")
CHOOSING = 8  # hidden states of each text that choose the columns kept in 8 bits; they are not drawn
ROWS = 40  # of each text
FEW = (20, 150)  # settled logits of a row, median and 95 %
RULES = {"T = 1": (dict(temperature=1.0), FEW), "T = .7": (dict(temperature=0.7), FEW),
         "greedy": (dict(temperature=0.0), FEW),
         "top-k 40, top-p .95, min-p .05": (dict(top_k=40, top_p=0.95, min_p=0.05), (700, np.inf))}

pytestmark = pytest.mark.skipif(not (REAL / "chat.npy").exists(), reason="no real model: make real fetches one")


@pytest.fixture(scope="module")
def real():
    """W, and hidden states of each text in an order of their own."""
    rng = np.random.default_rng(0)
    texts = {name: rng.permutation(np.load(REAL / (name + ".npy"))) for name in TEXTS}
    return np.load(REAL / "head.npy"), texts


@pytest.fixture(scope="module")
def context():
    with fs.Context("cpu", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def screens(real, context):
    """A head for every screen; "4+8" alone has columns that W has chosen."""
    W, texts = real
    chosen = np.concatenate([texts[name][:CHOOSING] for name in TEXTS])
    plain = fs.Head(W, dtype="bf16")
    made = {"8": dict(bits=8), "4+8": dict(bits="4+8"), "4+8, chosen": dict(bits="4+8", hidden=chosen)}
    return {name: fs.Head(W, dtype="bf16", screen=context.screen(plain, seed=1, **how)) for name, how in made.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["8", "4+8", "4+8, chosen"])
def test_nearly_every_row_is_decided_by_few_logits_of_w(real, screens, name, rule, monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_SCREEN_ROWS", "64")  # whatever has become of the last call
    W, texts = real
    rules, most = RULES[rule]
    settled, given_up = [], 0
    with fs.Context("cpu", threads=1) as forced:
        for text in TEXTS:
            for i in range(CHOOSING, CHOOSING + ROWS):
                row = dict(hidden=texts[text][i:i + 1], hidden_dtype="bf16", seed=i, **rules)
                got = forced.sample(screens[name], **row)
                settled.append(forced.counters.screened_dots)
                given_up += not forced.counters.screened_rows
                want = forced.sample(fs.Head(W, dtype="bf16"), **row)
                assert got.tokens[0] == want.tokens[0], (text, i)
    assert given_up <= (0 if "top-k" in rule else 0.01 * len(settled))
    more = 2 if name == "4+8" else 1  # columns that W has chosen
    assert np.median(settled) <= more * most[0] and np.quantile(settled, 0.95) <= more * most[1], settled


def test_synthetic_heads_have_the_columns_of_the_real_one(real, monkeypatch):
    """Columns, sizes and bounds of bench/language.py are within a fifth of those of the real model over prose and code."""
    monkeypatch.setattr(sys, "path", [str(REAL.parents[1] / "bench"), *sys.path])
    import language

    W, texts = real
    wide = [(bits.astype(np.uint32) << 16).view(np.float32) for bits in (W, np.concatenate([texts["prose"], texts["code"]]))]
    want, got = language.figures(*wide), language.figures(*language.head_and_hidden(*W.shape, 96))
    compared = [name for name in want if name.startswith(("energy", "mean", "median", "R of", "deviation"))]
    assert len(compared) == 8
    assert {name: (got[name], want[name]) for name in compared if not 0.8 <= got[name] / want[name] <= 1.2} == {}
