"""vLLM's own runner, head and tensor parallelism over two and four processes: tokens are those of one."""
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton cannot be imported")
pytest.importorskip("scipy", reason="scipy cannot be imported")

HERE = Path(__file__).resolve().parent
PLAIN = ("plain", "warm", "cold", "greedy", "repetition", "frequency", "presence", "bias", "allowed", "stops")


@functools.lru_cache(maxsize=None)
def drawn(count):
    """What each rank printed."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [subprocess.Popen(
            [sys.executable, HERE / "ranks_worker.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1",
                 "FLASHSAMPLING_TEST_RANK": str(rank), "FLASHSAMPLING_TEST_COUNT": str(count),
                 "FLASHSAMPLING_TEST_STORE": os.path.join(folder, "store")}) for rank in range(count)]
        try:
            printed = [worker.communicate(timeout=300) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        for rank, worker in enumerate(workers):
            assert worker.returncode == 0, "rank %d of %d:\n%s" % (rank, count, printed[rank][1][-3000:])
        return [json.loads(out.splitlines()[-1]) for out, _ in printed]


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_draw_the_tokens_of_one(count):
    want = drawn(1)[0]
    for found in drawn(count):
        for name in PLAIN:
            assert found[name]["counts"] == {"fused": 1} == want[name]["counts"], name
            assert found[name]["tokens"] == want[name]["tokens"], name


@pytest.mark.parametrize("count", [2, 4])
def test_what_is_left_to_vllm_is_so_on_every_rank(count):
    """Cuts and logprobs, unless the plug-in draws them over ranks; the same on every rank, then too."""
    for name in set(drawn(1)[0]) - set(PLAIN) - {"vLLM's own"}:
        found, want = [each[name] for each in drawn(count)], drawn(1)[0][name]
        assert all((each["tokens"], each["counts"]) == (found[0]["tokens"], found[0]["counts"]) for each in found), name
        if found[0]["counts"] == {"fused": 1}:
            assert (found[0]["tokens"], found[0]["best"]) == (want["tokens"], want["best"]), name


@pytest.mark.parametrize("count", [2, 4])
def test_what_crosses_the_wire(count):
    """The table of docs/explain/plug-ins.md: a part of each rank, for the logits of its shard, which are float32 here."""
    rows, padded = 5, 320
    for found in drawn(count):
        part = 32 + (rows + 31) // 32 * 8 + 8 * rows
        assert found["plain"]["wire"] == part and found["plain"]["gathered"] == [(part + 15) // 16 * 16]
        assert found["vLLM's own"]["gathered"] == [4 * rows * padded // count]
