"""Heads whose law is known, a hundred million draws of them, and tallies, all on the device.

Weights and hidden states lie on the grid of draws.py, so that logits are exact in float and the law is that of float64.
A run is one graph of CALLS calls, replayed; names are in device memory and move on by themselves.
"""
import functools
import math
import time

from draws import BF16, GPU, STREAM, dots, hidden, normal

import numpy as np
import torch

import flashsampling as fs
import fit

CALLS = 64  # in a graph: tallies, some 50 small kernels, cost little beside them
ROWS = 256  # one launch
SCORE_BINS, SCORE_CLASSES = 256, 16
SEED, POSITION = 0x5EED, 2**32 - 10**5  # 1e8 draws of 256 rows pass 2^32 on their way
HIGH = 2**32


# ------------------------------------------------------------------------------------------------------- heads ----


class Known:
    """Weights [V, D], one hidden state [1, D], and their logits [V] in float64."""

    def __init__(self, W, h):
        self.W, self.h, self.logits = W, h, dots(W, h)[0].cpu().numpy()

    def law(self, temperature=1.0):
        """The probabilities and log Z of l = y * (1/T), as the header defines it."""
        l = self.logits.astype(np.float32) * np.float32(1 / np.float32(temperature))
        l = l.astype(np.float64)
        log_z = l.max() + math.log(np.exp(l - l.max()).sum())
        return np.exp(l - log_z), log_z


@functools.lru_cache(maxsize=3)
def known(V, D, deviation, shares):
    """Gaussian logits, and among them one token for each of `shares`: so many times the mass of all the Gaussian ones.

    Column 0 makes those: 8 in the hidden state, so that 1/64 in W is 1/8 of a logit, up to 31.
    """
    W = normal(V, D, V + D).mul_(64 * deviation / D**0.5).round_().clamp_(-255, 255).div_(64).to(BF16)
    h = hidden(1, D)
    h[:, 0], W[:, 0] = 8, 0
    for place, share in zip(np.linspace(0, V - 1, len(shares)).round().astype(int).tolist(), shares):
        logit = math.log(V) + deviation**2 / 2 + math.log(share)
        W[place] = 0
        W[place, 0] = round(8 * logit) / 64
    return Known(W, h)


def with_hole(W, tile):
    """A copy of W in which no token of the tile can be drawn: logits of -31.9."""
    W = W.clone()
    W[tile * fit.TILE : (tile + 1) * fit.TILE] = 0
    W[tile * fit.TILE : (tile + 1) * fit.TILE, 0] = -255 / 64
    return W


# ------------------------------------------------------------------------------------------------------- names ----


