"""The kernel of torch's operators in C (src/python/torch_ops.c) on a GPU that is not there: torch's C interface is a
stand-in, whose tensors say that they are on a CUDA device, and so is the library's CUDA backend. Which stream calls go
to, whose contexts they use, what happens where memory is short, and that nothing is kept of a call."""
import ctypes
import os
import shutil
import subprocess
import sys
from ctypes import CFUNCTYPE, POINTER, addressof, c_char, c_char_p, c_int32, c_int64, c_uint64, c_void_p

import numpy as np
import pytest

FOLDER = os.path.dirname(os.path.abspath(__file__))
F32, I32, I64 = 6, 3, 4  # the stand-in's types
CPU, CUDA = 0, 1
TENSORS, SAMPLES, ALL = 12, 18, 26


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc was not found")
def test_the_kernel_on_a_device_that_is_not_there(tmp_path):
    for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wl,-soname," + name, "-o", str(tmp_path / name),
                        os.path.join(FOLDER, "standin_torch.c")], check=True)
    path = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    done = subprocess.run([sys.executable, os.path.abspath(__file__)], capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": path, "FLASHSAMPLING_CALLS": ""}, timeout=120)
    if "no library of calls" in done.stdout:
        pytest.skip("libflashsampling_python.so was not built")
    assert done.returncode == 0 and done.stdout.split() == [name for name in CHECKS], done.stdout + done.stderr


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dims", c_int64), ("sizes", c_int64 * 2), ("strides", c_int64 * 2),
                ("dtype", c_int32), ("device", c_int32), ("index", c_int32), ("made_here", c_int32)]


class Device:
    """torch, one CUDA device and the library for it, all of them stand-ins."""

    def __init__(self):
        from flashsampling import _c, _native

        self.lib = _native.library()
        if self.lib is None:
            print("no library of calls")
            raise SystemExit(0)
        self.torch, self.cuda = ctypes.CDLL("libtorch_cpu.so"), ctypes.CDLL("libtorch_cuda.so")
        self.torch.standin_word.restype = c_void_p
        self.torch.standin_word.argtypes = [c_void_p]
        self.stream = c_void_p.in_dll(self.cuda, "standin_stream")
        self.error = (c_char * 1024).in_dll(self.torch, "standin_error")
        self.streams, self.calls, self.created, self.destroyed, self.rooms = [], [], [], [], []
        self.statuses, self.given = [], 0
        self.c, self.keep = _c, []

        def create(options, out):
            self.created.append((options[0].backend, options[0].device))
            out[0] = 0x1000 + len(self.created)
            return 0

        def sample(context, head, batch, result):
            copied = _c.BatchStruct.from_buffer_copy(batch[0])  # the call's own is gone after it
            values = {name: getattr(copied, name) for name, _ in _c.BatchStruct._fields_}
            values["rules"] = _c.RulesStruct.from_buffer_copy(_c.RulesStruct.from_address(copied.rules))
            self.calls.append((context, head[0].rows, values, result[0].tokens, result[0].logprob))
            return self.statuses.pop(0) if self.statuses else 0

        functions = {
            "create": CFUNCTYPE(c_int32, POINTER(_c.OptionsStruct), POINTER(c_void_p))(create),
            "destroy": CFUNCTYPE(None, c_void_p)(lambda context: self.destroyed.append(context)),
            "sample": CFUNCTYPE(c_int32, c_void_p, POINTER(_c.HeadStruct), POINTER(_c.BatchStruct),
                                POINTER(_c.ResultStruct))(sample),
            "set_stream": CFUNCTYPE(c_int32, c_void_p, c_void_p)(lambda c, s: self.streams.append((c, s)) or 0),
            "error_text": CFUNCTYPE(c_void_p, c_void_p)(lambda context: addressof(self.text)),
            "status_text": CFUNCTYPE(c_void_p, c_int32)(lambda status: addressof(self.word)),
        }
        self.text, self.word = ctypes.create_string_buffer(b"too much"), ctypes.create_string_buffer(b"memory")
        self.library = _native.Library()
        self.library.options.backend = 2
        for name, function in functions.items():
            setattr(self.library, name, _native.address(function))
        self.keep.append(functions)
        self.found = []
        find = _native.FindFunction(lambda cuda: self.found.append(cuda) or addressof(self.library))
        room = _native.RoomFunction(lambda device: self.rooms.append(device) or self.given)
        text = _native.TextFunction(lambda *_: None)  # of rows on the CPU
        self.keep += [find, room, text]
        assert self.lib.fs_python_torch_open(find, room, text) is None

    def tensor(self, shape, dtype=F32, device=CUDA, index=0):
        t = Tensor(dims=len(shape), dtype=dtype, device=device, index=index)
        array = np.zeros(shape, {F32: "f4", I32: "i4", I64: "i8"}[dtype])
        for i, size in enumerate(shape):
            t.sizes[i], t.strides[i] = size, array.strides[i] // array.itemsize
        t.data = array.ctypes.data
        self.keep += [t, array]
        return t

    def counts(self):
        names = ("deleted", "made", "words", "strings")
        return [c_int64.in_dll(self.torch, "standin_" + name).value for name in names]

    def call(self, hidden, weight, outputs=1, rules=None, **tensors):
        """The results' handles, or the text of the exception. What was given is deleted, once."""
        names = ("hidden", "weight", "bias", "temperature", "top_k", "top_p", "min_p", "seed", "position", "slot",
                 "allow", "allow_index")
        count = 9 if rules is None else ALL
        stack = (c_uint64 * ALL)(addressof(hidden), addressof(weight))
        for name, value in tensors.items():
            stack[names.index(name)] = self.torch.standin_word(addressof(value))
        for place, value in (rules or {}).items():
            if place == SAMPLES and value:
                value = self.torch.standin_word(value)
            stack[place] = value if isinstance(value, int) else np.array(value).view("u8").item()
        before, self.error.value = self.counts(), b""
        self.lib.fs_python_torch_draw(stack, count, outputs)
        after = [b - a for a, b in zip(before, self.counts())]
        failed = self.error.value.decode()
        given = 2 + len(tensors)
        assert after[0] == given + (after[1] if failed else 0), "handles: %s" % after
        assert after[2] == len(tensors) + bool((rules or {}).get(SAMPLES)) and after[3] == int(rules is not None)
        return failed or [ctypes.cast(c_void_p(stack[i]), POINTER(Tensor))[0] for i in range(outputs)]


