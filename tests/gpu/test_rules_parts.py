"""Every rule over shards on the device: parts that are merged are the whole, as the CPU backend draws it. Lists hold
the whole vocabulary here, so that they prove every cut."""
import numpy as np
import pytest

from rules_cases import TESTED, Call, case_text, differences, fs, on_cpu, on_device
from rules_inputs import exact_weights, gaussian, language, mixed_case, tame
from cases import random_case

V = 1500


def shards(case, cuts):
    """The case on each shard of its head."""
    kind = "weights" if case.head.get("weights") is not None else "logits"
    size = case.head[kind].shape[kind == "logits"]
    edges = [0] + sorted(cuts) + [size]
    for v0, v1 in zip(edges, edges[1:]):
        part = case.copy()
        part.head.update(first_token=v0, vocab=case.head.get("vocab") or size)
        part.head[kind] = case.head[kind][v0:v1] if kind == "weights" else case.head[kind][:, v0:v1]
        if case.head.get("bias") is not None:
            part.head["bias"] = case.head["bias"][v0:v1]
        yield part


def merged(case, cuts):
    calls = [Call(part, i) for i, part in enumerate(shards(case, cuts))]
    parts = [TESTED.partial(call.head, call.batch, out=call.out) for call in calls]
    last = calls[-1]
    TESTED.merge(parts[::-1], last.head, last.batch, out=last.out, on_error="status")
    return last.taken()


def check_parts(name, case, cuts):
    try:
        found, _ = differences(case, merged(case, cuts), on_cpu(case))
    except fs.Error as error:
        found = [str(error)]
    if found:
        pytest.fail("%s, cut at %s: %s\n%s" % (name, cuts, case_text(case), "\n".join(f[:400] for f in found[:3])),
                    pytrace=False)


CUTS = ([128], [16, 700], [1, 2, 1499], [384, 768, 1152])


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_parts_of_rows_of_every_kind(kind, cuts):
    for seed, mode in enumerate(("sample", "without_replacement")):
        rng = np.random.default_rng([51, seed])
        if kind == "stored":
            head, hidden = dict(logits=language(rng, 33, V)), None
        else:
            head, hidden = exact_weights(rng, 33, 64, V, "bf16", "bf16")
        case = mixed_case(rng, head, hidden, 33, V, samples=1 + 2 * seed, mode=mode, exact_rank=True,
                          list_capacity=V + 1)
        check_parts(mode, case, cuts)


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_parts_of_random_cases(kind, block):
    for seed in range(15 * block, 15 * block + 15):
        rng = np.random.default_rng([52, seed])
        mode = ("sample", "without_replacement", "score")[seed % 3]
        case = tame(random_case(rng, mode=mode, whole=True, kind="logits" if kind == "stored" else kind))
        size = case.head["logits"].shape[1] if kind == "stored" else case.head["weights"].shape[0]
        case.rules.update(list_capacity=size + 1, exact_rank=True)
        cuts = [int(c) for c in rng.integers(1, size, rng.integers(1, 5))] if size > 1 else []
        check_parts("case %d" % seed, case, cuts)


@pytest.mark.parametrize("logits", ["raw", "processed", "cut"])
def test_stored_parts_at_multiples_of_128_have_the_bits_of_the_whole(logits):
    rng = np.random.default_rng(53)
    case = mixed_case(rng, dict(logits=gaussian(53, 33, V)), None, 33, V, logits_mode=logits, exact_rank=True,
                      list_capacity=V + 1)
    whole = on_device(case)
    for cuts in ([128], [256, 1024], [384, 768, 1152]):
        found = merged(case, cuts)
        for name, array in found.items():
            other = whole[name]
            if name == "status":
                array, other = array & fs.Row.NO_TOKEN, other & fs.Row.NO_TOKEN
            if logits == "cut" and name in ("log_z", "logprob", "top_logprob", "watch_logprob"):
                np.testing.assert_allclose(array, other, rtol=0, atol=1e-6)  # sums of survivors, in another order
            else:
                assert array.tobytes() == other.tobytes(), "%s with parts at %s" % (name, cuts)
