"""Inputs on the device, outputs between sentinels, and the oracle: dot products of torch in float64, drawn by the CPU.

Weights and hidden states lie on a grid by default, so that their dot products are exact in float in any order: tokens
must then be equal, without a tolerance. Values off the grid are for the tests that name a bound on a near tie.

Importing this skips the importing tests where there is no device, so it comes before torch there.
"""
import functools
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import flashsampling as fs

try:
    fs.Context("cuda").close()
except (ImportError, OSError, fs.Error) as error:
    pytest.skip("no library with a cuda backend for this device: %s" % error, allow_module_level=True)

STREAM = torch.cuda.Stream()
torch.cuda.set_stream(STREAM)  # torch's own work and the library's are ordered by one stream
GPU = fs.Context("cuda", cuda_stream=STREAM.cuda_stream)
CPU = fs.Context("cpu")
TILE = "FLASHSAMPLING_CUDA_TILE"

BF16, F16 = torch.bfloat16, torch.float16
SENTINEL = 0x7B7B7B7B
NEAR = 1e-3  # what the order of D = 512 additions in float moves a score by, at most; off the grid alone
NEAR_ROWS = 2  # rows of a call that may be so near a tie; expected is one in ten thousand


def forced(tile):
    """A context whose tile the environment forces: a family, or with ":N" one of its widths."""
    before = os.environ.get(TILE)
    os.environ[TILE] = tile
    try:
        return fs.Context("cuda", cuda_stream=STREAM.cuda_stream)
    finally:
        del os.environ[TILE]
        if before is not None:
            os.environ[TILE] = before


# ------------------------------------------------------------------------------------------------------ inputs ----


def normal(rows, columns, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, columns, device="cuda", generator=generator)


@functools.lru_cache(maxsize=4)
def weights(V, D, dtype=BF16, grid=True):
    """[V, D] whose logits have a standard deviation of 2.5. On the grid: multiples of 1/64 that both types hold."""
    w = normal(V, D, V + D) * (2.5 / D**0.5)
    return ((w * 64).round().clamp(-255, 255) / 64 if grid else w).to(dtype)


def hidden(B, D, dtype=BF16, grid=True):
    """[B, D]; on the grid: multiples of 1/4."""
    h = normal(B, D, B)
    return ((h * 4).round().clamp(-16, 16) / 4 if grid else h).to(dtype)


def laid(values, offset=0, stride=0):
    """The same values elsewhere: the first `offset` elements after an aligned address, rows `stride` elements apart (0:
    packed). What lies around and between them is NaN: a read of it shows."""
    rows, columns = values.shape
    stride = stride or columns
    flat = torch.full((offset + rows * stride + 64,), float("nan"), device="cuda", dtype=values.dtype)
    view = flat.as_strided((rows, columns), (stride, 1), offset)
    view.copy_(values)
    return view


def rules(B, greedy_every=5):
    """Temperatures with greedy rows among them, seeds that use their upper bits, positions: a value per row."""
    row = torch.arange(B, device="cuda")
    temperature = 0.7 + 0.05 * (row % 13).float()
    if greedy_every:
        temperature[greedy_every - 1 :: greedy_every] = 0
    seed = (row * 7919 + 13) * torch.where(row % 2 == 0, 1, -(2**40))
    return dict(temperature=temperature, seed=seed, position=row * 17 + 2**33)


