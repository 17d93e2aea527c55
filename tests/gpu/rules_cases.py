"""A case of tests/py/cases.py on the device and on the CPU, and where they differ.

The device has the same values at other addresses: rows with gaps, first elements off any alignment but their own, NaN
and ids that are no tokens around them. Its results lie between sentinels. Both draw from the same floats, so integers
must be equal.

FLASHSAMPLING_TEST_STANDIN=reference (or cpu) puts another backend in the device's place, with tensors of the CPU: so
the tests themselves are tested where there is no GPU.
"""
import os
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")

import flashsampling as fs

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "py"))
from cases import HOW, RANK_DEPTH, SENTINEL, Case, written

STANDIN = os.environ.get("FLASHSAMPLING_TEST_STANDIN")
if STANDIN:
    DEVICE, TESTED, CPU = "cpu", fs.Context(STANDIN), fs.Context("cpu")
else:
    from draws import CPU, GPU as TESTED  # skips where there is no device

    DEVICE = "cuda"

BAND = 61  # elements before and after each result; odd, so that results are aligned to their elements only
SLOT = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32, "seed": np.uint64,
        "substream": np.uint32, "repetition": np.float32, "frequency": np.float32, "presence": np.float32}
SIGNED = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}  # torch hardly knows the unsigned ones
OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, frequency=0.0, presence=0.0)
JUNK = {"f": np.nan, "i": 10**9, "h": 0x7FC0}  # h: 16 bits, a NaN of bfloat16

# ------------------------------------------------------------------------------------------------ to the device ----


def placed(rng, array, gap=0):
    """A tensor of these values on the device, at any address and with `gap` elements after every row."""
    array = np.asarray(array)
    array = np.ascontiguousarray(array).view(SIGNED.get(array.dtype.name, array.dtype))
    bf16 = array.dtype == np.int16
    rows, columns = (1,) * (2 - array.ndim) + array.shape
    first = int(rng.integers(0, 8))
    flat = np.full(first + rows * (columns + gap) + 8, JUNK["h" if bf16 else array.dtype.kind], array.dtype)
    flat[first : first + rows * (columns + gap)].reshape(rows, columns + gap)[:, :columns] = array
    flat = torch.from_numpy(flat).to(DEVICE)
    flat = flat.view(torch.bfloat16) if bf16 else flat
    whole = flat.as_strided((rows, columns), (columns + gap, 1), first)
    return whole if array.ndim == 2 else whole[0]


def columns_of(lists, dtypes, before):
    """(offset, column, ...) of lists; entries that belong to no row stand before and behind them."""
    offset = np.cumsum([0] + [len(line) for line in lists], dtype=np.int64) + before
    entries = [entry if isinstance(entry, tuple) else (entry,) for line in lists for entry in line]
    junk = lambda dtype: JUNK[np.dtype(dtype).kind]
    return offset, *(np.array([junk(d)] * before + [e[i] for e in entries] + [junk(d)] * bool(before), d)
                     for i, d in enumerate(dtypes))


def index_pointer(tensor):
    """The binding looks at an index in host memory, and refuses bad ones that the library has a status for."""
    pointer = fs.Pointer(tensor.data_ptr(), tensor.shape, "i32", device=str(tensor.device))
    pointer.owner = tensor
    return pointer


