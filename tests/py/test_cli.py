"""The program: what it prints, how it ends, that files and options mean what the header says, what it refuses."""
import json
import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

import flashsampling as fs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("FS_BUILD", ROOT / "build" / "release")) / "bin" / "flashsample"
COMMANDS = ["demo", "sample", "verify", "bench", "info"]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} was not built (FS_CLI=OFF)")


def run(*words, code=0, env=None):
    """Runs the program, checks how it ended, returns (stdout, stderr)."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def sample(*words, **keywords):
    return json.loads(run("sample", *words, "--json", "--quiet", **keywords)[0])


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


# ------------------------------------------------------------------------------------------------------- manners ----

def test_help_names_every_command():
    out, _ = run("--help")
    assert all(f"FLASHSAMPLING_{name} " in out for name in ("BACKEND", "ISA", "NODES", "CUDA_TILE", "MPI"))
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "Exit codes" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_fits_100_columns(command):
    out, _ = run(command, "--help")
    assert out.startswith(f"usage: flashsample {command}")
    assert max(map(len, out.splitlines())) <= 100
    assert "--threads N" in out and "--help" in out


def test_version_is_the_librarys():
    out, _ = run("--version")
    assert out.startswith(f"flashsample {fs.version()} ")


@pytest.mark.parametrize("words, said", [
    ([], "a command is missing"),
    (["smaple"], "did you mean sample?"),
    (["zzz"], 'unknown command "zzz"'),
    (["sample", "--temprature", "1"], "unknown option --temprature; did you mean --temperature?"),
    (["sample", "--zzzzzz"], "unknown option --zzzzzz"),
    (["sample", "stray"], 'unexpected argument "stray"'),
    (["sample", "--top"], "--top needs a value (N)"),
    (["sample", "--json=1"], "--json takes no value"),
    (["sample", "--samples", "0"], "--samples 0: must lie in 1 .. 1024"),
    (["sample", "--samples", "two"], "--samples two: not an integer"),
    (["sample", "--scale", "nan?"], "--scale nan?: not a number"),
    (["sample", "--mode", "dance"], "--mode dance: expected one of sample,"),
    (["sample"], "exactly one of --head, --logits and --synthetic"),
    (["sample", "--head", "x.npy"], "--head needs --hidden"),
    (["sample", "--synthetic", "10,4"], "expected V,D,B"),
    (["sample", "--synthetic", "10,4,99999999"], "B in 0 .. 2^20"),
    (["sample", "--synthetic", "10,4,2", "--seed", "-1"], "--seed -1: expected an integer from 0 to 2^64-1"),
    (["sample", "--synthetic", "10,4,2", "--top-k", "1,2,3"], "--top-k: 3 values for 2 slots"),
    (["sample", "--synthetic", "10,4,2", "--edits", "3=1"], "not a token id"),
    (["sample", "--synthetic", "10,4,2", "--edits", "7/3:1"], "must lie in 0 .. 1"),
    (["sample", "--synthetic", "10,4,2", "--edits", "3"], "expected [ROW/]TOKEN:VALUE"),
    (["sample", "--synthetic", "10,4,2", "--edits", "12:1"], "--edits: token 12, must be 0 to 9"),
    (["sample", "--synthetic", "10,4,2", "--watch", "10"], "--watch: token 10, must be 0 to 9"),
    (["sample", "--synthetic", "10,4,2", "--count-list", "11:1"], "--count-list: token 11, must be 0 to 9"),
    (["sample", "--synthetic", "10,4,2", "--keep-ties", "some"], "one of none, top-k, top-p, both"),
    (["sample", "--synthetic", "10,4,2", "--mode", "score"], "needs --given"),
    (["sample", "--synthetic", "10,4,2", "--softcap", "-1"], "must be 0 (none) or positive"),
    (["sample", "--synthetic", "10,4,2", "--slot", "0,2000000000"], "--slot 2000000000: must lie in -1 .. 1048575"),
    (["sample", "--synthetic", "10,4,2", "--slot", "0,-2"], "--slot -2: must lie in -1 .. 1048575"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "nan"], "nan: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "1,-1"], "-1: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "1e39"], "inf: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--top-p", "-0.1"], "--top-p -0.1: expected a number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--min-p", "1.5"], "--min-p 1.5: expected a number from 0 to 1"),
    (["sample", "--synthetic", "10,4,2", "--repetition", "0"], "--repetition 0: expected a finite number above 0"),
    (["sample", "--synthetic", "10,4,2", "--frequency", "inf"], "--frequency inf: expected a finite number"),
    (["sample", "--synthetic", "10,4,2", "--presence", "nan"], "--presence nan: expected a finite number"),
    (["sample", "--synthetic", "10,4,2", "--mode", "score", "--given", "3,10"], "--given: token 10, must be 0 to 9"),
    (["sample", "--synthetic", "10,4,2", "--top-k", "0x"], "--top-k 0x: expected an integer"),
    (["sample", "--synthetic", "10,4,2", "--top-k", "0b1"], "--top-k 0b1: expected an integer"),
    (["verify", "--draws", "10"], "must lie in 1000 .. 1000000000"),
    (["verify", "--rule", "nonsense"], "--rule nonsense"),
    (["bench", "--batch", "0"], "--batch 0: must lie in"),
])
def test_wrong_usage_ends_with_2_and_a_reason(words, said):
    out, err = run(*words, code=2)
    assert out == "" and said in err and err.startswith("flashsample") and err.count("\n") == 1


def test_more_memory_than_the_machine_has_is_refused():
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") > 10**12:
        pytest.skip("a machine with a terabyte of memory")
    _, err = run("sample", "--synthetic", "16000000,16384,1", "--dtype", "f32", code=3)
    assert "1048576000064 bytes, the machine has" in err


SMALL = ["--vocab", "300", "--dim", "16", "--seconds", "0"]


@pytest.mark.parametrize("words", [
    ["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS], ["info"], ["info", "--json"], ["info", "--isa-list"],
    ["sample", "--synthetic", "10,4,1"], ["sample", "--synthetic", "10,4,1", "--json"], ["verify", "--list"],
    ["bench", *SMALL, "--batch", "1", "--copies", "1", "--json"], ["demo", *SMALL, "--draws", "1000"],
], ids=" ".join)
def test_output_that_cannot_be_written_is_a_failure(words):
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "writing to stdout failed" in done.stderr


ESC = "\x1b]0;title\x07\x1b[31m\n\u009b2J\x7f"
SHOWN = r"\x1b]0;title\x07\x1b[31m\x0a\xc2\x9b2J\x7f"


@pytest.mark.parametrize("words, env", [
    (["sample", "--logits", "/no/é" + ESC], {}),
    (["sample", "--samples", "é" + ESC], {}),
    (["sample", "--é" + ESC, "1"], {}),
    (["é" + ESC], {}),
    (["sample", "é" + ESC], {}),
    (["sample", "--mode", "é" + ESC], {}),
    (["sample", "--synthetic", "10,4,1", "--top-k", "é" + ESC], {}),
    (["sample", "--synthetic", "10,4,1"], {"FLASHSAMPLING_ISA": "é" + ESC}),
    (["sample", "--synthetic", "10,4,1"], {"FLASHSAMPLING_BACKEND": "é" + ESC}),
    (["sample", "--synthetic", "10,4,1"], {"FLASHSAMPLING_MPI": "é" + ESC}),
    (["sample", "--synthetic", "10,4,1", "--out", "/no/é" + ESC], {}),
    (["info"], {"FLASHSAMPLING_BACKEND": "é" + ESC}),
])
def test_what_a_terminal_would_obey_is_shown_instead(words, env):
    done = subprocess.run([PROGRAM, *words], capture_output=True, env={**os.environ, **env})
    said = (done.stderr + done.stdout).decode()
    assert "é" + SHOWN in said and not set(said) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160)]))
    assert done.returncode != 0 or words == ["info"]


def test_bytes_that_are_no_text_are_shown_as_numbers():
    done = subprocess.run([PROGRAM, b"\xff\xc3\x28\xf0\x9f\x98\x80\xe2\x82"], capture_output=True)
    assert b'"\\xff\\xc3(\xf0\x9f\x98\x80\\xe2\\x82"' in done.stderr


@pytest.mark.parametrize("name, said", [
    ("nosuch", "FLASHSAMPLING_MPI=nosuch is unknown; known are openmpi, mpich, mpi, none"),
    ("", "FLASHSAMPLING_MPI= is unknown"),
    ("/no/such/file.so", "FLASHSAMPLING_MPI=/no/such/file.so: No such file"),
])
@pytest.mark.parametrize("words", [["sample", "--synthetic", "10,4,1"], ["verify", "--rule", "plain"], ["bench", *SMALL],
                                   ["demo", *SMALL]], ids=lambda words: words[0])
def test_an_unknown_transport_is_an_error_without_mpirun_too(words, name, said):
    out, err = run(*words, env={"FLASHSAMPLING_MPI": name}, code=2)
    assert said in err


def test_known_transports_are_not_needed_without_mpirun():
    for name in ("openmpi", "mpich", "mpi", "none", str(PROGRAM)):
        assert sample("--synthetic", "10,4,1", env={"FLASHSAMPLING_MPI": name})["ranks"] == 1


# ---------------------------------------------------------------------------------------------------------- info ----

def test_info_lists_instruction_sets_and_each_can_be_forced():
    names = run("info", "--isa-list")[0].split()
    assert names[-1] == "scalar"
    assert json.loads(run("info", "--json")[0])["isas"] == names
    for name in names:
        out, _ = run("info", env={"FLASHSAMPLING_ISA": name})
        assert f"{name} kernel" in out
        assert run("info", "--isa-list", env={"FLASHSAMPLING_ISA": name})[0].split() == names


def test_info_lists_instruction_sets_whatever_else_is_forced():
    names = run("info", "--isa-list")[0].split()
    for forced in ({"FLASHSAMPLING_BACKEND": "cuda"}, {"FLASHSAMPLING_BACKEND": "reference"},
                   {"FLASHSAMPLING_BACKEND": "abacus"}, {"FLASHSAMPLING_NODES": "/no/such/folder"}):
        assert run("info", "--isa-list", env=forced)[0].split() == names
        answer = json.loads(run("info", "--json", env=forced)[0])
        assert answer["isas"] == names and answer["backend"]


def test_a_forced_set_that_is_not_there_is_an_error():
    _, err = run("sample", "--synthetic", "10,4,1", env={"FLASHSAMPLING_ISA": "mmx"}, code=2)
    assert "mmx" in err and "scalar" in err


# -------------------------------------------------------------------------------------------------------- sample ----

def test_greedy_and_logprobs_equal_numpy(stored, logits):
    answer = sample("--logits", stored, "--temperature", 0, "--logprobs", "raw", "--top", 3, "--watch", "7,2/0")
    expected = special.log_softmax(logits.astype(np.float64), axis=1)
    order = np.argsort(-logits, axis=1, kind="stable")
    for b, row in enumerate(answer["rows"]):
        assert row["tokens"] == [order[b, 0]] and row["rank"] == [1] and row["status"] == 0
        assert row["top_token"] == list(order[b, :3])
        assert np.allclose(row["top_logprob"], expected[b, order[b, :3]], atol=1e-5)
        assert np.allclose(row["logprob"], expected[b, order[b, 0]], atol=1e-5)
        assert np.isclose(row["log_z"], special.logsumexp(logits[b].astype(np.float64)), atol=1e-5)
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
             "--keep-ties=top-k": "keep_ties_top_k", "--keep-ties=top-p": "keep_ties_top_p", "--keep-ties=both": "keep_ties"}
    plain = sample(*words)["rows"]
    for word, flag in flags.items():
        rows = sample(*words, word)["rows"]
        result = context.sample(head, **rules, seen=fs.pack_bits(seen), edits=edits, outputs="all", top=60,
                                logits="cut", **{flag: True})
        for b, row in enumerate(rows):
            kept = (result.top_token[b] >= 0).sum()
            assert row["tokens"] == result.tokens[b].tolist() and row["rank"] == result.rank[b].tolist(), word
            assert [t for t in row["top_token"] if t is not None and t >= 0] == result.top_token[b, :kept].tolist(), word
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
    answer = sample("--logits", stored, "--seed", ",".join(map(str, seeds)), "--position", "1,2,3,4,5", "--stream", 6)
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
    assert "--temperature nan: expected" in run("sample", "--logits", stored, "--temperature", f"@{values}", code=2)[1]


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
    words = ["--mode", "score", "--samples", 2, "--given", "@" + str(save(tmp_path, "given", given))]
    expected = special.log_softmax(logits.astype(np.float64), axis=1)
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


# --------------------------------------------------------------------------------------- verify and bench ----

def test_verify_accepts_right_draws_and_its_p_values_are_scipys():
    answer = json.loads(run("verify", "--draws", 4000, "--json", "--quiet")[0])
    assert answer["rejected"] == 0 and answer["judged"] >= 45
    for test in answer["tests"]:
        if test["bins"] > 2:
            assert np.isclose(test["p"], stats.chi2.sf(test["chi_squared"], test["bins"] - 1), rtol=1e-6)
        if test["bins"] > 1:
            seen = np.sqrt(5 * np.sqrt(2 * (test["bins"] - 1)) / (4 * test["draws"]))
            assert np.isclose(test["tv_seen_at_5_sigma"], seen, rtol=1e-6)
        assert test["impossible_tokens"] == 0 and test["draws"] > 0


@pytest.mark.parametrize("plant, rule, leg", [("temperature", "plain", "fused"), ("temperature", "penalties", "stored"),
                                              ("off-by-one", "top-k", "stored"), ("off-by-one", "top-p", "fused"),
                                              ("repeat", "positions", "stored")])
def test_verify_rejects_planted_mistakes_with_exit_code_1(plant, rule, leg):
    out, err = run("verify", "--draws", 30000, "--rule", rule, "--leg", leg, "--plant", plant, "--quiet", code=1)
    assert "REJECTED" in out and err == ""


def test_verify_reports_progress_as_lines_where_there_is_no_terminal():
    out, err = run("verify", "--draws", 60000, "--rule", "top-p")
    assert "\r" not in err and "top-p" in out
    for line in err.splitlines():
        assert re.fullmatch(r"\d+/\d+ .*top-p, (stored|fused) \.\.\. \d+ %(, .* left)?", line)


def test_bench_checks_then_times():
    words = ["--vocab", 3001, "--dim", 64, "--seconds", 0, "--batch", "1,3", "--copies", 2]
    answer = json.loads(run("bench", *words, "--json", "--quiet")[0])
    assert [row["rows"] for row in answer["results"]] == [1, 3]
    for row in answer["results"]:
        assert row["calls"] >= 5 and 0 < row["min_s"] <= row["median_s"] and row["work_bytes"] > 0
        assert np.isclose(row["flops"], 2 * row["rows"] * 3001 * 64 / row["min_s"], rtol=1e-6)
    text = run("bench", *words, "--top-p", 0.9, "--dtype", "f16", "--quiet")[0]
    assert "GFLOP/s" in text and max(map(len, text.splitlines())) <= 110
