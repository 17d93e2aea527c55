"""One rank of tests/gpu/test_ranks.py: ranks_worker.py RANK COUNT FOLDER MODE. What it found goes to FOLDER/RANK.npz or
stdout."""
import os
import sys

os.environ.setdefault("NCCL_HOSTID", "rank%s" % sys.argv[1])
os.environ["FLASHSAMPLING_SCREEN_ROWS"] = "1000"  # screens are read, of heads so small too

import conftest  # noqa: F401, E402  finds the package
import numpy as np
import torch
from nccl import MAY_ABORT, Ranks, Row, shards

import flashsampling as fs

RANK, COUNT, FOLDER, MODE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
STREAM = torch.cuda.Stream()
torch.cuda.set_stream(STREAM)
CONTEXT = fs.Context("cuda", cuda_stream=STREAM.cuda_stream)
V, D = 20011, 128
FLOATS = ("noisy_logit", "logit", "logprob", "log_z", "max_logit")


def normal(rows, columns, seed):
    return torch.randn(rows, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def weights():
    """On a grid, so that dot products are exact in any order of addition."""
    w = ((normal(V, D, 1) * 0.22 * 64).round().clamp(-255, 255) / 64).to(torch.bfloat16)
    w[777] = float("nan")
    return w


def hidden(B):
    return ((normal(B, D, B) * 4).round().clamp(-16, 16) / 4).to(torch.bfloat16)


def rules(B):
    row = torch.arange(B, device="cuda")
    temperature = 0.7 + 0.05 * (row % 13).float()
    temperature[4::5] = 0
    return dict(temperature=temperature, seed=(row * 7919 + 13) * (1 - 2 * (row % 2)), position=row * 17 + 2**33)


def outputs(B, names):
    types = {"tokens": torch.int32, "status": torch.int32}
    out = {name: torch.full((B,), 0x7B7B7B7B, device="cuda", dtype=types.get(name, torch.int32)) for name in names}
    return {name: a.view(torch.float32) if name in FLOATS else a for name, a in out.items()}


def head(how, kind="weights", H=None, **more):
    """This rank's shard of the weights, with a screen or without, or of the logits they give."""
    first, last = shards(V, COUNT, how)[RANK]
    W = weights()[first:last]
    if kind == "screened" and last > first:
        more["screen"] = CONTEXT.screen(fs.Head(W, first_token=first, vocab=V), 4, seed=3)
    if kind != "logits":
        return fs.Head(W, first_token=first, vocab=V, **more)
    return fs.Head(logits=(H.double() @ W.double().T).float(), first_token=first, vocab=V, **more)


# name, results, logits, more rules of the batch, kind of head
CASES = (
    ("tokens", ("tokens",), "raw", {}, "weights"),
    ("scores", ("tokens", "noisy_logit"), "raw", {}, "weights"),
    ("status", ("tokens", "status"), "raw", {}, "weights"),
    ("raw", ("tokens", "status", "log_z", "logit", "logprob"), "raw", {}, "weights"),
    ("processed", ("tokens", "status", "log_z", "logprob", "max_logit"), "processed", {}, "weights"),
    ("largest", ("tokens", "max_logit"), "raw", {}, "weights"),
    ("groups", ("tokens", "status", "log_z"), "processed", dict(mode="group_parallel", group_size=128), "weights"),
    ("stored", ("tokens", "status", "log_z"), "processed", {}, "logits"),
    ("stored tokens", ("tokens",), "processed", {}, "logits"),
    ("screened tokens", ("tokens",), "raw", {}, "screened"),
    ("screened", ("tokens", "status", "noisy_logit", "logit"), "raw", {}, "screened"),
    ("screened with cuts", ("tokens", "status", "noisy_logit"), "raw", dict(top_k=50), "screened"),
    ("top-k", ("tokens", "status", "noisy_logit"), "raw", dict(top_k=50), "weights"),
    ("cuts", ("tokens", "status", "noisy_logit"), "raw", dict(top_k=64, top_p=0.8, min_p=0.001), "weights"),
    ("nucleus", ("tokens", "status", "noisy_logit"), "raw", dict(top_p=0.7, list_capacity=V), "weights"),
    ("stored min-p", ("tokens", "status", "noisy_logit"), "raw", dict(min_p=0.01, list_capacity=V), "logits"),
)


def draw_cases(ranks, found, how):
    """Every case; without ranks (None) the plain call, which one process makes on the whole head."""
    for name, wanted, logits, more, kind in CASES:
        for B in (1, 5, 64, 300):
            if ranks is None and name == "groups":
                continue
            H, out = hidden(B), outputs(B, wanted)
            CONTEXT.sample(head(how, kind, H), None if kind == "logits" else H, out=out, logits_mode=logits, **rules(B),
                           **more, **({} if ranks is None else {"ranks": ranks.address}))
            torch.cuda.synchronize()
            if "status" in out:
                out["status"] &= ~int(Row.FALLBACK)
            for key, value in out.items():
                found["%s/%s/%d/%s" % (how, name, B, key)] = value.cpu().numpy()


def run_draw():
    ranks, found = Ranks(RANK, COUNT, FOLDER), {}
    for how in ("even", "uneven", "empty"):
        draw_cases(ranks, found, how)
    if COUNT == 1:
        plain = {}
        draw_cases(None, plain, "even")
        found.update(("plain/" + key.split("/", 1)[1], value) for key, value in plain.items())
    np.savez(os.path.join(FOLDER, "%d.npz" % RANK), **found)
    ranks.close()


def run_graph():
    """A captured call, replayed with other positions and hidden states, draws what an eager one does."""
    ranks, B = Ranks(RANK, COUNT, FOLDER), 64
    H, asked = hidden(B), rules(B)
    for wanted, more, kind in ((("tokens",), {}, "weights"), (("tokens",), {}, "screened"),
                               (("tokens", "status", "log_z"), {}, "weights"),
                               (("tokens", "status"), dict(top_k=50), "weights")):
        part = head("even", kind)
        asked.update(more)
        out, eager = outputs(B, wanted), outputs(B, wanted)
        CONTEXT.sample(part, H, out=out, ranks=ranks.address, logits_mode="processed", **asked)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=STREAM, capture_error_mode="thread_local"):
            CONTEXT.sample(part, H, out=out, ranks=ranks.address, logits_mode="processed", **asked)
        seen = set()
        for step in range(20):
            asked["position"] += 1
            H.copy_(hidden(B) * (1 if step % 2 else 0.5))
            graph.replay()
            CONTEXT.sample(part, H, out=eager, ranks=ranks.address, logits_mode="processed", **asked)
            torch.cuda.synchronize()
            for name in wanted:
                assert torch.equal(out[name].view(torch.int32), eager[name].view(torch.int32)), (step, name)
            seen.add(tuple(out["tokens"].tolist()))
        assert len(seen) == 20
        del graph
    ranks.close()


