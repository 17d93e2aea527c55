"""Pointers that the device cannot use: refused on the host, before a fault ends the process's use of the device."""
import ctypes

import pytest

from draws import GPU, STREAM, Outputs, draw, fs, hidden, np, rules, same_bits, torch, weights
from flashsampling import _c
from flashsampling._rules import STRUCT_RULES

V, D, B = 5003, 128, 5
ARGUMENT, ENVIRONMENT = -1, -7
POINTERS = {"head": ("data", "bias"), "batch": ("hidden", "slot", "position", "seed", "substream"),
            "rules": ("temperature", "top_k"),
            "result": ("tokens", "status", "noisy_logit", "max_logit", "log_z", "logit", "logprob")}


class Call:
    """A call with every array that the backend takes, as structs."""

    def __init__(self, stored=False):
        bias = torch.zeros(V, device="cuda")
        self.head = fs.Head(logits=hidden(B, V).float(), bias=bias) if stored else fs.Head(weights(V, D), bias=bias)
        asked = dict(rules(B), slot=torch.arange(B, device="cuda", dtype=torch.int32),
                     substream=torch.zeros(B, device="cuda", dtype=torch.int32))
        self.batch = fs.Batch(self.head, None if stored else hidden(B, D), **asked)
        self.out = Outputs(B, floats=("noisy_logit", "max_logit", "log_z", "logit", "logprob"))
        self.result = fs.Result.into(self.batch, self.out.rows)
        structs = {"head": self.head.struct, "batch": self.batch.struct, "result": self.result._struct(self.batch)}
        structs["rules"] = self.batch.struct.own_rules
        self.structs = {name: type(s).from_buffer_copy(s) for name, s in structs.items()}
        self.structs["batch"].rules = ctypes.addressof(self.structs["rules"])

    def get(self, struct, member):
        found = getattr(self.structs[struct], member)
        return found.per_slot or 0 if struct == "rules" else found

    def set(self, struct, member, address):
        if struct == "rules":
            getattr(self.structs["rules"], member).per_slot = address
        else:
            setattr(self.structs[struct], member, address)

    def run(self, context):
        h, b, r = (ctypes.byref(self.structs[name]) for name in ("head", "batch", "result"))
        status = _c.library().fs_sample(context._handle(), h, b, r)
        return status, _c.library().fs_error_text(context._handle()).decode()


EVERY = [(struct, member) for struct, members in POINTERS.items() for member in members]


@pytest.mark.parametrize("stored", [False, True], ids=["weights", "logits"])
def test_a_pointer_between_elements_is_named(stored):
    for struct, member in EVERY:
        call = Call(stored)
        if stored and member == "hidden":
            continue
        call.set(struct, member, call.get(struct, member) + 1)
        status, text = call.run(GPU)
        assert status == ARGUMENT and "%s.%s" % (struct, member) in text and "aligned" in text, (member, text)
        torch.cuda.synchronize()
        assert call.out.untouched()


def test_host_memory_is_named_where_pointers_are_checked():
    host = np.zeros(1 << 16, "i8")
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream, check_pointers=True) as context:
        for struct, member in EVERY:
            call = Call()
            call.set(struct, member, host.ctypes.data)
            status, text = call.run(context)
            assert status == ARGUMENT and "%s.%s" % (struct, member) in text and "host" in text, (member, text)
            torch.cuda.synchronize()
            assert call.out.untouched()
        call = Call()
        assert call.run(context)[0] == 0
        call.out.taken()


def test_mapped_host_memory_passes_the_check_and_works():
    W, H, asked = weights(V, D), hidden(B, D), rules(B)
    pinned = {name: value.cpu().pin_memory() for name, value in asked.items()}
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream, check_pointers=True) as context:
        call = Call()
        for name, value in pinned.items():
            call.set("rules" if name in STRUCT_RULES else "batch", name, value.data_ptr())
        call.structs["head"].bias = None
        call.structs["batch"].slot = call.structs["batch"].substream = None
        status, text = call.run(context)
        assert status == 0, text
        torch.cuda.synchronize()
    got = call.out.taken()
    want = draw(W, H, asked)
    assert same_bits({name: got[name] for name in want}, want)


def test_the_environment_asks_for_the_check_too(monkeypatch):
    host = np.zeros(64, "i8")
    monkeypatch.setenv("FLASHSAMPLING_CHECK_POINTERS", "1")
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        call = Call()
        call.structs["batch"].seed = host.ctypes.data
        assert call.run(context)[0] == ARGUMENT
    monkeypatch.setenv("FLASHSAMPLING_CHECK_POINTERS", "perhaps")
    with pytest.raises(fs.Error) as error:
        fs.Context("cuda")
    assert error.value.status == ENVIRONMENT and "perhaps" in error.value.text
