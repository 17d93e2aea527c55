"""A row's results are a function of the row alone, bit for bit on the device: in a batch of any size, in another place,
slot and neighbourhood, with other results asked for, in a graph that is replayed while its arrays change."""
import numpy as np
import pytest

import rules_cases
from rules_cases import DEVICE, HOW, SENTINEL, Call, Case, differences, fs, on_cpu, on_device, rows_of, torch
from rules_inputs import gaussian, language, mixed_case
from cases import random_case, stored_as

ROWS, V = 33, 3001
BY_ROW = ("slot", "position", "allow_index", "score_tokens")
SOURCES = ["stored f32", "stored bf16", "weights bf16", "weights f32"]


def case_of(source, seed, rows=ROWS, **asked):
    """Rows of every kind. Weights are off any grid, where another order of additions would show."""
    kind, dtype = source.split()
    rng = np.random.default_rng([31, seed, rows])
    if kind == "stored":
        head, hidden = dict(logits=stored_as(language(rng, rows, V), dtype), dtype=dtype), None
    else:
        head = dict(weights=stored_as(gaussian(seed, V, 72, 0.5), dtype), dtype=dtype)
        hidden = stored_as(gaussian(seed + 1, rows, 72, 0.8), dtype)
    return mixed_case(rng, head, hidden, rows, V, **{**dict(exact_rank=True), **asked})


def chosen(case, rows):
    """The case of these rows alone, in this order; some may come twice."""
    other = case.copy()
    if other.hidden is None:
        other.head["logits"] = other.head["logits"][rows]
    else:
        other.hidden = other.hidden[rows]
    for name in BY_ROW:
        if np.ndim(other.rules.get(name, 0)):
            other.rules[name] = other.rules[name][rows]
    for name in ("edits", "watch"):
        if name in other.rules:
            other.rules[name] = [other.rules[name][b] for b in rows]
    other.rules["slots"] = case.slots()
    return other


def in_other_slots(case, more, seed):
    """Every slot has another number, of `more` in all."""
    other, slots = case.copy(), case.slots()
    place = np.random.default_rng(seed).permutation(more)[:slots]
    for name, value in case.rules.items():
        if name in rules_cases.SLOT or name in ("seen", "counts"):
            wide = np.zeros((more,) + np.shape(value)[1:], np.asarray(value).dtype)
            wide[place] = value
            other.rules[name] = wide
    if "count_list" in case.rules:
        lists = [[] for _ in range(more)]
        for s, line in enumerate(case.rules["count_list"]):
            lists[place[s]] = line
        other.rules["count_list"] = lists
    other.rules.update(slot=place[case.rules["slot"]], slots=more)
    return other


def row_bits(case, got, b):
    """The bytes of every result of a row."""
    found = {}
    for name, array in got.items():
        own = array[b] if not name.startswith("watch") else array[rows_of(case, name, array.shape) == b]
        found[name] = (own & ~HOW if name == "status" else own).tobytes()
    return found


def same_rows(case, got, rows, other, other_got):
    """Row i of the other case is row rows[i] of this one."""
    for i, b in enumerate(rows):
        one, two = row_bits(case, got, b), row_bits(other, other_got, i)
        differ = [name for name in two if one[name] != two[name]]
        if differ:
            pytest.fail("row %d is row %d of a batch of %d: other bits in %s" % (b, i, len(rows), ", ".join(differ)),
                        pytrace=False)


