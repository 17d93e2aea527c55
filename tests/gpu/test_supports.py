"""What fs.supports says of the cuda backend is what its calls do, and a call is refused in the same words.

Every call without rules and results, with one rule, with one result, and with all of them. tests/c/test_backend.c
has the refusals without a GPU; here what is not refused runs. Calls are made with structures of our own: the binding
would refuse some before the library.
"""
import ctypes
import itertools

import pytest
from draws import GPU, STREAM, torch

import flashsampling as fs
from flashsampling import _c

V, D, B, OK, UNSUPPORTED = 256, 64, 2, 0, -2
DTYPES = ("f32", "f16", "bf16")
RULES = [()] + [(rule.name.lower(),) for rule in _c.Rule]
RESULTS = [()] + [(wanted.name.lower(),) for wanted in _c.Wanted]
ASKED = [(rules, ()) for rules in RULES] + [((), results) for results in RESULTS[1:]]
NOT_YET = ("entropy", "survivors")
ASKED.append((sum(RULES, ()), tuple(name for name in sum(RESULTS, ()) if name not in NOT_YET)))
FIELDS = {"top": ("top_token", "top_logit", "top_logprob"), "watch": ("watch_logit", "watch_logprob"),
          "survivors": ("survivor_token", "survivor_count")}


def device(values, dtype):
    return torch.tensor(values, dtype=dtype, device="cuda")


I32, I64, F32 = torch.int32, torch.int64, torch.float32
NUMBERS = torch.zeros(V * D, dtype=F32, device="cuda")  # zeros in every dtype
HALF, THREE, OFFSET = device([0.5] * B, F32), device([3] * B, I32), device(range(B + 1), I64)
ONES, ZEROS = torch.full((B * V,), -1, dtype=I32, device="cuda"), torch.zeros(B * V, dtype=I32, device="cuda")
OUT = {}
PART = torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")


def output(name):
    """Its address; the library writes there, and nobody reads it."""
    return OUT.setdefault(name, torch.zeros(64, dtype=I64, device="cuda")).data_ptr()


# ------------------------------------------------------------------------------------------------------ one rank ----

AllMax = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
AllGather = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, ctypes.c_size_t, ctypes.c_void_p)


class Ranks(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("count", ctypes.c_int32),
                ("device", ctypes.c_int32), ("reserved", ctypes.c_int32), ("self", ctypes.c_void_p),
                ("all_max", AllMax), ("all_gather", AllGather), ("error_text", ctypes.c_void_p)]


class Bytes:
    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


@AllMax
def largest_of_one(self, values, count, stream):
    return OK


@AllGather
def gather_of_one(self, mine, out, size, stream):
    with torch.cuda.stream(STREAM):
        torch.as_tensor(Bytes(out, size), device="cuda").copy_(torch.as_tensor(Bytes(mine, size), device="cuda"))
    return OK


ONE = Ranks(size=ctypes.sizeof(Ranks), count=1, device=1, all_max=largest_of_one, all_gather=gather_of_one)


# ------------------------------------------------------------------------------------------------------ one call ----


def batch_of(asked):
    b = _c.BatchStruct(rows=B, hidden=NUMBERS.data_ptr(), fallback_token=-1)
    b.hidden_dtype, b.slot_dtype = _c.DTYPES[asked["hidden_dtype"]], _c.DTYPES["i32"]
    b.mode, b.noise = _c.MODES[asked["mode"]], _c.NOISES[asked["noise"]]
    b.samples, b.group_size = asked["samples"], asked["group_size"]
    b.score_token = ZEROS.data_ptr()
    for rule in asked["rules"]:
        if rule in ("top_k", "top_p", "min_p"):
            getattr(b.own_rules, rule).per_slot = (THREE if rule == "top_k" else HALF).data_ptr()
        elif rule == "allow":
            b.allow = ONES.data_ptr()
        elif rule == "edits":
            b.edit_offset, b.edit_token, b.edit_bias = OFFSET.data_ptr(), ZEROS.data_ptr(), HALF.data_ptr()
        else:
            b.counts, b.own_rules.presence.value = ZEROS.data_ptr(), 0.5
    if "watch" in asked["results"]:
        b.watch_offset, b.watch_token, b.own_limits.watched = OFFSET.data_ptr(), ZEROS.data_ptr(), B
    return b


def result_of(asked):
    r = _c.ResultStruct(size=ctypes.sizeof(_c.ResultStruct), tokens_dtype=_c.DTYPES["i32"], tokens=output("tokens"))
    r.logits_mode = _c.LOGITS[asked["logits_mode"]]
    for name in asked["results"]:
        for field in FIELDS.get(name, (name,)):
            setattr(r, field, output(field))
    r.top_count = 3 if "top" in asked["results"] else 0
    r.survivor_limit = 1 if "survivors" in asked["results"] else 0
    return r


def call(asked):
    """The status and text of such a call."""
    library, context, size = _c.library(), GPU._handle(), ctypes.c_size_t()
    h = _c.HeadStruct(size=ctypes.sizeof(_c.HeadStruct), kind=_c.KINDS[asked["kind"]], data=NUMBERS.data_ptr(),
                      dtype=_c.DTYPES[asked["dtype"]], rows=V, dim=D, scale=1.0, post_scale=1.0)
    b, r = batch_of(asked), result_of(asked)
    arguments = [context] + [ctypes.byref(struct) for struct in (h, b, r)]
    if asked["call"] == "sample":
        status = library.fs_sample(*arguments)
    elif asked["call"] == "ranks":
        status = library.fs_sample_ranks(context, ctypes.byref(ONE), *arguments[1:])
    else:
        status = library.fs_partial_size(*arguments, ctypes.byref(size))
        assert size.value <= PART.numel()
        assert library.fs_partial(*arguments, PART.data_ptr(), size) == status
        parts = (ctypes.c_void_p * 1)(PART.data_ptr())
        assert library.fs_merge(*arguments[:3], parts, 1, arguments[3]) == status
    return status, library.fs_error_text(context).decode() if status else ""


@pytest.mark.parametrize("kind", ["weights", "logits"])
@pytest.mark.parametrize("name", ["sample", "partial", "ranks"])
def test_the_answers_are_what_calls_do(name, kind):
    done = every = 0
    axes = itertools.product(_c.MODES, DTYPES, DTYPES, _c.NOISES, (1, 2), _c.LOGITS, (128, 100))
    for mode, dtype, hidden, noise, samples, logits, group in axes:
        for rules, results in ASKED:
            asked = dict(call=name, kind=kind, dtype=dtype, hidden_dtype=hidden, mode=mode, noise=noise,
                           samples=samples, logits_mode=logits, rules=rules, results=results, group_size=group)
            try:
                answer, why = fs.supports("cuda", **asked)
            except fs.Error:  # nobody could: so it is refused, one way or the other
                assert call(asked)[0] < 0, asked
                continue
            status, text = call(asked)
            assert status == (OK if answer else UNSUPPORTED), (asked, why, text)
            assert answer == (why == "") and why in text, (asked, why, text)
            done += answer
            every += answer and (rules, results) == ASKED[-1]
    torch.cuda.synchronize()
    assert done > 10 and (every > 10 or name != "sample")