def moved(case, seed=0):
    """Keywords of fs.Head, hidden states and keywords of fs.Batch, all of the device."""
    rng = np.random.default_rng(seed)
    gap = lambda: int(rng.integers(0, 9))
    head, rules = dict(case.head), dict(case.rules, slots=case.slots())
    for name in ("logits", "weights", "bias"):
        if head.get(name) is not None:
            head[name] = placed(rng, head[name], gap() if head[name].ndim == 2 else 0)
    hidden = None if case.hidden is None else placed(rng, case.hidden, gap())
    for name, dtype in SLOT.items():
        if np.ndim(rules.get(name, 0)):
            rules[name] = placed(rng, np.asarray(rules[name]).astype(dtype))
            if name == "substream":  # as int32 some are negative, which the host refuses
                rules[name] = rules[name].view(torch.uint32)
    for name, dtype in (("position", np.uint64), ("score_tokens", np.int32), ("slot", None), ("allow_index", np.int32)):
        if np.ndim(rules.get(name, 0)):
            rules[name] = placed(rng, np.asarray(rules[name], dtype))
    if "allow_index" in rules:
        rules["allow_index"] = index_pointer(rules["allow_index"])
    for name in ("allow", "seen", "counts"):
        if rules.get(name) is not None:
            rules[name] = placed(rng, rules[name], gap())
    for name, dtypes, before in (("edits", (np.int32, np.float32), gap() + 1), ("watch", (np.int32,), 0),
                                 ("count_list", (np.int32, np.int32), gap() + 1)):
        if rules.get(name) is not None:
            rules[name] = tuple(placed(rng, column) for column in columns_of(rules[name], dtypes, before))
    if rules.get("padded_edits") is not None:
        rules["padded_edits"] = tuple(placed(rng, column) for column in rules["padded_edits"])
    return head, hidden, rules


class Call:
    """A case whose arrays are on the device, with sentinels in and around its results."""

    def __init__(self, case, seed=0, context=None, **options):
        self.keywords, self.hidden, self.rules = moved(case, seed)
        self.context, self.head = context or TESTED, fs.Head(**self.keywords)
        self.batch = fs.Batch(self.head, self.hidden, **self.rules, **options)
        like = fs.Result(self.batch, case.outputs, top=case.top, logits_mode=case.logits_mode,
                         tokens=case.tokens).arrays()
        self.whole = {name: torch.full(((a.numel() + 2 * BAND) * a.element_size(),), SENTINEL, dtype=torch.uint8,
                                       device=DEVICE).view(a.dtype) for name, a in like.items()}
        inside = {name: self.whole[name][BAND : BAND + a.numel()].view(a.shape) for name, a in like.items()}
        self.out = fs.Result.into(self.batch, inside, logits_mode=case.logits_mode)

    def run(self):
        self.context.sample(self.head, self.batch, out=self.out, on_error="status")
        return self

    def taken(self):
        """Results by name, as numpy's arrays, after a look at what lies around them."""
        found = {}
        for name, whole in self.whole.items():
            whole = whole.cpu().numpy()
            around = np.concatenate([whole[:BAND], whole[-BAND:]]).view(np.uint8)
            assert (around == SENTINEL).all(), "%s: written outside its rows" % name
            found[name] = whole[BAND:-BAND].reshape(tuple(getattr(self.out, name).shape))
            assert written(found[name]), "%s: not every element was written" % name
        found["status"] = found["status"].view(np.uint32)
        return found


def on_device(case, seed=0, context=None):
    return Call(case, seed, context).run().taken()


def on_cpu(case):
    """The oracle's results by name; its ranks are exact whatever the case says."""
    rules = dict(case.rules, exact_rank=True, slots=case.slots())
    if rules.get("allow_index") is not None:
        rules["allow_index"] = index_pointer(torch.from_numpy(np.array(rules["allow_index"], np.int32)))
    head = fs.Head(**case.head)
    result = CPU.sample(head, fs.Batch(head, case.hidden, **rules), outputs=case.outputs, top=case.top,
                        logits_mode=case.logits_mode, tokens=case.tokens, on_error="status")
    return result.arrays()


# ---------------------------------------------------------------------------------------------------- what differs ----

EXACT = ("status", "tokens", "top_token", "max_logit", "logit", "top_logit", "watch_logit")
TOLERANCE = 2e-6  # relative or absolute, of scores; and of logits after a soft-cap, whose tanh is not the same
P_MOVES = 3e-7  # the header: top-p may move its last token where the mass is this near to p
MASS = 1e-6  # of log Z, times 1 + |largest logit|; so of logprobs


