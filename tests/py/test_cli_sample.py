"""`flashsample sample`: files and options mean what the header says; which files it refuses."""
import json
import struct

import numpy as np
import pytest

import flashsampling as fs
from model import logsumexp
from program import pytestmark, run, sample  # noqa: F401


def save(folder, name, array):
    path = folder / f"{name}.npy"
    np.save(path, array)
    return path


def tokens_of(answer):
    return [row["tokens"] for row in answer["rows"]]


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(5)


@pytest.fixture(scope="module")
def logits(rng):
    return (2.5 * rng.standard_normal((5, 317))).astype(np.float32)


@pytest.fixture()
def stored(tmp_path, logits):
    return save(tmp_path, "logits", logits)


# -------------------------------------------------------------------------------------------------------- sample ----

def test_greedy_and_logprobs_equal_numpy(stored, logits):
    answer = sample("--logits", stored, "--temperature", 0, "--logprobs", "raw", "--top", 3, "--watch", "7,2/0")
    expected = logits - logsumexp(logits.astype(np.float64))[:, None]
    order = np.argsort(-logits, axis=1, kind="stable")
    for b, row in enumerate(answer["rows"]):
        assert row["tokens"] == [order[b, 0]] and row["rank"] == [1] and row["status"] == 0
        assert row["top_token"] == list(order[b, :3])
        assert np.allclose(row["top_logprob"], expected[b, order[b, :3]], atol=1e-5)
        assert np.allclose(row["logprob"], expected[b, order[b, 0]], atol=1e-5)
        assert np.isclose(row["log_z"], logsumexp(logits[b].astype(np.float64)), atol=1e-5)
        assert row["watch_token"] == ([7, 0] if b == 2 else [7])
        assert np.allclose(row["watch_logprob"], expected[b, row["watch_token"]], atol=1e-5)


def test_text_and_json_and_file_tell_the_same_tokens(stored, tmp_path):
    words = ["--logits", stored, "--seed", 3, "--samples", 2]
    expected = tokens_of(sample(*words))
    text = run("sample", *words, "--quiet", "--out", tmp_path / "t.npy")[0].splitlines()
    assert [int(line.split()[2]) for line in text[1:]] == sum(expected, [])
    assert len({len(line) - len(line.split()[-1]) for line in text[1:]}) == 1  # columns align
    assert np.load(tmp_path / "t.npy").tolist() == expected
    run("sample", *words, "--i64", "--out", tmp_path / "t.npy")
    assert np.load(tmp_path / "t.npy").dtype == np.int64 and np.load(tmp_path / "t.npy").tolist() == expected


def test_tokens_do_not_depend_on_threads_blocks_or_shards():
    words = ["--synthetic", "1000,48,6", "--top-p", "0.9,0.9,1,1,1,.5", "--temperature", "1,2,1,2,0,1", "--position", 9]
    expected = tokens_of(sample(*words))
    for more in (["--threads", 1], ["--block", 128], ["--shards", 3], ["--threads", 3, "--block", 256]):
        assert tokens_of(sample(*words, *more)) == expected


def test_shards_prove_wide_cuts_by_longer_lists():
    """Lists of 1,024, of 1 and of k entries, which do not prove the cut of the first row."""
    words = ["--synthetic", "50000,16,2", "--temperature", 50, "--top-p", "0.99,1"]
    for more in ([], ["--list-capacity", 1], ["--top-k", 30000, "--joint-top-p"],
                 ["--logprobs", "raw", "--exact-rank", "--top", 3]):
        whole, shared = sample(*words, *more), sample(*words, *more, "--shards", 3)
        assert whole["fallback_rows"] == shared["fallback_rows"] > 0
        assert whole["rows"] == shared["rows"] and shared["rows"][0]["status_text"] == "second pass"


