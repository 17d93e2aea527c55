"""The baselines of the paper: samplers over logits [B, V] that cuBLAS stored as bfloat16.

    multinomial  softmax and torch.multinomial, compiled by torch.compile for every shape: the paper's Algorithm 1
    b1           our own sampler over stored logits: the paper's algorithm B.1
    sort         a full sort, then top-k and top-p with a value per row: how engines cut without a kernel of their own
    fi1, fi2     FlashInfer's top-k/top-p and Gumbel-max samplers, where it is installed; they take float32

Each is made by a function of (bench, logits) that returns (run, note): run() queues one draw and returns its tokens,
note says what is unusual about it. All draw at temperature 1; sort and fi1 cut besides, as in the paper.
"""
import sys

TOP_K, TOP_P = 50, 0.9
RECOMPILES = 64  # shapes torch.compile may see; beyond its default of 8 it silently stops compiling


class Absent(Exception):
    """A baseline that cannot run here; its text says why."""


def first_words(error):
    """An exception in one line."""
    text = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, text[0][:160] if text else "")


def algorithm_1(logits, temperature):
    return (logits.float() / temperature).softmax(-1).multinomial(1)


def make_multinomial(bench, logits):
    torch = bench.torch
    temperature = torch.ones(logits.shape[0], 1, device=bench.device)
    try:
        import torch._dynamo as dynamo

        dynamo.config.recompile_limit = RECOMPILES
        compiled = torch.compile(algorithm_1, dynamic=False)
        compiled(logits, temperature)
    except Exception as error:  # whatever a compiler says: the baseline runs without it
        return lambda: algorithm_1(logits, temperature), "not compiled (%s)" % first_words(error)
    return lambda: compiled(logits, temperature), ""


def make_b1(bench, logits):
    done, why = bench.fs.supports("cuda", kind="logits", dtype="bf16")
    if not done:
        raise Absent(why)
    run = bench.draw(bench.fs.Head(logits=logits), None, 1.0)
    return lambda: run().tokens, ""


def cut_by_sorting(logits, rank, k, p):
    """Draws from the p of mass that is left of the k largest. rank is 0 .. V - 1; k and p are [B, 1]."""
    largest, token = logits.sort(dim=-1, descending=True)
    mass = largest.float().masked_fill_(rank >= k, float("-inf")).softmax(-1)
    mass.masked_fill_(mass.cumsum(-1) - mass >= p, 0.0)
    best = mass.div_(mass.new_empty(mass.shape).exponential_()).argmax(-1, keepdim=True)
    return token.gather(-1, best)


def make_sort(bench, logits):
    torch, (B, V) = bench.torch, logits.shape
    rank = torch.arange(V, device=bench.device)
    k = torch.full((B, 1), TOP_K, device=bench.device)
    p = torch.full((B, 1), TOP_P, device=bench.device)
    return lambda: cut_by_sorting(logits, rank, k, p), ""


def flashinfer_sampling():
    try:
        import flashinfer.sampling as sampling
    except Exception as error:  # a package whose parts do not fit fails in many ways
        raise Absent(first_words(error)) from None
    return sampling


def flashinfer_seed(bench):
    """Its noise by tensors, which a graph can hold: its default asks torch's generator, which a capture forbids. Every
    repetition has another seed."""
    return {"seed": bench.position[:1], "offset": bench.position.new_zeros(1)}


def tried(run):
    """run, if it runs once: FlashInfer compiles its kernels at the first call."""
    try:
        run()
    except Exception as error:
        raise Absent(first_words(error)) from None
    return run, ""


def make_fi1(bench, logits):
    torch, sampling, B = bench.torch, flashinfer_sampling(), logits.shape[0]
    k = torch.full((B,), TOP_K, dtype=torch.int32, device=bench.device)
    p = torch.full((B,), TOP_P, device=bench.device)
    noise = flashinfer_seed(bench)
    return tried(lambda: sampling.top_k_top_p_sampling_from_logits(logits.float(), k, p, **noise))


def make_fi2(bench, logits):
    sampling, noise = flashinfer_sampling(), flashinfer_seed(bench)
    return tried(lambda: sampling.sampling_from_logits(logits.float(), **noise))


MAKERS = {"multinomial": make_multinomial, "b1": make_b1, "sort": make_sort, "fi1": make_fi1, "fi2": make_fi2}


def why_eager(bench, run):
    """Why no graph can hold a call, or "". One that waits for the device cannot be captured, and a capture that fails
    leaves torch's allocator and generator unusable: it must not be tried."""
    bench.torch.cuda.set_sync_debug_mode("error")
    try:
        run()
        return ""
    except RuntimeError as error:
        return first_words(error)
    finally:
        bench.torch.cuda.set_sync_debug_mode("default")
        bench.torch.cuda.synchronize()


def make_all(bench, logits):
    """({name: run}, {name: note}, {name: why it is absent}), each run checked on logits that allow one answer."""
    runs, notes, absent = {}, {}, {}
    logits.zero_()
    for name, make in MAKERS.items():
        try:
            runs[name], note = make(bench, logits)
        except Absent as why:
            absent[name] = str(why)
            continue
        if note:
            notes[name] = note
        check(bench, name, runs[name], logits)
    return runs, notes, absent


def check(bench, name, run, logits):
    """Ends the program if a sampler misses a token that has all the mass but about exp(-48)."""
    torch, (B, V) = bench.torch, logits.shape
    row = torch.arange(B, device=bench.device)
    want = (row * 7919 + V // 3) % V
    logits.zero_()
    logits[row, want] = 60.0
    tokens = run().reshape(-1).long()
    if tokens.shape != want.shape or not bool((tokens == want).all()):
        sys.exit("bench: %s draws %s from rows where only %s can be drawn: nothing was timed"
                 % (name, tokens.tolist()[:8], want.tolist()[:8]))