def by_position(B):
    """Seeds side by side, those of the second half of the rows 2^32 on; positions count up. All names differ."""
    row = torch.arange(B, device="cuda")
    seed = SEED + row % (B // 2) + HIGH * (row // (B // 2))
    position = POSITION + torch.arange(CALLS, device="cuda")[:, None].expand(CALLS, B)
    return dict(seed=seed.expand(CALLS, B).contiguous(), position=position.contiguous(),
                step=dict(position=torch.full((B,), CALLS, device="cuda")))


def by_seed(B):
    """One position; every draw has a seed of its own."""
    seed = SEED + torch.arange(CALLS * B, device="cuda").view(CALLS, B)
    return dict(seed=seed, position=7, step=dict(seed=torch.full((B,), CALLS * B, device="cuda")))


def by_spread(B):
    """One scalar seed, which the library spreads over the rows; positions count up."""
    return dict(by_position(B), seed=SEED)


# ------------------------------------------------------------------------------------------------------- tally ----


class Tally:
    """Counts of tokens, of pairs of classes, and of scores; arrays of numpy once `fetch` was called.

    counts [V + 1], the last one for what is no token; scores [256], of exp(-exp(-(score - log Z))), which is uniform;
    positions, seeds, high_seeds [K, K] and tokens_scores [K, 16], pairs of classes that have to be independent.
    """

    TABLES = ("positions", "seeds", "high_seeds", "tokens_scores")

    def __init__(self, p, log_z):
        self.vocab, self.log_z = len(p), log_z
        table = np.append(fit.classes(p), 0)
        self.K, self.class_of = int(table.max()) + 1, torch.tensor(table, device="cuda")
        sizes = dict(counts=self.vocab + 1, scores=SCORE_BINS, tokens_scores=self.K * SCORE_CLASSES)
        for name in ("counts", "scores") + self.TABLES:
            size = sizes.get(name, self.K**2)
            setattr(self, name, torch.zeros(size, device="cuda", dtype=torch.int64))

    def add(self, name, index):
        index = index.reshape(-1)
        getattr(self, name).scatter_add_(0, index, torch.ones_like(index))

    def take(self, token, score):
        """[CALLS, B] of both. Neighbours are pairs once: the draws of a table are independent."""
        B = token.shape[1]
        token = token.masked_fill((token < 0) | (token >= self.vocab), self.vocab)
        score = (self.uniform(score) * SCORE_BINS).long().clamp_(0, SCORE_BINS - 1)
        kind = self.class_of[token]
        self.add("counts", token)
        self.add("scores", score)
        self.add("positions", kind[0::2] * self.K + kind[1::2])
        self.add("seeds", kind[:, 0::2] * self.K + kind[:, 1::2])
        self.add("high_seeds", kind[:, : B // 2] * self.K + kind[:, B // 2 :])
        self.add("tokens_scores", kind * SCORE_CLASSES + score // (SCORE_BINS // SCORE_CLASSES))

    def uniform(self, score):
        return torch.exp(-torch.exp(self.log_z - score.double()))

    def clear(self):
        for name in ("counts", "scores") + self.TABLES:
            getattr(self, name).zero_()

    def fetch(self):
        for name in ("counts", "scores") + self.TABLES:
            array = getattr(self, name).cpu().numpy()
            setattr(self, name, array.reshape(self.K, -1) if name in self.TABLES else array)
        assert self.counts[-1] == 0, "%d rows without a token" % self.counts[-1]
        self.counts = self.counts[:-1]
        return self


# -------------------------------------------------------------------------------------------------------- runs ----


class Part:
    """The calls of one head, or of one shard: its tokens begin at `first`, and are named as if they did at `named`."""

    def __init__(self, W, h, names, temperature, first, named, context, screen):
        B, self.shift, self.context = h.shape[0], first - named, context
        self.head = fs.Head(W, first_token=named, screen=screen)
        self.tokens = torch.empty(CALLS, B, device="cuda", dtype=torch.int64)
        self.score = torch.empty(CALLS, B, device="cuda")
        self.calls = []
        for call in range(CALLS):
            own = {k: v[call] if isinstance(v, torch.Tensor) else v for k, v in names.items() if k != "step"}
            batch = fs.Batch(self.head, h, temperature=temperature, **own)
            out = {"tokens": self.tokens[call], "noisy_logit": self.score[call]}
            self.calls.append((batch, fs.Result.into(batch, out)))

    def queue(self, call):
        batch, result = self.calls[call]
        self.context.sample(self.head, batch, out=result)


class Run:
    """A graph of CALLS calls, what they draw tallied, and their names moved on."""

    def __init__(self, parts, names, tally):
        self.parts, self.names, self.tally = parts, names, tally
        start = {name: names[name].clone() for name in names["step"]}
        self.queue()  # loads every kernel before the capture, which may not
        tally.clear()
        for name, value in start.items():
            names[name].copy_(value)
        self.capture()

    def queue(self):
        for call in range(CALLS):
            for part in self.parts:
                part.queue(call)
        self.tally.take(*self.best())
        for name, step in self.names["step"].items():
            self.names[name].add_(step)

    def best(self):
        """Of the parts, the token with the largest score and that score: [CALLS, B] both."""
        token, score = self.parts[0].tokens + self.parts[0].shift, self.parts[0].score
        for part in self.parts[1:]:
            better = part.score > score
            token = torch.where(better, part.tokens + part.shift, token)
            score = torch.where(better, part.score, score)
        return token, score

    def capture(self):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=STREAM):
            self.queue()

    def replay(self):
        self.graph.replay()


def draw(source, draws, B=ROWS, temperature=1.0, names=by_position, W=None, shards=None, keep=0,
         context=GPU, screen=None):
    """A Tally of so many draws, or a few more, of one law. `names` is a function of B or what one returned.

    W replaces the source's own weights. shards are [(first, end, what the first token is named)]. The first `keep`
    replays leave their scores, as uniform values, in tally.kept. screen is the head's, where there are no shards.
    """
    names = names(B) if callable(names) else names
    W = source.W if W is None else W
    h = source.h.expand(B, -1).contiguous()
    parts = [Part(W[first:end], h, names, temperature, first, named, context, screen)
             for first, end, named in shards or [(0, len(W), 0)]]
    tally = Tally(*source.law(temperature))
    run, kept = Run(parts, names, tally), []
    torch.cuda.synchronize()
    start, replays = time.monotonic(), -(-draws // (CALLS * B))
    for i in range(replays):
        run.replay()
        if i < keep:
            kept.append(tally.uniform(run.best()[1]).reshape(-1))
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    tally.kept = torch.cat(kept).cpu().numpy() if kept else None
    print("\n%d draws in %.1f s, %.1f us a call of %d rows" % (replays * CALLS * B, seconds,
                                                               seconds / replays / CALLS * 1e6, B))
    return tally.fetch()


def draw_with_24_bits(source, draws, rows=512):
    """Counts of draws made in torch with noise -log(-log u), u = (k + 1/2) / 2^24. From the top, log1p keeps every bit
    of u where float does not."""
    logits = torch.tensor(source.logits, device="cuda", dtype=torch.float32)
    generator = torch.Generator("cuda").manual_seed(SEED)
    counts = torch.zeros(len(logits), device="cuda", dtype=torch.int64)
    scores = torch.empty(rows, len(logits), device="cuda")
    for _ in range(-(-draws // rows)):
        scores.random_(0, 2**24, generator=generator)  # 2^24 - 1 - k
        scores.add_(0.5).mul_(-(2.0**-24)).log1p_().neg_().log_().neg_()
        token = scores.add_(logits).argmax(1)
        counts.scatter_add_(0, token, torch.ones_like(token))
    return counts.cpu().numpy()
