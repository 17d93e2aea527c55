"""Kinds of rows: logits that are not random, made by W and H, so that one head serves all kinds at once.

The first COLUMNS columns of W are functions of the token, and a row of H picks some of them:

    ascending   -5 .. 5, linear in the token    zipf    -log(rank), ranks in random order
    flat        the same for all                blocks  one value for every 16,384 tokens
    peaks       8 columns, 20 at one token each and 0 elsewhere

Numbers of more than eight bits are three bf16 whose sum they are. What else a row of H holds is random: at full size in
random rows, so faint in the others that no logit changes, since a GPU that multiplies zeros takes less power and is
faster than it would be.
"""
from typing import NamedTuple

COLUMNS = 16
PLACES = {"ascending": (0, 1, 2), "zipf": (3, 4, 5), "flat": (6,), "blocks": (7,), "peaks": tuple(range(8, 16))}
BLOCK = 16384  # tokens: the best block is a tie of as many
PEAK = 20.0
FAINT = 1e-30


class Kind(NamedTuple):
    random: float = 1.0  # size of what is random in H
    pick: str = ""  # the columns, one of PLACES
    weight: float = 1.0
    temperature: float = 1.0


KINDS = {
    "random": Kind(),
    "peaked": Kind(pick="peaks"),
    "Zipf": Kind(FAINT, "zipf"),
    "flat": Kind(FAINT, "flat"),
    "T = 5": Kind(temperature=5.0),
    "T = 100": Kind(temperature=100.0),
    "ascending": Kind(FAINT, "ascending"),
    "steep": Kind(FAINT, "ascending", 10.0),
    "descending": Kind(FAINT, "ascending", -1.0),
    "blocks": Kind(FAINT, "blocks"),
    "zeros": Kind(0.0),
}
MIXED = "mixed"


def names(greedy):
    """The kinds to time. Greedy rows know no temperature: those that differ by it alone are random rows."""
    return [name for name, kind in KINDS.items() if not (greedy and kind.temperature != 1)] + [MIXED]


def of_rows(name, B):
    """The kind of each of B rows."""
    return [KINDS[name]] * B if name != MIXED else [list(KINDS.values())[b % len(KINDS)] for b in range(B)]


def temperatures(kinds, greedy):
    return [0.0 if greedy else kind.temperature for kind in kinds]


def columns(V):
    """[V, COLUMNS] float32, every number one of bf16."""
    import numpy as np

    random, token = np.random.default_rng(1), np.arange(V)
    found = np.zeros((V, COLUMNS), np.float32)
    found[:, PLACES["ascending"]] = components(10.0 * token / (V - 1) - 5.0)
    found[:, PLACES["zipf"]] = components(-np.log(1.0 + random.permutation(V)))
    found[:, PLACES["flat"]] = 1.0
    values = random.permutation(-(-V // BLOCK)) / 4.0  # all different
    found[:, PLACES["blocks"]] = values[token // BLOCK, None]
    found[random.choice(V, len(PLACES["peaks"]), replace=False), PLACES["peaks"]] = PEAK
    return found


def components(x):
    """[V, 3] of bf16 whose sum is x, to 24 bits."""
    import numpy as np
    from flashsampling import from_bf16, to_bf16

    parts, rest = [], np.asarray(x, np.float64)
    for _ in range(3):
        parts.append(from_bf16(to_bf16(rest)))
        rest = rest - parts[-1]
    return np.stack(parts, axis=1)


def picks(kinds):
    """[B, COLUMNS] float32: what rows of these kinds have in the first columns of H. Each peaked row has one peak."""
    import numpy as np

    found = np.zeros((len(kinds), COLUMNS), np.float32)
    for row, kind in enumerate(kinds):
        if kind.pick:
            places = PLACES[kind.pick]
            found[row, places[row % len(places)] if kind.pick == "peaks" else list(places)] = kind.weight
    return found


# ---------------------------------------------------------------------------------------------- on the device ----


def plant(bench, W):
    """Gives a head its columns."""
    W[:, :COLUMNS] = bench.torch.from_numpy(columns(W.shape[0])).to(W)


def hidden(bench, D, kinds):
    """[B, D] bfloat16."""
    torch = bench.torch
    size = torch.tensor([kind.random for kind in kinds], device=bench.device)
    H = torch.randn(len(kinds), D, device=bench.device) * size[:, None]
    H[:, :COLUMNS] = torch.from_numpy(picks(kinds)).to(H)
    return H.bfloat16()
