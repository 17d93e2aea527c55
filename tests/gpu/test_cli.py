"""The command line with --backend cuda, beside the same commands on the CPU.

Weights and hidden states lie on a grid, so that dot products are exact in float in any order: tokens and logits must be
equal. Sums of exp may differ in their last bits.
"""
import json
import os
import subprocess
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("FLASHSAMPLING_LIBRARY")
BUILD = Path(LIBRARY).resolve().parents[1] if LIBRARY else ROOT / "build" / "cuda"
PROGRAM = Path(os.environ.get("FLASHSAMPLE") or BUILD / "bin" / "flashsample")
FALLBACK, RANK_BOUND = 1 << 18, 1 << 19
V, D, B = 5003, 64, 6


def run(*words, code=0, env=None):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def why_not():
    if not PROGRAM.exists():
        return f"{PROGRAM} was not built"
    info = json.loads(run("info", "--json")[0])
    return "" if "cuda" in info["backends"] and info["devices"] else "no CUDA device, or a build without CUDA"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is one")


def bf16(x):
    """Floats that bf16 holds, as its bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """W and H in every type, stored logits, and what rules take, as paths by name."""
    folder, rng = tmp_path_factory.mktemp("npy"), np.random.default_rng(7)
    w = np.clip(np.round(rng.standard_normal((V, D)) * 20), -127, 127) / 64
    h = np.clip(np.round(rng.standard_normal((B, D)) * 8), -63, 63) / 8
    arrays = {
        "w": bf16(w), "h": bf16(h), "w16": w.astype(np.float16), "h16": h.astype(np.float16),
        "w32": w.astype(np.float32), "h32": h.astype(np.float32), "logits": (h @ w.T).astype(np.float32),
        "bias": (np.round(rng.standard_normal(V) * 8) / 8).astype(np.float32),
        "allow": rng.random((2, V)) < 0.5, "seen": rng.random((B, V)) < 0.1,
        "counts": rng.integers(0, 3, (B, V)).astype(np.int32),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


WEIGHTS = "--head {w} --hidden {h} --bf16"
LOGITS = "--logits {logits}"
CASES = [
    WEIGHTS, LOGITS, "--head {w16} --hidden {h16}", "--head {w32} --hidden {h32}",
    WEIGHTS + " --temperature 0.8,1,0,0.5,2,1 --top-k 5,0,3,0,9,1 --top-p 0.9,1,1,0.5,0.99,1 --min-p 0,0.1,0,0,0.01,0",
    LOGITS + " --temperature 3,1,0,0.5,2,1 --top-k 50 --top-p 0.9",
    WEIGHTS + " --seed 1,2,3,4,5,6 --position 6,7,8,9,10,11 --substream 1,0,1,0,3,2 --samples 5",
    WEIGHTS + " --bias {bias} --scale 0.5 --softcap 30",
    WEIGHTS + " --logprobs raw --top 5 --watch 7,3/9",
    LOGITS + " --logprobs cut --top-k 20 --exact-rank",
    LOGITS + " --logprobs processed --temperature 0.7 --samples 3",
    WEIGHTS + " --allow {allow} --allow-index 0,1,-1,1,0,0",
    WEIGHTS + " --edits 11:2.5,3/42:ban,0/7:-1 --top-p 0.9",
    LOGITS + " --seen {seen} --repetition 1.25,1,2,1.5,1.5,1",
    WEIGHTS + " --counts {counts} --repetition 1.25 --frequency 0.125,0,0.25,1,2,0 --presence 0.5,0,0,1,1,2",
    WEIGHTS + " --count-list 3:2,1/9:4 --frequency 0.5 --top-k 40",
    WEIGHTS + " --slot 2,0,-1,2,1,1 --temperature 0.5,1,4",
    WEIGHTS + " --mode without-replacement --samples 6 --temperature 4",
    LOGITS + " --mode score --score-tokens 1,2,3,4,5,6 --logprobs raw",
    WEIGHTS + " --mode group-parallel --group-size 1024", LOGITS + " --mode group-online --group-size 128",
    WEIGHTS + " --screen 8", WEIGHTS + " --screen 4 --top-k 20 --seed 3",
    WEIGHTS + " --shards 3", WEIGHTS + " --shards 3 --top-k 30 --logprobs raw --top 2 --watch 5",
    WEIGHTS + " --shards 2 --screen 8", LOGITS + " --shards 4 --top-p 0.9",
]
EXACT = ("tokens", "logit", "max_logit", "top_token", "top_logit", "watch_token", "watch_logit")
NEAR = ("noisy_logit", "logprob", "log_z", "top_logprob", "watch_logprob")


def numbers(value):
    return np.array([np.nan if x is None else x for x in np.atleast_1d(np.array(value, object))], np.float64)


@pytest.mark.parametrize("case", CASES)
def test_a_call_draws_what_the_cpu_draws(files, case):
    words = case.format(**files).split()
    rows = {}
    for backend in ("cpu", "cuda"):
        answer = json.loads(run("sample", *words, "--json", "--quiet", "--backend", backend)[0])
        assert answer["context"].startswith(backend)
        rows[backend] = answer["rows"]
    assert len(rows["cuda"]) == len(rows["cpu"]) == B
    for cpu, cuda in zip(rows["cpu"], rows["cuda"]):
        assert cuda.keys() == cpu.keys()
        assert (cuda["status"] ^ cpu["status"]) & ~(FALLBACK | RANK_BOUND) == 0
        for key in set(EXACT) & set(cpu):
            np.testing.assert_array_equal(numbers(cuda[key]), numbers(cpu[key]), key)
        for key in set(NEAR) & set(cpu):
            np.testing.assert_allclose(numbers(cuda[key]), numbers(cpu[key]), rtol=1e-5, atol=1e-4, err_msg=key)
        if "rank" in cpu and not (cpu["status"] | cuda["status"]) & RANK_BOUND:
            assert cuda["rank"] == cpu["rank"]


def test_tokens_as_64_bit_integers_reach_a_file(files, tmp_path):
    words = (WEIGHTS + " --samples 3 --i64").format(**files).split()
    for backend in ("cpu", "cuda"):
        run("sample", *words, "--out", tmp_path / f"{backend}.npy", "--backend", backend)
    tokens = np.load(tmp_path / "cuda.npy")
    assert tokens.dtype == np.int64 and (tokens == np.load(tmp_path / "cpu.npy")).all()


def test_an_empty_batch_is_no_error():
    assert json.loads(run("sample", "--synthetic", "100,64,0", "--backend", "cuda", "--json")[0])["rows"] == []


@pytest.mark.parametrize("words", [(), ("--dtype", "f32", "--leg", "fused"), ("--dtype", "f16", "--leg", "fused"),
                                   ("--screen", 8), ("--screen", 4)], ids=str)
def test_verify_accepts_the_devices_draws(words):
    answer = json.loads(run("verify", "--draws", 20000, *words, "--json", "--quiet", "--backend", "cuda")[0])
    assert answer["rejected"] == 0 and answer["judged"] >= 20 and answer["context"].startswith("cuda")
    assert answer["dtype"] == (words[1] if words[:1] == ("--dtype",) else "bf16")


@pytest.mark.parametrize("plant, rule", [("temperature", "plain"), ("off-by-one", "top-k")])
def test_verify_rejects_planted_mistakes(plant, rule):
    words = ["verify", "--draws", 30000, "--rule", rule, "--plant", plant, "--quiet", "--backend", "cuda"]
    assert "REJECTED" in run(*words, code=1)[0]


@pytest.mark.parametrize("rules", [(), ("--top-p", 0.9, "--logprobs"), ("--screen", 8)], ids=str)
def test_bench_checks_then_times(rules):
    words = ["bench", "--vocab", 20011, "--dim", 256, "--batch", "1,5", "--seconds", 0, "--backend", "cuda", "--quiet"]
    answer = json.loads(run(*words, *rules, "--json")[0])
    assert [row["rows"] for row in answer["results"]] == [1, 5] and answer["copy_bytes_per_s"] > 0 and answer["device"]
    for row in answer["results"]:
        assert 0 < row["min_s"] <= row["median_s"] and row["of_copying"] > 0
        assert ("by_screen" in row) == ("--screen" in rules)
    text = run(*words, *rules)[0]
    assert "of copying" in text and "of reading" not in text and max(map(len, text.splitlines())) <= 110


def test_the_demo_runs_on_the_device():
    words = ["--vocab", 5003, "--dim", 128, "--seconds", 0, "--draws", 20000, "--quiet"]
    out, _ = run("demo", *words, "--backend", "cuda")
    for message in ("What is drawn", "the same token", "of copying", "8-bit screen of ", "follow the distribution"):
        assert message in out


def test_info_describes_the_devices():
    devices = json.loads(run("info", "--json")[0])["devices"]
    text, _ = run("info", "--backend", "cuda")
    assert "backend      cuda: " in text
    for i, device in enumerate(devices):
        assert f"device {i}" in text and device["name"] in text
        assert f"compute capability {device['compute_capability']}" in text
        assert device["memory_bytes"] > 1 << 30


def test_a_device_that_is_not_there_is_refused_with_how_many_there_are():
    count = len(json.loads(run("info", "--json")[0])["devices"])
    _, err = run("sample", "--synthetic", "10,8,1", "--backend", "cuda", "--device", count, code=2)
    assert f"--device {count}: must lie in 0 .. {count - 1}, this machine has {count} CUDA device" in err
    _, err = run("sample", "--synthetic", "10,8,1", "--backend", "cuda", code=3, env={"CUDA_VISIBLE_DEVICES": ""})
    assert "needs a CUDA device, but the NVIDIA driver " in err


def test_what_does_not_run_there_is_refused_by_name():
    _, err = run("bench", "--bars", "--backend", "cuda", code=2)
    assert "--bars are those of the CPU backend" in err
    _, err = run("demo", "--backend", "cuda", code=2, env={"OMPI_COMM_WORLD_SIZE": "2"})
    assert "not under mpirun" in err