def rows_of(case, name, shape):
    """The row of each element of a result."""
    if name.startswith("watch"):
        return np.repeat(np.arange(case.rows()), [len(line) for line in case.rules["watch"]])
    return np.broadcast_to(np.arange(case.rows()).reshape(-1, *[1] * (len(shape) - 1)), shape)


def unequal(case, name, got, want, largest):
    """Which elements differ by more than they may. largest: |l| per element."""
    if name in EXACT and not case.head.get("softcap") or got.dtype.kind in "iu":
        return ~((got == want) | (got != got) & (want != want))
    bound = TOLERANCE * np.maximum(1.0, np.abs(np.where(np.isfinite(want), want, 0)))
    if name == "log_z" or name.endswith("logprob"):
        bound = bound + MASS * (1.0 + np.where(np.isfinite(largest), largest, 0))
    with np.errstate(invalid="ignore"):
        right = (got == want) | (np.abs(got.astype(float) - want) <= bound) | np.isnan(got) & np.isnan(want)
        return ~right | (got > 0 if name.endswith("logprob") else False)


def wrong_ranks(case, got, want, bound):
    """As assert_ranks of cases.py has it: a row with the bit may have lower bounds, beyond what every list knows."""
    lower = bound[:, None] & (got > RANK_DEPTH) & (got < want) & (not case.rules.get("exact_rank"))
    return (got != want) & ~lower


def near_ties(case, got, want):
    """Rows of FS_NOISE_FAST, whose logarithms differ in their last bits, that drew another token of the same score."""
    groups = case.rules.get("mode", "sample").startswith("group")
    if case.rules.get("noise") != "fast" or "noisy_logit" not in want or groups:
        return np.zeros(case.rows(), bool)
    differ = got["tokens"] != want["tokens"]
    with np.errstate(invalid="ignore"):
        near = np.abs(got["noisy_logit"] - want["noisy_logit"]) <= 4e-6 * np.maximum(1.0, np.abs(want["noisy_logit"]))
    return differ.any(1) & (near | ~differ).all(1)


def wrong_elements(case, got, want):
    """For each result that differs, by name, which of its elements do."""
    bound, found = got["status"] & np.uint32(fs.Row.RANK_BOUND) != 0, {}
    for name in want:
        a, b = got[name], np.asarray(want[name])
        if name == "status":
            a, b = a & ~HOW, b & ~HOW
        row = rows_of(case, name, a.shape)
        largest = np.abs(want["max_logit"])[row] if "max_logit" in want else np.abs(b)
        wrong = wrong_ranks(case, a, b, bound) if name == "rank" else unequal(case, name, a, b, largest)
        if STANDIN == "reference":  # which has log Z however far from 0
            wrong &= (want["status"] & np.uint32(fs.Row.FAR) == 0)[row]
        if wrong.any():
            found[name] = wrong
    return found


def wrong_rows(case, got, want):
    rows = np.zeros(case.rows(), bool)
    for name, wrong in wrong_elements(case, got, want).items():
        rows[rows_of(case, name, wrong.shape)[wrong]] = True
    return rows


def excused(case, got, want):
    """Rows that differ as the header lets them: near ties of fast noise, and those that are right for a p which is off
    by what the mass may be off by."""
    rows = near_ties(case, got, want)
    top_p = case.rules.get("top_p")
    for step in (-P_MOVES, P_MOVES) if top_p is not None else ():
        other = case.copy()
        other.rules["top_p"] = np.broadcast_to(np.maximum(np.asarray(top_p, np.float32) + np.float32(step), 0),
                                               case.slots())
        rows |= ~wrong_rows(case, got, on_cpu(other))
    return rows


