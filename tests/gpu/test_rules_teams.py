"""Rows with rules are ended by teams of CTAs, each with a slice of the row (src/cuda/rows): whatever their number, and
whether slices are in shared memory, results are the same bits, and those of the CPU backend."""
import os

import numpy as np
import pytest

from rules_cases import DEVICE, HOW, STANDIN, Case, check, fs, on_device, torch
from rules_inputs import gaussian, language, mixed_case
from cases import pick, stored_as

TEAM = "FLASHSAMPLING_CUDA_TEAM"
TEAMS = ("1", "2", "4", "8", "1:256", "2:512", "8:256")
ROWS = (1, 2, 8, 16, 17, 33, 66, 132, 133)


def context_of(team):
    if STANDIN:
        return fs.Context(STANDIN)
    before = os.environ.pop(TEAM, None)
    os.environ[TEAM] = team
    try:
        return fs.Context("cuda", cuda_stream=torch.cuda.current_stream().cuda_stream)
    finally:
        del os.environ[TEAM]
        if before is not None:
            os.environ[TEAM] = before


@pytest.fixture(scope="module")
def contexts():
    return {team: context_of(team) for team in TEAMS}


def same_bits(case, contexts):
    """Every team's results are those of the first; a text for what is not."""
    found = {team: on_device(case, seed, context) for seed, (team, context) in enumerate(contexts.items())}
    first = found[TEAMS[0]]
    for team, got in found.items():
        for name, want in first.items():
            own = got[name]
            if name == "status":
                own, want = own & ~HOW, want & ~HOW
            if own.tobytes() != want.tobytes():
                rows = [b for b in range(len(want)) if own[b].tobytes() != want[b].tobytes()][:8]
                return "team %s: other bits than team %s in %s, rows %s" % (team, TEAMS[0], name, rows)
    return ""


def mixed(seed, rows, vocab, dtype="f32", **asked):
    rng = np.random.default_rng([17, seed, rows, vocab])
    head = dict(logits=stored_as(language(rng, rows, vocab), dtype), dtype=dtype)
    return mixed_case(rng, head, None, rows, vocab, **{**dict(exact_rank=True, outputs="all"), **asked})


@pytest.mark.parametrize("rows", ROWS)
def test_any_number_of_rows(contexts, rows):
    for seed, logits in enumerate(("raw", "processed", "cut")):
        case = mixed(seed, rows, 2500, logits_mode=logits)
        assert not same_bits(case, contexts), same_bits(case, contexts)
        check([("rows %d, %s" % (rows, logits), case)])


@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 127, 128, 129, 255, 1023, 1025, 4095, 5000])
def test_any_vocabulary(contexts, vocab):
    """Fewer tokens than CTAs, slices without a token, a last one that is short."""
    case = mixed(vocab, 5, vocab, top=min(vocab, 20))
    assert not same_bits(case, contexts), same_bits(case, contexts)
    check([("V %d" % vocab, case)], contexts["8"])


@pytest.mark.parametrize("mode", ["sample", "without_replacement", "score"])
def test_many_samples(contexts, mode):
    """More of them than race at once; in score mode given ones."""
    rng = np.random.default_rng(5)
    rows, vocab, samples = 4, 3000, 19
    more = dict(score_tokens=rng.integers(0, vocab, (rows, samples))) if mode == "score" else {}
    case = Case(dict(logits=language(rng, rows, vocab), dtype="f32"), None, mode=mode, samples=samples, top=100,
                outputs="all", exact_rank=True, top_p=np.array([1.0, 0.93, 0.4, 1.0]), top_k=np.array([0, 0, 0, 40]),
                **more)
    assert not same_bits(case, contexts), same_bits(case, contexts)
    check([(mode, case)], contexts["8"])


@pytest.mark.parametrize("first", [0, 3, 128, 1001])
def test_a_shard(contexts, first):
    """Slices begin at blocks of the noise, wherever the shard's first token is."""
    rng = np.random.default_rng(first)
    case = Case(dict(logits=language(rng, 3, 1500), dtype="f32", first_token=first, vocab=first + 1400), None,
                outputs="all", top=10, exact_rank=True, top_p=np.array([0.9, 1.0, 0.5]))
    assert not same_bits(case, contexts), same_bits(case, contexts)
    check([("first %d" % first, case)], contexts["8"])


@pytest.mark.parametrize("kind", ["equal", "two values", "peaked", "infinite", "far"])
def test_odd_rows(contexts, kind):
    """Equal logits, of which a cut leaves many; rows whose winner is not in the nucleus; numbers far out."""
    rng, rows, vocab = np.random.default_rng(9), 8, 2000
    logits = {"equal": lambda: np.zeros((rows, vocab)),
              "two values": lambda: rng.integers(0, 2, (rows, vocab)) * 0.7,
              "peaked": lambda: np.where(rng.random((rows, vocab)) < 1e-3, 12.0, rng.normal(0, 1, (rows, vocab))),
              "infinite": lambda: np.where(rng.random((rows, vocab)) < 3e-3, np.inf, rng.normal(0, 1, (rows, vocab))),
              "far": lambda: rng.normal(0, 1e6, (rows, vocab))}[kind]().astype(np.float32)
    case = Case(dict(logits=logits, dtype="f32"), None, outputs="all", top=60, exact_rank=True,
                top_p=np.array([0.02, 0.3, 0.5, 0.7, 0.9, 0.95, 0.999, 1.0]), keep_ties_top_p=bool(kind == "two values"))
    assert not same_bits(case, contexts), same_bits(case, contexts)
    check([(kind, case)], contexts["8"])


def test_a_row_that_no_shared_memory_holds(contexts):
    """Of half a million tokens: slices stay in memory, but for the largest teams."""
    case = Case(dict(logits=gaussian(3, 2, 530_003), dtype="f32"), None, outputs="all", top=20, exact_rank=True,
                top_p=np.array([0.9, 1.0]))
    assert not same_bits(case, contexts), same_bits(case, contexts)
    check([("long", case)], contexts["8"])


@pytest.mark.skipif(bool(STANDIN), reason="another backend in the device's place")
@pytest.mark.parametrize("text", ["0", "3", "16", "8:100", "8:", "x", "8:1024"])
def test_a_team_that_cannot_be(monkeypatch, text):
    monkeypatch.setenv(TEAM, text)
    with pytest.raises(fs.Error, match=TEAM):
        fs.Context("cuda")
