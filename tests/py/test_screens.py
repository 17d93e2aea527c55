"""Screens from Python: Context.screen and Head(screen=...); the tokens are those without. And what fuzz_screens, which
compares millions of rows, says of screens that are wrong."""
import os
import re
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs

ROOT = Path(__file__).resolve().parents[2]
FUZZ = Path(os.environ.get("FS_BUILD", ROOT / "build" / "release")) / "tests" / "fuzz_screens"


@pytest.fixture(scope="module")
def context():
    with fs.Context("cpu", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    W = rng.standard_normal((4000, 256)).astype(np.float32)
    H = rng.standard_normal((24, 256)).astype(np.float32) * 0.3
    H[:, :] += W[rng.integers(0, 4000, 24)] * 0.05
    return fs.to_bf16(W), fs.to_bf16(H)


@pytest.mark.parametrize("bits", [8, 4, "4+8"])
def test_tokens_are_those_without(context, data, bits, tmp_path):
    W, H = data
    seen = []
    screen = context.screen(fs.Head(W, dtype="bf16"), bits, seed=7, progress=lambda *at: seen.append(at))
    assert seen and seen[-1] == (4000, 4000)
    assert screen.nbytes < W.nbytes * {8: 0.6, 4: 0.35, "4+8": 0.45}[bits]
    screen.tofile(tmp_path / "screen")
    mapped = np.memmap(tmp_path / "screen", dtype=np.uint8, mode="r")
    rows = 0
    for kept in (screen, mapped):
        for temperature in (0.0, 0.7):
            rules = dict(hidden_dtype="bf16", temperature=temperature, seed=3)
            for b in range(24):
                want = context.sample(fs.Head(W, dtype="bf16"), H[b : b + 1], **rules)
                assert context.counters.screened_rows == 0
                got = context.sample(fs.Head(W, dtype="bf16", screen=kept), H[b : b + 1], **rules)
                assert got.tokens[0] == want.tokens[0]
                rows += context.counters.screened_rows
    assert rows > (48 if bits == 8 else 24), "of 96 rows only %d were decided by a screen" % rows


class Stop(BaseException):
    """No Exception, as KeyboardInterrupt is none."""


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt, ValueError])
def test_what_progress_raises_stops_the_build_and_is_raised(context, data, kind, capfd):
    seen = []

    def progress(done, rows):
        seen.append(done)
        if len(seen) == 3:
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        context.screen(fs.Head(data[0], dtype="bf16"), progress=progress)
    assert len(seen) == 3 and seen[-1] < 4000
    assert capfd.readouterr().err == ""
    assert context.screen(fs.Head(data[0], dtype="bf16")).nbytes  # the context is not in use


def interrupt_soon():
    """Ctrl-C in a moment; mostly while C computes."""
    thread = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    thread.start()
    return thread


@pytest.mark.parametrize("with_progress", [False, True])
def test_ctrl_c_stops_the_build(with_progress, capfd):
    W = np.zeros((1 << 16, 1024), np.uint16)
    with fs.Context("cpu", threads=1) as context:
        for _ in range(5):  # the moment it comes differs
            seen, before = [], signal.getsignal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):  # on a busy machine it may come before the build begins
                thread = interrupt_soon()
                context.screen(fs.Head(W, dtype="bf16"), progress=(lambda *at: seen.append(at)) if with_progress else None)
            thread.join()
            assert (1 << 16, 1 << 16) not in seen
            assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err == ""


def test_a_handler_that_does_not_raise_lets_the_build_end(data):
    """As in a program that ends after what it is doing; and where Ctrl-C is ignored, nothing is replaced."""
    heard, before = [], signal.getsignal(signal.SIGINT)
    W = np.tile(data[0], (8, 4))
    try:
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
        with fs.Context("cpu", threads=1) as context:
            thread = interrupt_soon()
            screen = context.screen(fs.Head(W, dtype="bf16"))
            thread.join()
            assert heard == [signal.SIGINT] and screen.nbytes
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            context.screen(fs.Head(data[0], dtype="bf16"), progress=lambda *at: os.kill(os.getpid(), signal.SIGINT))
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_that_is_not_the_main_one_builds(data):
    with ThreadPoolExecutor(1) as pool, fs.Context("cpu", threads=1) as context:
        seen = []
        screen = pool.submit(context.screen, fs.Head(data[0], dtype="bf16"), progress=lambda *at: seen.append(at))
        assert screen.result().nbytes and seen