def differences(case, got, want):
    """Texts, a line for each result that differs, the most telling first; and how many rows are excused."""
    found = wrong_elements(case, got, want)
    if not found:
        return [], 0
    forgiven, texts = excused(case, got, want), []
    rows = int((wrong_rows(case, got, want) & forgiven).sum())
    for name in sorted(found, key=lambda n: EXACT.index(n) if n in EXACT else len(EXACT)):
        row = rows_of(case, name, found[name].shape)
        wrong = found[name] & ~forgiven[row]
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            texts.append("%s%s: got %s, want %s (%d of %d differ, rows %s) | %s" % (
                name, list(map(int, at)), got[name][at], want[name][at], wrong.sum(), wrong.size,
                np.unique(row[wrong])[:8].tolist(), row_text(case, int(row[at]), got, want)))
    return texts, rows


# -------------------------------------------------------------------------------------------------------- reports ----


def row_text(case, b, got, want):
    """What a row's rules are."""
    rules = case.rules
    slot = b if rules.get("slot") is None else int(rules["slot"][b])
    words = ["row %d" % b, "slot %d" % slot, "status %#x/%#x" % (got["status"][b], want["status"][b])]
    if 0 <= slot < case.slots():
        for name in SLOT:
            if name in rules and name not in ("seed", "substream"):
                value = rules[name] if np.ndim(rules[name]) == 0 else np.asarray(rules[name])[slot]
                words += ["%s %.9g" % (name, value)] * bool(value != OFF[name])
        if rules.get("padded_edits") is not None:
            words.append("edit_count %d" % rules["padded_edits"][0][slot])
    if rules.get("allow") is not None:
        words.append("mask %d" % (b if rules.get("allow_index") is None else rules["allow_index"][b]))
    if rules.get("edits"):
        words.append("edits %d" % len(rules["edits"][b]))
    words.append("token %s/%s" % (got["tokens"][b, 0], want["tokens"][b, 0]))
    return " ".join(words)


def case_text(case):
    """What a case asks for, in a line."""
    head, rules = case.head, case.rules
    kind = "weights" if head.get("weights") is not None else "logits"
    shape = head[kind].shape
    words = ["%s %s %s" % (kind, head.get("dtype", head[kind].dtype), list(shape)), "B %d" % case.rows()]
    if kind == "weights":
        words.append("H %s" % case.hidden.dtype)
    words += ["%s %s" % item for item in head.items() if np.ndim(item[1]) == 0 and item[1] and item[0] != "dtype"]
    words += ["bias"] * (head.get("bias") is not None)
    words += ["%s, %s, n %d, top %d" % (rules.get("mode", "sample"), case.logits_mode, rules.get("samples", 1),
                                        case.top)]
    skip = ("mode", "samples", "seed", "position", "slots", "fallback_token", "exact_rank", "substream")
    for name, value in rules.items():
        if name not in skip and value is not None and value is not False:
            words.append("%s %s" % (name, value) if isinstance(value, (int, float, str, dict)) and value is not True
                         else name)
    return ", ".join(words)


def check(cases, context=None):
    """Runs every (name, case) on both sides, and fails with the first that differs, and the names of the others."""
    failed, near, rows = [], 0, 0
    for i, (name, case) in enumerate(cases):
        try:
            found, excuses = differences(case, on_device(case, i, context), on_cpu(case))
            near, rows = near + excuses, rows + case.rows()
        except (fs.Error, AssertionError) as error:
            found = [str(error).split("\n")[0]]
        except RuntimeError as error:  # the device has failed: nothing runs any more
            pytest.fail("%s: %s\n%.600s" % (name, case_text(case), error), pytrace=False)
        if found:
            failed.append((name, case, found))
    if failed:
        name, case, found = failed[0]
        text = "%d of %d cases differ. First, %s: %s\n" % (len(failed), i + 1, name, case_text(case))
        text += "\n".join("  " + line[:400] for line in found[:3])
        text += "".join("\nalso %s: %s" % (n, f[0].split(" | ")[0][:110]) for n, _, f in failed[1:9])
        pytest.fail(text, pytrace=False)
    if near:
        print("%d of %d rows have a near tie, or a mass at p" % (near, rows))
    assert near <= 1 + rows / 50, "%d of %d rows excused for a near tie or a mass at p: too many" % (near, rows)
