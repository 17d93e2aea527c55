"""vLLM with its head over two and four processes: tokens are those of one, and what crosses the wire is parts.

They share one device. NCCL takes each for another machine (nccl.py), and vLLM for what an external launcher, such as
torchrun, has begun: a scheduler in each, the collectives of vLLM's tensor parallelism between them.
"""
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from draws import GPU  # skips where there is no device
from nccl import SHARING

if importlib.util.find_spec("vllm") is None:  # the workers import it, which takes long enough
    pytest.skip("vllm cannot be imported", allow_module_level=True)

import flashsampling as fs
from flashsampling._vllm_call import FLAGS

HERE = Path(__file__).resolve().parent
COUNTS = (1, 2, 4)
# What the plug-in leaves to vLLM though the library has it, in its words.
LEFT = {"stock: top-k, top-p or min-p over ranks", "stock: the rank of a token over ranks"}
# Cases of the worker that the library may refuse over ranks: rules and results as fs.supports has them.
RULES = {"top-k": (["top_k"], []), "top-p": (["top_p"], []), "min-p": (["min_p"], []), "bias": (["edits"], []),
         "penalties": (["edits", "penalties"], []), "allowed": (["allow"], []),
         "logprobs": ([], ["logprob", "logit", "rank", "top"])}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def start(rank, count, folder, port):
    env = {**os.environ, **SHARING, "NCCL_HOSTID": "rank%d" % rank, "NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo",
           "VLLM_HOST_IP": "127.0.0.1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank),
           "LOCAL_RANK": "0", "WORLD_SIZE": str(count), "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
           "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "FLASHSAMPLING_VLLM": "on",
           "OMP_NUM_THREADS": "1"}
    log = open(folder / ("%d-%d.log" % (count, rank)), "w")
    return subprocess.Popen([sys.executable, HERE / "vllm_ranks_worker.py", str(rank), str(count), folder], env=env,
                            cwd=HERE, stdout=log, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """{count: [what each rank drew]}. All start at once: what takes long is Python's imports."""
    folder = tmp_path_factory.mktemp("ranks")
    workers = {(count, rank): start(rank, count, folder, port) for count, port in zip(COUNTS, map(
        lambda _: free_port(), COUNTS)) for rank in range(count)}
    try:
        for worker in workers.values():
            worker.wait(timeout=240)
    finally:
        for worker in workers.values():
            worker.kill()
    for (count, rank), worker in workers.items():
        text = (folder / ("%d-%d.log" % (count, rank))).read_text()
        assert worker.returncode == 0, "rank %d of %d:\n%s" % (rank, count, text[-4000:])
    return {count: [json.loads((folder / ("%d-%d.json" % (count, rank))).read_text()) for rank in range(count)]
            for count in COUNTS}


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_draw_the_tokens_of_one(drawn, count):
    """Sampled rows and a greedy one; all steps are ours."""
    want = drawn[1][0]["plain"]
    assert len({token for row in want["tokens"] for token in row}) > 30 and set(want["counts"]) == {"fused"}
    for found in drawn[count]:
        assert set(found["plain"]["counts"]) == {"fused"}
        assert found["plain"]["tokens"] == want["tokens"]


@pytest.mark.parametrize("count", COUNTS)
def test_each_rank_has_a_screen_of_its_rows(drawn, count):
    want, whole = drawn[1][0]["plain"], drawn[1][0]["screened"]["bytes"]
    for found in drawn[count]:
        assert set(found["screened"]["counts"]) == {"fused"}
        assert found["screened"]["tokens"] == want["tokens"]
        assert 0 < found["screened"]["bytes"] <= whole / count + 20000  # what pads the last shard


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_agree_where_requests_have_no_seed(drawn, count):
    """The seeds are vLLM's then, the same on every rank."""
    tokens = [found["no seeds"]["tokens"] for found in drawn[count]]
    assert tokens == tokens[:1] * count and tokens[0] != drawn[count][0]["plain"]["tokens"]


@pytest.mark.parametrize("count", [2, 4])
def test_what_crosses_the_wire(drawn, count):
    """A part of each rank, where vLLM's own sampler needs the shard's logits: the table of docs/explain/plug-ins.md."""
    for found in drawn[count]:
        rows, padded = found["about"]["rows"], found["about"]["padded"]
        part = 32 + (rows + 31) // 32 * 8 + 8 * rows
        assert found["plain"]["wire"] == part and found["plain"]["gathered"] == [(part + 15) // 16 * 16]
        assert found["vLLM's own"]["gathered"] == [2 * rows * padded // count]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", RULES)
def test_rules_over_ranks(drawn, name, count):
    """What the library has over ranks is drawn as on one; the rest is left to vLLM, in its words or the plug-in's."""
    rules, results = RULES[name]
    done, why = fs.supports("cuda", call="partial", dtype="bf16", rules=rules, results=results, flags=FLAGS)
    found = [each[name] for each in drawn[count]]
    assert set(drawn[1][0][name]["counts"]) == {"fused"}
    assert [each["tokens"] for each in found] == [found[0]["tokens"]] * count
    reasons = {reason for each in found for reason in each["counts"]}
    if reasons != {"fused"}:
        assert len(reasons) == 1 and (not done and reasons == {"stock: " + why} or reasons <= LEFT)
        pytest.skip("; ".join(sorted(reasons)))
    assert done, why
    assert (found[0]["tokens"], found[0]["best"]) == (drawn[1][0][name]["tokens"], drawn[1][0][name]["best"])
