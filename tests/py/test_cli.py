"""The program: what it prints, how it ends, what it refuses; its commands but `sample` and `demo`."""
import json
import os
import re
import subprocess

import numpy as np
import pytest

import flashsampling as fs
from program import PROGRAM, ROOT, pytestmark, run, sample  # noqa: F401

COMMANDS = ["demo", "sample", "verify", "bench", "info"]


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


@pytest.mark.parametrize("words, message", [
    ([], "a command is missing"),
    (["smaple"], 'unknown command "smaple"; flashsample --help lists them'),
    (["sample", "--temprature", "1"], "unknown option --temprature; --help lists them"),
    (["sample", "--temperatur", "1"], "unknown option --temperatur; --help lists them"),
    (["sample", "--temperatur=1"], "unknown option --temperatur; --help lists them"),
    (["sample", "--s", "1"], "unknown option --s; --help lists them"),
    (["sample", "--", "--json"], "unknown option --; --help lists them"),
    (["sample", "-j"], 'unexpected argument "-j"'),
    (["sample", "--json", "stray"], 'unexpected argument "stray"'),
    (["sample", "stray"], 'unexpected argument "stray"'),
    (["sample", "--top"], "--top needs a value (N)"),
    (["sample", "--json=1"], "--json takes no value"),
    (["sample", "--samples", "0"], "--samples 0: must lie in 1 .. 1024"),
    *[(["sample", "--synthetic", "10,4,2", f"--{name}", "16777216"], f"--{name} 16777216: must lie in 0 .. 16777215")
      for name in ("vocab", "first-token", "group-size", "list-capacity")],
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
    (["sample", "--synthetic", "10,4,2", "--mode", "score"], "needs --score-tokens"),
    (["sample", "--synthetic", "10,4,2", "--softcap", "-1"], "--softcap -1: must lie in 0 .. 3.40282e+38"),
    (["sample", "--synthetic", "10,4,2", "--slot", "0,2000000000"], "--slot 2000000000: must lie in -1 .. 1048575"),
    (["sample", "--synthetic", "10,4,2", "--slot", "0,-2"], "--slot -2: must lie in -1 .. 1048575"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "nan"], "nan: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "1,-1"], "-1: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "1e39"], "inf: expected a finite number, 0 or more"),
    (["sample", "--synthetic", "10,4,2", "--top-p", "-0.1"], "--top-p -0.1: expected a number from 0 to 1"),
    (["sample", "--synthetic", "10,4,2", "--top-p", "1.5"], "--top-p 1.5: expected a number from 0 to 1"),
    (["sample", "--synthetic", "10,4,2", "--top-p", ".9,95"], "--top-p 95: expected a number from 0 to 1"),
    (["sample", "--synthetic", "10,4,2", "--temperature", "1e-50"], "--temperature 1e-50: too close to 0 for a float"),
    *[(["sample", "--synthetic", "10,4,2", f"--{name}", "0"], f"--{name} 0: must not be 0; 1 leaves logits as they are")
      for name in ("scale", "post-scale")],
    *[(["sample", "--synthetic", "10,4,2", f"--{name}", "1e-50"], f"--{name} 1e-50: too close to 0 for a float")
      for name in ("scale", "softcap", "post-scale")],
    (["sample", "--synthetic", "10,4,2", "--scale", "1e39"], "--scale 1e39: must lie in -3.40282e+38 .. 3.40282e+38"),
    (["sample", "--synthetic", "10,4,2", "--softcap", "inf"], "--softcap inf: must lie in 0 .. 3.40282e+38"),
    (["sample", "--synthetic", "10,4,2", "--repetition", "1.5"],
     "--repetition 1.5 does nothing without --seen, --counts or --count-list"),
    *[(["sample", "--synthetic", "10,4,2", f"--{name}", "0,1", "--seen", "x.npy"],
       f"--{name} 1 does nothing without --counts or --count-list") for name in ("frequency", "presence")],
    (["sample", "--synthetic", "10,4,2", "--allow-index", "0"], "--allow-index goes with --allow"),
    (["sample", "--synthetic", "10,4,2", "--group-size", "4"], "--group-size goes with --mode group-parallel"),
    (["sample", "--synthetic", "10,4,2", "--fallback-token", "-2147483648"], "must lie in -2147483647 .. 2147483647"),
    (["sample", "--synthetic", "10,4,2", "--min-p", "1.5"], "--min-p 1.5: expected a number from 0 to 1"),
    (["sample", "--synthetic", "10,4,2", "--repetition", "0"], "--repetition 0: expected a finite number above 0"),
    (["sample", "--synthetic", "10,4,2", "--frequency", "inf"], "--frequency inf: expected a finite number"),
    (["sample", "--synthetic", "10,4,2", "--presence", "nan"], "--presence nan: expected a finite number"),
    (["sample", "--synthetic", "10,4,2", "--mode", "score", "--score-tokens", "3,10"],
     "--score-tokens: token 10, must be 0 to 9"),
    (["sample", "--synthetic", "10,4,2", "--top-k", "0x"], "--top-k 0x: expected an integer"),
    (["sample", "--synthetic", "10,4,2", "--top-k", "0b1"], "--top-k 0b1: expected an integer"),
    *[(["sample", *source, "--screen", bits], f"--screen {bits} goes with --head or --synthetic: a screen is a copy of "
       "W, stored logits have none") for bits in "84" for source in (["--logits", "x.npy"],)],
    (["sample", "--synthetic", "10,4,2", "--vocab", "11"], "head.vocab is 11, but the head's last token is 9"),
    (["sample", "--synthetic", "10,4,2", "--screen", "6"], "--screen 6: expected one of none, 8, 4, 4+8"),
    (["verify", "--screen", "8", "--leg", "stored"], "--screen 8: a screen is a copy of W, the tests of --leg stored"),
    (["verify", "--plant", "screen"], "--plant screen: needs --screen"),
    (["bench", "--bars", "--screen", "8"], "--bars times draws from W: not with --screen"),
    (["verify", "--draws", "10"], "must lie in 1000 .. 1000000000"),
    (["verify", "--rule", "nonsense"], "--rule nonsense"),
    (["bench", "--batch", "0"], "--batch 0: must lie in"),
])
def test_wrong_usage_ends_with_2_and_a_reason(words, message):
    out, err = run(*words, code=2)
    assert out == "" and message in err and err.startswith("flashsample") and err.count("\n") == 1