def run_differ():
    """Another seed on one rank: no row has a token, on any rank; the next call is well."""
    ranks, B = Ranks(RANK, COUNT, FOLDER), 9
    for wanted in (("tokens",), ("tokens", "status"), ("tokens", "status", "log_z")):
        for other in (False, True, False):
            asked, out = rules(B), outputs(B, wanted)
            if other and RANK == COUNT - 1:
                asked["seed"] = asked["seed"] + 1
            CONTEXT.sample(head("even"), hidden(B), out=out, ranks=ranks.address, fallback_token=-5, **asked)
            torch.cuda.synchronize()
            assert (out["tokens"] == -5).all().item() == other, (wanted, other)
            if "status" in out:
                assert ((out["status"] & int(Row.PEER)) != 0).all().item() == other
            if "log_z" in out:
                assert out["log_z"].isnan().all().item() == other
    ranks.close()


def run_die():
    """The last rank leaves; the others find out and may abort."""
    ranks, B = Ranks(RANK, COUNT, FOLDER, MAY_ABORT), 4
    for step in range(3):
        if step == 2 and RANK == COUNT - 1:
            os._exit(0)
        out = outputs(B, ("tokens",))
        CONTEXT.sample(head("even"), hidden(B), out=out, ranks=ranks.address, **rules(B))
        status, done = ranks.poll(STREAM.cuda_stream, 10.0)
        if step < 2:
            assert (status, done) == (0, 1), (step, status, done)
    assert status == -5 and done == 0, (status, done)
    try:
        CONTEXT.sample(head("even"), hidden(B), out=out, ranks=ranks.address, **rules(B))
        raise AssertionError("a call over an aborted communicator went well")
    except fs.Error as error:
        print("survivor %d: peer, then %s: %s" % (RANK, error.name, error.text), flush=True)
    os._exit(0)


{"draw": run_draw, "graph": run_graph, "differ": run_differ, "die": run_die}[MODE]()
print("rank %d: done" % RANK, flush=True)