def ordinary():
    """The words of an operator with rules, from the twelfth on."""
    text = ctypes.create_string_buffer(b"f32")
    ordinary.keep.append(text)
    return {TENSORS: 1.0, 13: 0, 14: 1.0, 15: 0.0, 16: 0, 17: 0, SAMPLES: 0, 19: 0, 20: 0, 21: addressof(text), 22: 1.0,
            23: 0.0, 24: 1.0, 25: 1}


ordinary.keep = []


def results_are_tensors_of_the_device(d):
    hidden, weight = d.tensor([3, 8]), d.tensor([40, 8])
    tokens, logprob, status = d.call(hidden, weight, outputs=3)
    assert (tokens.device, tokens.index, tokens.dtype, tokens.dims, tokens.sizes[0]) == (CUDA, 0, I64, 1, 3)
    assert (logprob.dtype, status.dtype, status.dims, status.sizes[0]) == (F32, I32, 1, 3)
    assert d.calls[-1][1] == 40 and d.calls[-1][3] == tokens.data and d.calls[-1][4] == logprob.data
    assert d.calls[-1][2]["rows"] == 3 and d.calls[-1][2]["hidden"] == hidden.data


def calls_follow_the_current_stream(d):
    hidden, weight = d.tensor([3, 8]), d.tensor([40, 8])
    d.streams.clear()
    for stream in (64, 64, 0, 0, 128):
        d.stream.value = stream
        d.call(hidden, weight)
    assert [stream for _, stream in d.streams] == [64, 1, 128]  # 1: CUDA's default stream, which torch calls 0
    assert len({context for context, _ in d.streams}) == 1


def every_device_has_a_context_of_its_own(d):
    created = len(d.created)
    for index in (0, 1, 1, 0):
        d.call(d.tensor([3, 8], index=index), d.tensor([40, 8], index=index))
    assert d.created[created:] == [(2, 1)] and d.found == [1]  # the library is looked for once
    contexts = [call[0] for call in d.calls[-4:]]
    assert contexts[0] == contexts[3] != contexts[1] == contexts[2]