def test_more_memory_than_the_machine_has_is_refused():
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") > 10**12:
        pytest.skip("a machine with a terabyte of memory")
    _, err = run("sample", "--synthetic", "16000000,16384,1", "--dtype", "f32", code=3)
    assert "1048576000064 bytes, the machine has" in err


SMALL = ["--vocab", "300", "--dim", "16", "--seconds", "0"]


@pytest.mark.parametrize("words", [
    ["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS],
    ["info"], ["info", "--json"], ["info", "--isa-list"],
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
    message = (done.stderr + done.stdout).decode()
    assert "é" + SHOWN in message and not set(message) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160)]))
    assert done.returncode != 0 or words == ["info"]


def test_bytes_that_are_no_text_are_shown_as_numbers():
    done = subprocess.run([PROGRAM, b"\xff\xc3\x28\xf0\x9f\x98\x80\xe2\x82"], capture_output=True)
    assert b'"\\xff\\xc3(\xf0\x9f\x98\x80\\xe2\\x82"' in done.stderr


NOT_UTF8 = [b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xe2\x82", b"\xed\xa0\x80",
            b"\xf0\x80\x80\xaf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"]


@pytest.mark.parametrize("value", [*NOT_UTF8, ESC.encode(), '"\\é€😀\ud7ff\ue000\U0010ffff'.encode()], ids=repr)
def test_info_is_json_whatever_the_environment_holds(value):
    """What is no text, as Python's own decoder sees it, is shown as numbers; what is, is itself."""
    done = subprocess.run([PROGRAM, "info", "--json"], capture_output=True,
                          env={**os.environb, b"FLASHSAMPLING_BACKEND": b"a" + value + b"("})
    message = json.loads(done.stdout.decode())["backend"]
    assert "a" + value.decode(errors="backslashreplace") + "(" in message
    assert not set(done.stdout.decode()) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160)]))