def test_each_flag_is_the_librarys(tmp_path, rng):
    """On logits with ties, so that each flag shows."""
    x = (np.round(rng.standard_normal((8, 60)) * 4) / 2).astype(np.float32)
    seen = (rng.random((8, 60)) < 0.5).astype(np.uint8)
    rules = dict(top_k=12, top_p=0.8, min_p=0.15, temperature=1.5, repetition=1.5, seed=1, samples=6)
    words = ["--logits", save(tmp_path, "x", x), "--seen", save(tmp_path, "seen", seen), "--edits", "3:2,0/4:1.5,5:1",
             "--logprobs", "cut", "--top", 60]
    words += [word for name, value in rules.items() for word in ("--" + name.replace("_", "-"), value)]
    context, head = fs.Context(), fs.Head(logits=x)
    edits = [[(3, 2.0), (4, 1.5), (5, 1.0)]] + [[(3, 2.0), (5, 1.0)]] * 7
    flags = {"--joint-top-p": "joint_top_p", "--min-p-last": "min_p_last", "--edits-last": "edits_last",
             "--cut-before-temperature": "cut_before_temperature", "--rank-of-ties": "rank_of_ties",
             "--keep-ties=top-k": "keep_ties_top_k", "--keep-ties=top-p": "keep_ties_top_p",
             "--keep-ties=both": "keep_ties"}
    plain = sample(*words)["rows"]
    for word, flag in flags.items():
        rows = sample(*words, word)["rows"]
        result = context.sample(head, **rules, seen=fs.pack_bits(seen), edits=edits, outputs="all", top=60,
                                logits_mode="cut", **{flag: True})
        for b, row in enumerate(rows):
            top = [t for t in row["top_token"] if t is not None and t >= 0]
            assert row["tokens"] == result.tokens[b].tolist() and row["rank"] == result.rank[b].tolist(), word
            assert top == result.top_token[b, :(result.top_token[b] >= 0).sum()].tolist(), word
        assert rows != plain, word


def test_integers_are_decimal_or_hexadecimal():
    words = ["--synthetic", "1000,48,4", "--mode", "without-replacement", "--seed", 5]
    for option in ("samples", "top-k"):
        run_with = lambda text: tokens_of(sample(*words, "--samples", 12, f"--{option}", text))
        assert run_with("010") == run_with("10") == run_with("0xA") == run_with("0xa") != run_with("8")


def test_head_and_hidden_states_of_every_type(tmp_path, rng):
    w, h = rng.standard_normal((100, 24)), rng.standard_normal((3, 24))
    bits = lambda x: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    widen = lambda x: (x.astype(np.uint32) << 16).view(np.float32)
    cases = [(np.float32, [], lambda x: x.astype(np.float32), lambda x: x),
             (np.float16, [], lambda x: x.astype(np.float16), lambda x: x),
             ("bf16 as u2", ["--bf16"], bits, widen),
             ("bf16 as V2", [], lambda x: bits(x).view("V2"), lambda x: widen(x.view(np.uint16)))]
    for name, words, store, load in cases:
        files = save(tmp_path, "w", store(w)), save(tmp_path, "h", store(h))
        answer = sample("--head", files[0], "--hidden", files[1], *words, "--temperature", 0, "--logprobs", "raw")
        x = load(store(h)).astype(np.float64) @ load(store(w)).astype(np.float64).T
        assert tokens_of(answer) == [[t] for t in x.argmax(axis=1)], name
        assert np.allclose([row["max_logit"] for row in answer["rows"]], x.max(axis=1), atol=1e-4), name


def test_the_drawn_token_is_the_largest_logit_plus_noise(stored, logits):
    seeds = [3, 5, 2**63, 7, 2**64 - 1]
    words = ["--seed", ",".join(map(str, seeds)), "--position", "1,2,3,4,5", "--substream", 6]
    answer = sample("--logits", stored, *words)
    for b, row in enumerate(answer["rows"]):
        noise = [fs.noise_gumbel(seeds[b], b + 1, 0, 6, v) for v in range(logits.shape[1])]
        assert row["tokens"] == [int(np.argmax(logits[b] + np.array(noise)))]


def test_bias_scale_and_softcap_come_in_the_headers_order(tmp_path, stored, logits):
    bias = np.linspace(-1, 1, logits.shape[1])
    words = ["--bias", save(tmp_path, "bias", bias), "--scale", 0.5, "--softcap", 2, "--post-scale", 3]
    answer = sample("--logits", stored, *words, "--logprobs", "raw", "--top", 1)
    x = 3 * 2 * np.tanh((logits + bias) * 0.5 / 2)
    assert np.allclose([row["max_logit"] for row in answer["rows"]], x.max(axis=1), atol=1e-5)


