"""Ranks as a user meets them: the command line and the examples under each mpirun, and what happens when a rank is
gone.

What ranks compute is tested in tests/ranks/ranks_test.c.
"""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import mpi  # noqa: E402

BUILD = Path(os.environ.get("FS_BUILD", ROOT / "build" / "release"))
CLI, PROGRAM = BUILD / "bin" / "flashsample", BUILD / "tests" / "ranks_test"
LAUNCHERS = {name: launch for name, launch in mpi.launchers().items()
             if (BUILD / "lib" / f"libflashsampling_{name}.so").exists()}
pytestmark = pytest.mark.skipif(not LAUNCHERS, reason="no mpirun.openmpi or mpirun.mpich with a transport built for it")
EVERY = pytest.mark.parametrize("name", LAUNCHERS)
SAMPLE = ("sample", "--synthetic", "3000,32,5", "--seed", "42", "--json", "--quiet")


def run(command, **more):
    env = {**os.environ, **mpi.ENVIRONMENT, **more}
    return subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=120)


# ------------------------------------------------------------------------------------------------ command line ----


@EVERY
@pytest.mark.parametrize("rules", [(), ("--screen", "8"), ("--top-p", "0.9", "--logprobs", "raw", "--top", "3"),
                                   ("--mode", "without-replacement", "--samples", "3")],
                         ids=["plain", "screen", "top-p", "ordered"])
def test_sample_draws_the_same_tokens_on_any_number_of_ranks(name, rules):
    whole = json.loads(run([CLI, *SAMPLE, *rules]).stdout)
    assert whole["ranks"] == 1
    for ranks in (1, 3):
        done = run([*LAUNCHERS[name](ranks), CLI, *SAMPLE, *rules])
        assert done.returncode == 0, done.stderr
        shared = json.loads(done.stdout)  # one object: only rank 0 prints
        assert shared["ranks"] == ranks and shared["rows"] == whole["rows"]
    if not rules:
        assert shared["wire_bytes"] == 16 + 8 * 5 + 16 + 8  # once: where the shards lie, and the rows' bits


@EVERY
def test_verify_accepts_the_ranks_and_rejects_the_same_noise_on_every_rank(name):
    start = [*LAUNCHERS[name](4), CLI, "verify", "--draws", "5000", "--quiet", "--json"]
    done = run([*start, "--leg", "stored"])
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["ranks"] == 4 and answer["judged"] >= 20 and answer["rejected"] == 0
    planted = run([*start, "--plant", "same-noise", "--rule", "plain"])
    assert json.loads(planted.stdout)["rejected"] == 2, planted.stdout
    assert planted.returncode != 0


@EVERY
def test_bench_times_ranks(name):
    done = run([*LAUNCHERS[name](2), CLI, "bench", "--vocab", "4000", "--dim", "64", "--batch", "1,8", "--seconds",
                "0.1", "--copies", "1", "--quiet", "--json"])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ranks"] == 2
    assert [row["wire_bytes"] for row in answer["results"]] == [16 + 8, 16 + 64]


@EVERY
def test_each_rank_draws_by_the_screen_of_its_slice(name):
    start = [*LAUNCHERS[name](3), CLI]
    done = run([*start, "verify", "--screen", "4", "--draws", "1000", "--rule", "plain", "--quiet", "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    test, = json.loads(done.stdout)["tests"]
    assert test["same_as_w"] and "screened_rows" not in test
    planted = run([*start, "verify", "--screen", "4", "--draws", "1000", "--rule", "plain", "--quiet", "--json", "--plant",
                   "screen"])
    assert planted.returncode != 0 and not json.loads(planted.stdout)["tests"][0]["same_as_w"]
    done = run([*start, "bench", "--vocab", "4000", "--dim", "128", "--batch", "1", "--seconds", "0", "--copies", "1",
                "--screen", "8", "--quiet", "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["by_screen"]["min_s"] > 0


def test_a_launcher_without_its_transport_is_an_error():
    done = run([CLI, *SAMPLE], OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", FLASHSAMPLING_MPI=__file__)
    assert done.returncode == 3 and __file__ in done.stderr
    alone = run([CLI, *SAMPLE], OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", FLASHSAMPLING_MPI="none")
    assert alone.returncode == 0 and json.loads(alone.stdout)["ranks"] == 1


@EVERY
def test_a_wrong_option_is_reported_once(name):
    for _ in range(3):  # MPICH's launcher may itself die of writing to ranks that have left so soon
        done = run([*LAUNCHERS[name](3), CLI, *SAMPLE, "--temprature", "1"])
        if done.returncode != -signal.SIGPIPE:
            break
    assert done.returncode != 0 and done.stderr.count("unknown option --temprature") == 1


# ----------------------------------------------------------------------------------------- a rank that is gone ----


def survivors(name, mode, *options):
    """What the ranks that are left say, and how long it took until mpirun was back."""
    begin = time.monotonic()
    launch = LAUNCHERS[name](3)
    done = run([launch[0], *options, *launch[1:], PROGRAM, mode])
    return [line for line in done.stderr.splitlines() if "survivor" in line], time.monotonic() - begin, done


@EVERY
def test_ranks_return_in_time_when_one_stalls(name):
    lines, seconds, done = survivors(name, "stall")
    # mpirun may end the job when the first survivor leaves; one at least has spoken by then.
    assert lines and seconds < 20, done.stdout + done.stderr
    for line in lines:
        assert "peer, then state" in line and "stalled" in line


@EVERY
def test_ranks_do_not_hang_when_one_is_killed(name):
    """By default mpirun ends the whole job, and that too must be soon."""
    _, seconds, done = survivors(name, "die")
    assert seconds < 20 and done.returncode != 0


def test_survivors_of_a_killed_rank_get_a_peer_error():
    """Where mpirun can be told to leave them alive; MPICH's ends the job in any case."""
    if "openmpi" not in LAUNCHERS:
        pytest.skip("no mpirun.openmpi")
    lines, seconds, done = survivors("openmpi", "die", "--enable-recovery")
    assert len(lines) == 2 and seconds < 20, done.stdout + done.stderr
    assert all("peer, then state" in line for line in lines)