def on_host(values):
    """Arrays of numpy. Seeds and streams are bits, which torch has as integers with a sign."""
    found = {name: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
    for name, bits in (("seed", np.uint64), ("substream", np.uint32)):
        if isinstance(found.get(name), np.ndarray):
            found[name] = found[name].view(bits)
    return found


# ------------------------------------------------------------------------------------------------------- calls ----


class Outputs:
    """The result arrays of a call, each between two bands of sentinels."""

    BAND = 64

    def __init__(self, rows, tokens=torch.int32, floats=("noisy_logit", "logit")):
        types = {"tokens": tokens, "status": torch.int32, **{name: torch.int32 for name in floats}}
        size = rows + 2 * self.BAND
        self.whole = {name: torch.full((size,), SENTINEL, device="cuda", dtype=t) for name, t in types.items()}
        self.rows = {name: a[self.BAND : self.BAND + rows] for name, a in self.whole.items()}
        self.rows.update((name, self.rows[name].view(torch.float32)) for name in floats)

    def untouched(self):
        return all((a == SENTINEL).all().item() for a in self.whole.values())

    def taken(self):
        """The rows, after a look at what lies around them."""
        for name, whole in self.whole.items():
            inside = whole[self.BAND : -self.BAND]
            assert (inside != SENTINEL).all(), "%s: a row was not written" % name
            around = torch.cat([whole[: self.BAND], whole[-self.BAND :]])
            assert (around == SENTINEL).all(), "%s: written outside its rows" % name
        return self.rows


def draw(W, H, asked, head=None, tokens=torch.int32, logits_mode="raw", context=None):
    """What the device draws: tensors by name. Calls have kernels of their own by what they want, tokens alone, scores
    too, or the largest logits, which must draw the same."""
    wanted = (), ("noisy_logit", "logit"), ("noisy_logit", "logit", "max_logit")
    outs = [Outputs(H.shape[0], tokens, floats) for floats in wanted]
    for each in outs:
        (context or GPU).sample(fs.Head(W, **(head or {})), H, out=each.rows, logits_mode=logits_mode, **asked)
    tokens_alone, scores, everything = (each.taken() for each in outs)
    assert same_bits(tokens_alone, scores), "tokens or status differ where nothing else is wanted"
    assert same_bits(scores, everything), "tokens, status or scores differ where largest logits are wanted too"
    return scores


def dots(W, H):
    """[B, V] in float64."""
    step = 1 << 15
    return torch.cat([H.double() @ W[i : i + step].double().T for i in range(0, W.shape[0], step)], 1)


def close(a, b, bound):
    with np.errstate(invalid="ignore"):
        return (a == b) | (np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b))


def one_bit(tokens, vocab):
    """An allow mask per row that leaves this token alone."""
    words = np.zeros((len(tokens), (vocab + 31) // 32), np.uint32)
    rows = np.flatnonzero(tokens >= 0)
    words[rows, tokens[rows] // 32] = np.uint32(1) << (tokens[rows] % 32).astype(np.uint32)
    return words


def check(W, H, asked, head=None, near=0.0, tokens=torch.int32, logits_mode="raw"):
    """Draws on the device and compares with the oracle: tokens, status, and score and logit of the device's own token.
    With `near`, rows may differ whose best two scores are nearer than that."""
    got = on_host(draw(W, H, asked, head, tokens, logits_mode))
    oracle = fs.Head(logits=dots(W, H).float().cpu().numpy(), **on_host(head or {}))
    asked = dict(on_host(asked), outputs=("noisy_logit", "logit"), logits_mode=logits_mode)
    want = CPU.sample(oracle, on_error="status", **asked)
    own = CPU.sample(oracle, allow=one_bit(got["tokens"], oracle.vocab), on_error="status", **asked)

    assert (got["status"].view(np.uint32) == want.status).all()
    drawn = want.status & fs.Row.NO_TOKEN == 0
    differ = np.flatnonzero(got["tokens"] != want.tokens[:, 0])
    assert drawn[differ].all()
    gap = want.noisy_logit[differ, 0] - own.noisy_logit[differ, 0]
    if len(differ):
        print("rows %s differ, their scores by %s" % (differ.tolist(), gap.tolist()))
    assert len(differ) <= (NEAR_ROWS if near else 0) and (gap <= near).all()
    for name in ("noisy_logit", "logit"):
        reference = getattr(own, name)[:, 0]
        bound = near + 4e-6 * np.maximum(1.0, np.abs(np.where(np.isfinite(reference), reference, 0)))
        assert close(got[name], reference, bound)[drawn].all(), name
        assert np.isnan(got[name][~drawn]).all(), name
    return got


def same_bits(a, b):
    return all(torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)) for name in a)


def select(values, index):
    return {name: v[index] for name, v in values.items()}