@pytest.mark.parametrize("counts", ["counts", "count_list"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_row_in_batches_of_every_size(source, counts):
    case = case_of(source, 1, counts=counts, logits_mode="cut")
    got = on_device(case)
    rng = np.random.default_rng(2)
    choices = [[b] for b in range(0, ROWS, 3)] + [list(range(ROWS))[::-1]]
    choices += [rng.integers(0, ROWS, n).tolist() for n in (2, 3, 8, 16, 17, 64, 70, 130, 300)]
    for seed, rows in enumerate(choices):
        other = chosen(case, rows)
        same_rows(case, got, rows, other, on_device(other, seed))


@pytest.mark.parametrize("counts", ["counts", "count_list"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_row_in_other_slots(source, counts):
    case = case_of(source, 3, counts=counts)
    got = on_device(case)
    for seed, more in ((1, case.slots()), (2, 100)):
        other = in_other_slots(case, more, seed)
        same_rows(case, got, list(range(ROWS)), other, on_device(other, seed))


@pytest.mark.parametrize("source", SOURCES)
def test_a_token_whatever_else_is_asked_for(source):
    case = case_of(source, 4)
    got = on_device(case)
    for outputs in ((), ("noisy_logit",), ("logprob",), ("rank",), ("max_logit",), ("log_z", "noisy_logit")):
        for top in (0, 5):
            for logits in ("raw", "processed", "cut"):
                other = case.copy()
                other.outputs, other.top, other.logits_mode = outputs, top, logits
                if not top:
                    del other.rules["watch"]
                found = on_device(other)
                for name in {"tokens", "status", "noisy_logit"} & set(found):
                    wrong = (found[name] & ~HOW != got[name] & ~HOW) if name == "status" else (
                        found[name].view(np.uint32) != got[name].view(np.uint32))
                    assert not wrong.any(), "%s differ in rows %s with %s, top %d, %s" % (
                        name, np.argwhere(wrong)[:5].tolist(), outputs, top, logits)


@pytest.mark.parametrize("source", SOURCES)
def test_calls_leave_nothing_behind(source):
    case = case_of(source, 5)
    got = on_device(case)
    for seed in range(12):
        on_device(random_case(np.random.default_rng(seed), kind="logits" if seed % 2 else "weights"))
        same_rows(case, got, list(range(ROWS)), case, on_device(case, seed))


# -------------------------------------------------------------------------------------------------------- graphs ----


def captured(call):
    """A function that runs the call again, with what its arrays hold then."""
    call.run()  # loads the kernels, which a capture may not
    if DEVICE == "cpu":
        return call.run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call.run()
    return graph.replay


def tensors_of(call):
    """Every array of a call by name; those of lists are as long as the call's own."""
    found = {**call.keywords, **call.rules, "hidden": call.hidden}
    found["allow_index"] = found["allow_index"].owner
    for name in ("edits", "count_list", "watch", "padded_edits"):
        for i, column in enumerate(found.pop(name, ())):
            found["%s %d" % (name, i)] = column
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def overwrite(call, other):
    """Gives a call the values of another one of its shape. Its lists may be shorter."""
    there, here = tensors_of(other), tensors_of(call)
    assert there.keys() == here.keys()
    for name, values in there.items():
        place = here[name] if values.dim() > 1 else here[name][: len(values)]
        place.copy_(values)
    for whole in call.whole.values():
        whole.view(torch.uint8).fill_(SENTINEL)


def by_slot(case):
    """Edits in lines of equal length, by slot."""
    lists = [[] for _ in range(case.slots())]
    for b, line in enumerate(case.rules.pop("edits")):
        lists[case.rules["slot"][b]] = line
    token, bias = np.full((len(lists), 100), 10**9, np.int32), np.full((len(lists), 100), np.nan, np.float32)
    for s, line in enumerate(lists):
        for i, entry in enumerate(line):
            token[s, i], bias[s, i] = entry
    case.rules["padded_edits"] = np.array(list(map(len, lists)), np.int32), token, bias
    return case


@pytest.mark.parametrize("lists", ["offsets", "padded"])
@pytest.mark.parametrize("source", ["stored f32", "weights bf16"])
def test_replays_see_what_their_arrays_hold(source, lists):
    """Logits or hidden states, every rule's value, masks, edits, counts, slots and positions change between replays,
    and come back."""
    counts = "count_list" if lists == "offsets" else "counts"
    cases = [case_of(source, seed, counts=counts, logits_mode="processed") for seed in range(10, 15)]
    if lists == "padded":
        cases = [by_slot(case) for case in cases]
    else:
        cases.sort(key=lambda case: -sum(map(len, case.rules["edits"])))
        (spare, _) = set(range(cases[0].slots())) - set(cases[0].rules["slot"].tolist())
        cases[0].rules["count_list"][spare] = [(0, 1)] * 2000  # room for the others'
    cases[3].rules["slot"] = cases[3].rules["slot"].copy()
    cases[3].rules["slot"][[0, 5]] = -1, 10**6
    alone = [on_device(case) for case in cases]
    call = Call(cases[0], in_place=True)
    replay = captured(call)
    for i in (1, 0, 3, 2, 4, 0, 1):
        overwrite(call, Call(cases[i]))
        replay()
        got = call.taken()
        same_rows(cases[i], alone[i], list(range(ROWS)), cases[i], got)
        if source.startswith("stored"):
            found, _ = differences(cases[i], got, on_cpu(cases[i]))
            assert not found, "replay of %d: %s" % (i, found[0])


def test_stored_replays_of_one_rule_that_comes_and_goes():
    """From no rule at all to every one, in the launches of one graph."""
    x, rows = gaussian(40, 4, V), 4
    off = dict(top_k=np.zeros(rows, int), top_p=np.ones(rows), min_p=np.zeros(rows), temperature=np.ones(rows),
               repetition=np.ones(rows), allow=fs.pack_bits(np.ones((rows, V), bool)),
               allow_index=np.full(rows, -1), seen=fs.pack_bits(np.zeros((rows, V), bool)))
    mask = fs.pack_bits(np.random.default_rng(1).random((rows, V)) < 0.1)
    steps = [{}, dict(top_k=[50, 0, 1, 2000]), dict(top_p=[0.9511, 1, 0.0, 0.5123]), dict(min_p=[0.0513, 0, 1, 0.3]),
             dict(allow=mask, allow_index=[0, 1, -1, 3]), dict(temperature=[0.0, 100.0, 0.001, -1.0]),
             dict(seen=mask, repetition=[1.3, 0.7, 1.0, 5.0]), {}]
    cases = [Case(dict(logits=x), logits_mode="cut", top=20, seed=np.arange(4), exact_rank=True,
                  **{**off, **{name: np.asarray(value) for name, value in step.items()}}) for step in steps]
    call = Call(cases[0], in_place=True)
    replay = captured(call)
    for step, case in zip(steps, cases):
        overwrite(call, Call(case))
        replay()
        found, _ = differences(case, call.taken(), on_cpu(case))
        assert not found, "%s: %s" % (", ".join(step) or "no rule", found[0])