def test_masks_as_bytes_and_as_bits(tmp_path, stored, logits):
    V = logits.shape[1]
    allow = np.zeros((2, V), bool)
    allow[0, 40:44] = allow[1, 300] = True
    bits = np.packbits(np.pad(allow, ((0, 0), (0, -V % 32))), axis=1, bitorder="little").view("<u4")
    for mask in (allow, allow.astype(np.uint8), bits):
        words = ["--allow", save(tmp_path, "mask", mask), "--allow-index", "0,1,1,0,-1", "--temperature", 0]
        got = tokens_of(sample("--logits", stored, *words))
        assert got[1:3] == [[300], [300]]
        assert got[0] == [40 + int(logits[0, 40:44].argmax())] and got[4] == [int(logits[4].argmax())]
    for index in ("2,0,0,0,0", "-2,0,0,0,0"):
        _, err = run("sample", "--logits", stored, *words[:2], "--allow-index", index, code=2)
        assert f"--allow-index: {index[:-8]} for row 0, the file has" in err
    _, err = run("sample", "--logits", stored, "--allow", save(tmp_path, "mask", allow), code=3)
    assert "2 masks for 5 rows" in err
    _, err = run("sample", "--logits", stored, "--allow", save(tmp_path, "mask", allow[:, :9]), code=3)
    assert "[2, 9] b1" in err and "317" in err


def test_a_mask_that_allows_nothing_leaves_no_token(tmp_path, stored, logits):
    words = ["--allow", save(tmp_path, "mask", np.zeros(logits.shape[1], bool)), "--fallback-token", -7]
    row = sample("--logits", stored, *words, "--logprobs", "raw")["rows"][0]
    assert row["tokens"] == [-7] and row["status_text"] == "empty" and row["logprob"] == ["nan"]


# ------------------------------------------------------------------------------------------------------- screens ----

RULES = [[], ["--temperature", 0], ["--top-k", 20, "--top-p", 0.9], ["--min-p", 0.1, "--samples", 3],
         ["--edits", "5:9,1/7:ban", "--temperature", "1,2,.5,0,1"], ["--mode", "without-replacement", "--samples", 4],
         ["--shards", 3], ["--shards", 3, "--top-k", 9], ["--logprobs", "raw"], ["--softcap", 9, "--vocab", 3990]]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: " ".join(map(str, rules)) or "plain")
def test_a_screen_draws_the_tokens_of_w(bits, rules):
    words = ["--synthetic", "4001,256,5", "--position", 3, *rules]
    env = {"FLASHSAMPLING_SCREEN_ROWS": "64"}
    by_screen, from_w = sample(*words, "--screen", bits, env=env), sample(*words)
    for one, other in zip(by_screen["rows"], from_w["rows"]):
        assert {**one, "status": 0, "status_text": ""} == {**other, "status": 0, "status_text": ""}
    facts = by_screen["screen"]
    assert facts["bits"] == bits and facts["bytes"] > 0 and facts["seconds"] > 0 and "screen" not in from_w
    if "--shards" in rules:  # parts do not count
        assert "decided_rows" not in facts
    elif "--logprobs" in rules:  # every logit is needed
        assert facts["decided_rows"] == facts["logits_from_w"] == 0
    else:
        assert facts["decided_rows"] + by_screen["fallback_rows"] == 5
        assert bits == 4 or "--top-k" in rules or facts["decided_rows"] == 5 <= facts["logits_from_w"] < 2000


def test_each_shard_draws_by_its_slice_of_the_screen():
    _, err = run("sample", "--synthetic", "4001,256,5", "--shards", 3, "--screen", 4, "--verbose", "--quiet")
    assert err.count("screen: FS_SCREEN_INT4") == 3


def test_a_screen_of_a_file_and_what_is_said_of_it(tmp_path, rng):
    w, h = rng.standard_normal((1000, 200)).astype(np.float16), rng.standard_normal((3, 200)).astype(np.float16)
    words = ["--head", save(tmp_path, "w", w), "--hidden", save(tmp_path, "h", h), "--temperature", 0.2]
    answer = sample(*words, "--screen", 8)
    assert tokens_of(answer) == tokens_of(sample(*words)) and answer["screen"]["bytes"] < w.nbytes
    out, _ = run("sample", *words, "--screen", 8)
    assert out.splitlines()[-1].startswith("8-bit screen of ") and "; it decided 3 of 3 rows, with " in out
    assert "screen" not in run("sample", *words, "--screen", 8, "--quiet")[0]


def test_a_screen_in_4_bits_can_be_made_again():
    words = ["--synthetic", "4001,256,3", "--screen", 4, "--threads", 1]
    counts = lambda *more: sample(*words, *more)["screen"]["logits_from_w"]
    assert len({counts("--seed", 6) for _ in range(3)}) == 1