def test_equal_seeds_make_equal_bytes(context, data):
    made = [context.screen(fs.Head(data[0], dtype="bf16"), 4, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(made[0], made[1]) and not np.array_equal(made[0], made[2])


def test_what_is_no_screen_of_these_weights_is_refused(context, data):
    W, H = data
    screen = context.screen(fs.Head(W, dtype="bf16"))
    other = W.copy()
    other[::7] ^= 1
    with pytest.raises(fs.Error, match="screen"):
        context.sample(fs.Head(other, dtype="bf16", screen=screen), H, hidden_dtype="bf16")
    with pytest.raises(ValueError, match=r"screen: uint16\[\d+\] at 0x[0-9a-f]+ on cpu, expected uint8"):
        fs.Head(W, dtype="bf16", screen=screen.view(np.uint16))
    with pytest.raises(ValueError, match="64-byte aligned"):
        fs.Head(W, dtype="bf16", screen=screen[1:])
    with pytest.raises(ValueError, match="bits '5': expected one of 8, 4"):
        context.screen(fs.Head(W, dtype="bf16"), 5)


@pytest.mark.skipif(not FUZZ.exists(), reason=f"{FUZZ} was not built (FS_TESTS=OFF)")
@pytest.mark.parametrize("planted", ["scales", "bounds"])
def test_fuzz_screens_finds_a_planted_error(planted):
    """The comparison of `make screen-equal`: scales that have lost a bit; bounds that leave out what was rounded."""
    for seed in ("1", "2"):
        found = subprocess.run([FUZZ, "--plant", planted, "--calls", "3", "--seed", seed], capture_output=True,
                               text=True, timeout=300)
        assert found.returncode == 1 and "fault: " in found.stdout and ", by the screen " in found.stdout, found.stdout


def test_a_screen_that_decides_nothing_is_read_less_and_less(data, monkeypatch):
    """Steps of 4 bits are too coarse for a few columns that are far larger than the others: behind a call that was
    left to W the next reads W at once, behind a second one 31. A screen that decides a call begins anew; another screen
    of the context has a history of its own."""
    monkeypatch.delenv("FLASHSAMPLING_SCREEN_ROWS", raising=False)
    context, rng = fs.Context("cpu", threads=1), np.random.default_rng(1)
    W = fs.from_bf16(data[0]).copy()
    W[:, :8] *= 60
    W = fs.to_bf16(W)
    hard = rng.standard_normal((1, 256)).astype(np.float32) * 0.05
    easy = np.zeros((1, 256), np.float32)
    easy[0, 64:] = fs.from_bf16(W)[77, 64:]
    plain = fs.Head(W, dtype="bf16")

    def read(head, hidden, calls):
        """Of each call: 1, the screen was read, and W too; 0, the screen; nothing of it."""
        seen = ""
        for i in range(calls):
            rules = dict(hidden_dtype="bf16", temperature=0.0, position=i)
            got, counters = context.sample(head, fs.to_bf16(hidden), **rules), context.counters
            assert got.tokens[0] == context.sample(plain, fs.to_bf16(hidden), **rules).tokens[0]
            seen += "0" if counters.screened_rows else "1" if counters.fallback_rows else "-"
        return seen

    head, other = (fs.Head(W, dtype="bf16", screen=context.screen(plain, 4, seed=seed)) for seed in (1, 2))
    waits = "".join("1" + "-" * count for count in (1, 31, 31))
    assert read(head, hard, len(waits)) == waits
    assert read(other, hard, 5) == waits[:5]
    assert read(head, hard, 2) == "1-"
    assert read(head, easy, 32) == "-" * 30 + "00"
    assert read(head, hard, 4) == waits[:4]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("softcap", [0.0, 0.5])
def test_a_row_with_a_nan_says_so_with_a_screen_too(backend, bits, softcap, monkeypatch):
    """A NaN in W, and a NaN edit, of tokens that are never drawn: the row's status has FS_ROW_NAN all the same."""
    monkeypatch.setenv("FLASHSAMPLING_SCREEN_ROWS", "64")
    context, rng = fs.Context(backend, threads=1), np.random.default_rng(3)
    H = rng.standard_normal((2, 256)).astype(np.float32)
    nan = float("nan")
    for row, edits, expected in ((77, [[], []], [fs.Row.NAN, fs.Row.NAN]),
                                 (None, [[(5, nan)], [(7, 1.0)]], [fs.Row.NAN, fs.Row.OK]),
                                 (None, [[(5, 2.0), (5, nan)], [(9, nan)]], [fs.Row.NAN, fs.Row.NAN]),
                                 ("bias", [[], []], [fs.Row.NAN, fs.Row.NAN])):
        W = (rng.standard_normal((4000, 256)) * 0.3).astype(np.float32)
        about = dict(softcap=softcap)
        if row == "bias":
            about["bias"] = np.zeros(4000, np.float32)
            about["bias"][88] = nan
        elif row is not None:
            W[row, 3] = nan
        plain = fs.Head(W, **about)
        screened = fs.Head(W, screen=context.screen(plain, bits), **about)
        draws = [context.sample(head, H, edits=edits) for head in (plain, screened)]
        assert np.array_equal(draws[0].tokens, draws[1].tokens)
        for draw in draws:
            assert [status & ~fs.Row.FALLBACK for status in draw.status.tolist()] == expected


def test_one_changed_row_is_refused(context, data):
    """As a fine-tuned special token is: whichever row it is."""
    W, H = data
    screen = context.screen(fs.Head(W, dtype="bf16"))
    for row in range(0, len(W), max(1, len(W) // 40)):
        other = W.copy()
        other[row] ^= 4
        with pytest.raises(fs.Error, match=r"made of other weights: some of rows \d+ to \d+ differ"):
            context.sample(fs.Head(other, dtype="bf16", screen=screen), H, hidden_dtype="bf16")
    context.check_screen(fs.Head(W, dtype="bf16", screen=screen))
    other = W.copy()
    other[33, 5] ^= 4
    with pytest.raises(fs.Error, match="rows 32 to 47 differ"):
        context.check_screen(fs.Head(other, dtype="bf16", screen=screen))
    with pytest.raises(fs.Error, match="head.screen is NULL"):
        context.check_screen(fs.Head(W, dtype="bf16"))


def test_a_damaged_file_is_refused(context, data, tmp_path):
    W, H = data
    path = tmp_path / "screen"
    context.screen(fs.Head(W, dtype="bf16"), 4).tofile(path)
    damaged = np.fromfile(path, np.uint8)
    damaged[len(damaged) // 2] ^= 16
    memory = np.zeros(len(damaged) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(damaged)] = damaged
    with pytest.raises(fs.Error, match="head.screen was changed: the checksum of its body is"):
        context.sample(fs.Head(W, dtype="bf16", screen=memory[start : start + len(damaged)]), H, hidden_dtype="bf16")


def counts_of(*options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, ROOT / "bench" / "screen_counts.py", *options], capture_output=True,
                          text=True, timeout=300, env=environment)


def test_the_bench_counts_logits_on_every_head():
    found = counts_of("--vocab", "3001", "--dim", "128", "--rows", "2", "--seeds", "1", "--threads", "1")
    assert found.returncode == 0, found.stderr
    rows = [line.split(" | ") for line in found.stdout.splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows[1:]] == ["8", "4", "4+8", "4+8 by H"] * 5 and all(len(row) == len(rows[0]) for row in rows)
    assert re.fullmatch(r"\d+ / \d+ / \d+", rows[1][2]), rows[1]  # 8 bits decide both rows at T = 1
    assert found.stdout.endswith("\n0 tokens differ from those of W\n")
    assert "--model and --text: both or neither" in counts_of("--model", "nowhere").stderr


def test_the_bench_sees_another_token(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import screen_counts

    count = screen_counts.Count()
    for got, dots in ((5, 3), (5, 2000), (6, 4), (5, 0)):
        count.add(np.array([got]), np.array([5]), types.SimpleNamespace(screened_rows=int(dots > 0),
                                                                        screened_dots=dots))
    assert count.differ == 1 and str(count) == "4 / 1,800 / 2,000 (1)"