@pytest.mark.parametrize("name, message", [
    ("nosuch", "FLASHSAMPLING_MPI=nosuch is unknown; known are openmpi, mpich, mpi, none"),
    ("", "FLASHSAMPLING_MPI= is unknown"),
    ("/no/such/file.so", "FLASHSAMPLING_MPI=/no/such/file.so: No such file"),
])
@pytest.mark.parametrize("words", [["sample", "--synthetic", "10,4,1"], ["verify", "--rule", "plain"],
                                   ["bench", *SMALL], ["demo", *SMALL]], ids=lambda words: words[0])
def test_an_unknown_transport_is_an_error_without_mpirun_too(words, name, message):
    out, err = run(*words, env={"FLASHSAMPLING_MPI": name}, code=2)
    assert message in err


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
                   {"FLASHSAMPLING_BACKEND": "abacus"}, {"FLASHSAMPLING_NODES": "/no/such/folder"},
                   {"FLASHSAMPLING_CHECK_POINTERS": "maybe"}):
        assert run("info", "--isa-list", env=forced)[0].split() == names
        answer = json.loads(run("info", "--json", env=forced)[0])
        assert answer["isas"] == names and answer["backend"]


def test_info_shows_settings_that_nothing_reads():
    env = {"FLASHSAMPLING_BACKNED": "reference", "FLASHSAMPLING_ISA": "scalar"}
    unknown = json.loads(run("info", "--json", env=env)[0])["unknown_settings"]
    assert "FLASHSAMPLING_BACKNED=reference" in unknown and "FLASHSAMPLING_ISA=scalar" not in unknown
    out, _ = run("info", env=env)
    assert "\nsetting      FLASHSAMPLING_BACKNED=reference (unknown: nothing reads it)\n" in out
    assert "\nsetting      FLASHSAMPLING_ISA=scalar\n" in out


def test_info_knows_every_setting_that_the_code_reads():
    files = [file for folder in ("src", "cli", "python/flashsampling") for file in (ROOT / folder).rglob("*")
             if file.suffix in (".c", ".cu", ".py")]
    names = {name for file in files for name in re.findall(r'"(FLASHSAMPLING_[A-Z_]+)', file.read_text())}
    names -= {"FLASHSAMPLING_"}
    assert len(names) > 10
    unknown = json.loads(run("info", "--json", env={name: "scalar" for name in names})[0])["unknown_settings"]
    assert not names & {text.split("=")[0] for text in unknown}


def test_info_names_backends_devices_and_screens():
    answer = json.loads(run("info", "--json")[0])
    assert {"cpu", "reference"} <= set(answer["backends"]) and answer["screens"] == ["8", "4", "4+8"]
    assert bool(answer["devices"]) != ("no_devices" in answer)
    out, _ = run("info")
    assert "\nbackends     cpu cuda" in out and "\nscreens      8-bit 4-bit 4+8-bit\n" in out
    assert answer["devices"] or f"\ndevices      none: {answer['no_devices']}\n" in out


@pytest.mark.parametrize("words", [["sample", "--synthetic", "10,4,1"], ["verify", "--rule", "plain"],
                                   ["bench", *SMALL], ["demo", *SMALL]], ids=lambda words: words[0])
def test_a_backend_that_is_not_in_this_build_is_refused(words):
    if "cuda" in json.loads(run("info", "--json")[0])["backends"]:
        pytest.skip("a build with CUDA")
    out, err = run(*words, "--backend", "cuda", code=3)
    assert out == "" and "--backend cuda: the cuda backend is not in this build; make cuda builds a flashsample" in err