def test_a_screen_is_refused_where_the_library_does(tmp_path):
    w = np.zeros((2, (1 << 19) + 1), np.float16)
    words = ["--head", save(tmp_path, "w", w), "--hidden", save(tmp_path, "h", w[:1]), "--screen", 8]
    assert "head.dim is 524289, must be 1 to 524288 for a screen" in run("sample", *words, code=2)[1]


# -------------------------------------------------------------------------------------- values that C reads anew ----

def test_the_fallback_token_may_be_token_0(tmp_path, stored, logits):
    words = ["--allow", save(tmp_path, "mask", np.zeros(logits.shape[1], bool)), "--fallback-token", 0]
    assert tokens_of(sample("--logits", stored, *words)) == [[0]] * 5


def test_top_p_of_0_keeps_one_token_for_one_row_as_for_all(stored, logits):
    """As a scalar 0 would mean "off" in C."""
    words = ["--logits", stored, "--temperature", 50]
    assert tokens_of(sample(*words, "--top-p", 0)) == [[int(t)] for t in logits.argmax(axis=1)]
    assert tokens_of(sample(*words, "--top-p", "0,0,0,0,0")) == tokens_of(sample(*words, "--top-p", 0))


def test_top_p_of_1_and_what_rounds_to_it_are_off(stored):
    words = ["--logits", stored, "--temperature", 50]
    assert tokens_of(sample(*words, "--top-p", "1.000005")) == tokens_of(sample(*words))


def test_second_passes_may_take_what_the_library_grants_unless_told_otherwise():
    work = lambda *words: sample("--synthetic", "800000,4,32", "--temperature", 50, "--top-p", 0.99, *words)["work_bytes"]
    assert work() == work("--fallback-mib", 320) > work("--fallback-mib", 64)


@pytest.mark.parametrize("words, status, code", [
    (["--temperature", "1,1e-45,1e-45"], "bad temperature", 2),
    (["--temperature", 50, "--top-p", "1,0.99,0.99", "--fallback-mib", 0], "incomplete", 3),
])
def test_rows_that_failed_are_printed_and_end_the_program_with_a_code(words, status, code):
    out, err = run("sample", "--synthetic", "50000,16,3", *words, "--json", "--quiet", code=code)
    first, *failed = json.loads(out)["rows"]
    assert first["tokens"][0] >= 0 and len(failed) == 2
    assert all(row["tokens"] == [-1] and row["status_text"] == status for row in failed)
    assert err == f"flashsample sample: 2 rows have no token; row 1: {status}\n"


def test_values_of_files_are_held_to_the_same_limits(tmp_path, stored):
    values = save(tmp_path, "t", np.array([1, 1, np.nan, 1, 1], np.float32))
    text = run("sample", "--logits", stored, "--temperature", f"@{values}", code=2)[1]
    assert "--temperature nan: expected a finite" in text


def test_edits_and_penalties_equal_numpy(tmp_path, stored, logits):
    V = logits.shape[1]
    counts = np.zeros(V, np.int64)
    counts[[3, 9, 50]] = [2, 1, 4]
    seen = np.zeros(V, bool)
    seen[100:200] = True
    y = logits.astype(np.float64).copy()
    y[:, 5] += 30
    y[2, 5] = -np.inf
    hit = (counts > 0) | seen
    y[:, hit] = np.where(y > 0, y / 1.5, y * 1.5)[:, hit]
    y -= 0.5 * counts + 0.25 * (counts > 0)
    words = ["--edits", "5:30,2/5:ban", "--repetition", 1.5, "--frequency", 0.5, "--presence", 0.25,
             "--seen", save(tmp_path, "seen", seen), "--logprobs", "processed", "--top", 20]
    for source in (["--counts", save(tmp_path, "counts", counts)], ["--count-list", "3:2,9:1,50:4"]):
        for b, row in enumerate(sample("--logits", stored, *words, *source)["rows"]):
            assert row["top_token"] == list(np.argsort(-y[b], kind="stable")[:20])
            assert np.allclose(row["top_logit"], np.sort(y[b])[::-1][:20], atol=1e-5)


def test_score_mode_scores_the_given_tokens(tmp_path, stored, logits):
    given = np.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
    words = ["--mode", "score", "--samples", 2, "--score-tokens", "@" + str(save(tmp_path, "given", given))]
    expected = logits - logsumexp(logits.astype(np.float64))[:, None]
    for b, row in enumerate(sample("--logits", stored, *words)["rows"]):
        assert row["tokens"] == given[b].tolist()
        assert np.allclose(row["logprob"], expected[b, given[b]], atol=1e-5)