def tensors_of_two_devices_are_refused(d):
    calls = len(d.calls)
    text = d.call(d.tensor([3, 8]), d.tensor([40, 8], index=1))
    assert "hidden: float32[3, 8] on cuda:0, strides [8, 1]; expected" in text and text.endswith("on cuda:1, packed")
    text = d.call(d.tensor([3, 8]), d.tensor([40, 8]), seed=d.tensor([3], I64, device=CPU))
    assert "seed: int64[3] on cpu, strides [1]; expected int64 or uint64[3] on cuda:0" in text
    assert len(d.calls) == calls


def a_call_without_memory_is_tried_once_more(d):
    hidden, weight = d.tensor([3, 8]), d.tensor([40, 8])
    for given, statuses, good in ((1, [-3], True), (1, [-3, -3], False), (0, [-3], False), (1, [-1], False)):
        d.given, d.statuses, calls = given, list(statuses), len(d.calls)
        d.rooms.clear()
        found = d.call(hidden, weight)
        assert (found == "memory: too much") != good
        assert len(d.calls) - calls == 1 + (given and statuses[0] == -3) and not d.statuses
        assert d.rooms == ([0] if statuses[0] == -3 else [])


def results_that_torch_cannot_make_are_an_error(d):
    fail = c_int32.in_dll(d.torch, "standin_fail_empty")
    fail.value = 1
    assert "torch has no memory for the results of 3 rows" in d.call(d.tensor([3, 8]), d.tensor([40, 8]), outputs=3)
    fail.value = 0


def rules_come_in_their_order(d):
    words = {TENSORS: 0.5, 13: 7, 14: 0.25, 15: 0.125, 16: 11, 17: 13, SAMPLES: 2, 19: 1 << 3, 20: 37}
    slots = d.tensor([3], I64)
    d.call(d.tensor([3, 8]), d.tensor([40, 8]), rules=ordinary() | words, slot=slots,
           temperature=d.tensor([5]), allow=d.tensor([4, 2], I32), allow_index=d.tensor([3], I32))
    batch = d.calls[-1][2]
    numbers = [getattr(batch["rules"], name).value for name in ("temperature", "top_k", "top_p", "min_p")]
    assert (*numbers, batch["seed_all"]) == (0.5, 7, 0.25, 0.125, 11)
    assert (batch["position_all"], batch["samples"], batch["flags"], batch["slots"]) == (13, 2, 8, 5)
    assert (batch["slot"], batch["slot_dtype"], batch["allow_count"], batch["allow_stride"]) == (slots.data, 9, 4, 8)
    assert "round_to 'f64'" in d.call(d.tensor([3, 8]), d.tensor([40, 8]),
                                   rules=ordinary() | {21: ctypes.cast(c_char_p(b"f64"), c_void_p).value})


def a_child_of_fork_makes_contexts_of_its_own(d):
    hidden, weight = d.tensor([3, 8]), d.tensor([40, 8])
    d.call(hidden, weight)
    created, destroyed = len(d.created), len(d.destroyed)
    child = os.fork()
    if child == 0:
        try:
            d.call(hidden, weight)
            os._exit(0 if (len(d.created), len(d.destroyed)) == (created + 1, destroyed + 1) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def a_thread_that_ends_destroys_its_contexts(d):
    import threading

    created, destroyed = len(d.created), len(d.destroyed)
    thread = threading.Thread(target=lambda: d.call(d.tensor([3, 8]), d.tensor([40, 8])))
    thread.start()
    thread.join()
    event = threading.Event()
    for _ in range(100):  # join() returns before the thread is quite gone
        if len(d.destroyed) > destroyed:
            break
        event.wait(0.02)
    assert len(d.created) == created + 1 and d.destroyed[destroyed:] == [0x1000 + created + 1]


CHECKS = {check.__name__: check for check in (
    results_are_tensors_of_the_device, calls_follow_the_current_stream, every_device_has_a_context_of_its_own,
    tensors_of_two_devices_are_refused, a_call_without_memory_is_tried_once_more,
    results_that_torch_cannot_make_are_an_error, rules_come_in_their_order, a_child_of_fork_makes_contexts_of_its_own,
    a_thread_that_ends_destroys_its_contexts)}

if __name__ == "__main__":
    if not os.environ.get("FS_INSTALLED"):
        sys.path.insert(0, os.path.join(FOLDER, "..", "..", "python"))
    device = Device()
    for name, check in CHECKS.items():
        check(device)
        print(name)