def test_a_forced_set_that_is_not_there_is_an_error():
    _, err = run("sample", "--synthetic", "10,4,1", env={"FLASHSAMPLING_ISA": "mmx"}, code=2)
    assert "mmx" in err and "scalar" in err


# --------------------------------------------------------------------------------------- verify and bench ----

def test_verify_accepts_right_draws_and_its_p_values_are_scipys():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    answer = json.loads(run("verify", "--draws", 4000, "--json", "--quiet")[0])
    assert answer["rejected"] == 0 and answer["judged"] >= 45
    for test in answer["tests"]:
        if test["bins"] > 2:
            assert np.isclose(test["p"], stats.chi2.sf(test["chi_squared"], test["bins"] - 1), rtol=1e-6)
        if test["bins"] > 1:
            seen = np.sqrt(5 * np.sqrt(2 * (test["bins"] - 1)) / (4 * test["draws"]))
            assert np.isclose(test["tv_seen_at_5_sigma"], seen, rtol=1e-6)
        assert test["impossible_tokens"] == 0 and test["draws"] > 0


@pytest.mark.parametrize("bits", [8, 4])
def test_verify_accepts_draws_by_a_screen_and_says_how_many_it_decided(bits):
    answer = json.loads(run("verify", "--draws", 1000, "--screen", bits, "--json", "--quiet")[0])
    assert answer["rejected"] == 0 and answer["judged"] >= 20 and answer["screen"] == str(bits)
    assert all(test["same_as_w"] and test["leg"] == "fused" for test in answer["tests"])
    decided = {test["rule"]: test["screened_rows"] / test["rows"] for test in answer["tests"] if "screened_rows" in test}
    for rule in ("plain", "greedy", "min-p", "mask", "bias", "penalties", "no replacement", "n samples"):
        assert decided[rule] > 0.9, rule
    assert decided["group parallel"] == 0 and not any("shards" in rule for rule in decided)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rule", ["plain", "min-p"])
def test_verify_rejects_a_screen_that_was_cleared(bits, rule):
    out, _ = run("verify", "--draws", 4000, "--rule", rule, "--screen", bits, "--plant", "screen", "--json", "--quiet",
                 code=1)
    test, = json.loads(out)["tests"]
    assert test["rejected"] and not test["same_as_w"] and test["screened_rows"] > 0


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


@pytest.mark.parametrize("bits, share", [(8, 0.55), (4, 0.3)])
def test_bench_times_a_screen_beside_w(bits, share):
    words = ["bench", "--vocab", 4001, "--dim", 256, "--seconds", 0, "--batch", "1,3", "--copies", 2, "--quiet"]
    forced = {"FLASHSAMPLING_SCREEN_ROWS": "64"}
    answer = json.loads(run(*words, "--screen", bits, "--json", env=forced)[0])
    screen = answer["screen"]
    assert screen["bits"] == bits and screen["seconds"] > 0
    assert np.isclose(screen["of_w"], screen["bytes"] / answer["w_bytes"]) and screen["of_w"] < share
    for row in answer["results"]:
        by_screen = row["by_screen"]
        assert 0 < by_screen["min_s"] <= by_screen["median_s"] and by_screen["decided"] > 0.5
        assert np.isclose(by_screen["of_w_time"], by_screen["median_s"] / row["median_s"])
    text = run(*words, "--screen", bits, env=forced)[0]
    assert f"{bits}-bit screen of " in text and "of W's time" in text and max(map(len, text.splitlines())) <= 110
    assert "screen" not in run(*words)[0]
    assert json.loads(run(*words, "--screen", bits, "--json", env={"FLASHSAMPLING_SCREEN_ROWS": "0"})[0]
                      )["results"][0]["by_screen"]["decided"] == 0