def test_slots_skip_rows_and_choose_values(stored, logits):
    words = ["--slot", "1,-1,0,1,0", "--temperature", "0,1", "--seed", "5,6", "--position", 4]
    answer = sample("--logits", stored, *words)
    assert answer["rows"][1]["tokens"] == [-1] and answer["rows"][1]["status_text"] == "skipped"
    assert answer["rows"][2]["tokens"] == [int(logits[2].argmax())]


def test_without_replacement_draws_distinct_tokens(tmp_path):
    path = save(tmp_path, "few", np.zeros((1, 3), np.float32))
    row = sample("--logits", path, "--mode", "without-replacement", "--samples", 5)["rows"][0]
    assert sorted(row["tokens"][:3]) == [0, 1, 2] and row["tokens"][3:] == [-1, -1]
    assert "short" in row["status_text"]


def test_an_empty_batch_is_no_error(tmp_path):
    assert sample("--logits", save(tmp_path, "none", np.zeros((0, 9), np.float32)))["rows"] == []


# --------------------------------------------------------------------------------------------------------- files ----

def npy(header, payload=b"", version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + payload


HOSTILE = {
    "empty": (b"", "not a .npy file"),
    "zip": (b"PK\x03\x04 and more of it", "not a .npy file"),
    "version 9": (b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16, "version 9"),
    "length": (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", "2147483647 bytes"),
    "short header": (b"\x93NUMPY\x01\x00\x76\x00{'descr'", "ends inside its header"),
    "truncated": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", b"\0" * 23), "the file has 23"),
    "too long": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", b"\0" * 25), "the file has 25"),
    "overflow": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"), "more elements"),
    "huge": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"), "the file has 0"),
    "negative": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }"), "no number"),
    "fortran": (npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", b"\0" * 24), "ascontiguousarray"),
    "big-endian": (npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", b"\0" * 24), "big-endian"),
    "objects": (npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", b"\0" * 48), "'|O' is not supported"),
    "code": (npy("__import__('os').system('true')"), "not a dictionary"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("option", ["logits", "bias"])
def test_hostile_files_are_refused_by_name(tmp_path, stored, name, option):
    path = tmp_path / "bad.npy"
    path.write_bytes(HOSTILE[name][0])
    words = ["--logits", path] if option == "logits" else ["--logits", stored, "--bias", path]
    out, err = run("sample", *words, code=3)
    assert out == "" and str(path) in err and HOSTILE[name][1] in err and f"--{option}" in err


def test_the_type_of_a_file_is_the_files(stored, tmp_path):
    for dtype in ("f32", "bf16"):
        _, err = run("sample", "--logits", stored, "--dtype", dtype, code=2)
        assert err == f"flashsample sample: --dtype {dtype} goes with --synthetic: a file has its own type\n"


def test_a_missing_file_and_a_wrong_shape_are_refused(tmp_path, stored):
    assert "No such file" in run("sample", "--logits", tmp_path / "nothing.npy", code=3)[1]
    flat = save(tmp_path, "flat", np.zeros(4, np.float32))
    assert "[4] f4, expected two dimensions" in run("sample", "--logits", flat, code=3)[1]
    ints = save(tmp_path, "ints", np.zeros((2, 4), np.int32))
    assert "[2, 4] i4, expected f4, f2 or V2" in run("sample", "--logits", ints, code=3)[1]
    u2 = save(tmp_path, "u2", np.zeros((2, 4), np.uint16))
    assert "--bf16" in run("sample", "--logits", u2, code=3)[1]
    assert "2 elements" in run("sample", "--logits", stored, "--bias", save(tmp_path, "b", np.zeros(2)), code=3)[1]
    reals = save(tmp_path, "reals", np.ones(5))
    assert "the file holds f8" in run("sample", "--logits", stored, "--seed", f"@{reals}", code=3)[1]
    four = save(tmp_path, "four", np.arange(4))
    assert "4 values for 5 slots" in run("sample", "--logits", stored, "--seed", f"@{four}", code=3)[1]
    assert "4 values for 5 slots" in run("sample", "--logits", stored, "--seed", "1,2,3,4", code=2)[1]
    big = save(tmp_path, "big", np.full(5, 2**40))
    assert "1099511627776" in run("sample", "--logits", stored, "--top-k", f"@{big}", code=2)[1]
    assert "Is a directory" in run("sample", "--logits", tmp_path, code=3)[1]
