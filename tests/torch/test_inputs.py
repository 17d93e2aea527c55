"""Every kind of array that people have, by every way into the package: right tokens, or an error that names the
argument and says what to do. docs/reference/python.md has the same table."""
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashsampling as fs
import flashsampling.torch
from hostile import B, D, V, Named, best, tensors

H, W = tensors()
CONTEXT = fs.Context("cpu", threads=1)
warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors|Sparse CSR|the matrix subclass")


def apart(t, step=1):
    return torch.cat([t, t], 1)[:, ::step][:, :t.shape[1]]


def quantised(t):
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8)


def swapped(a):
    return a.astype(a.dtype.newbyteorder())


# Made of a float32 tensor: tensors, then numpy's arrays.
SERVED = {
    "float32": lambda t: t.clone(),
    "float16": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "rows apart": apart,
    "every other row": lambda t: torch.repeat_interleave(t, 2, 0)[::2],
    "requires grad": lambda t: t.clone().requires_grad_(),
    "of a graph": lambda t: t.clone().requires_grad_() * 1,
    "a parameter": lambda t: torch.nn.Parameter(t.clone()),
    "a subclass": lambda t: t.clone().as_subclass(Named),
    "of inference mode": lambda t: torch.inference_mode()(t.clone)(),
    "a real part": lambda t: torch.complex(t, t).real.contiguous(),
}
SERVED_ARRAYS = {
    "float32": lambda a: a.copy(),
    "float16": lambda a: a.astype("f2"),
    "read-only": lambda a: np.frombuffer(a.tobytes(), "f4").reshape(a.shape),
    "rows apart": lambda a: np.hstack([a, a])[:, :a.shape[1]],
    "a matrix": lambda a: np.matrix(a),
    "a record array": lambda a: a.view(np.recarray),
}
# What the error says; what an operator of torch's, which refuses some kinds itself, says.
REFUSED = {
    "float64": (lambda t: t.double(), r"tensor of type float64, .*float\(\)", "float64"),
    "int64": (lambda t: t.long(), "of type int64, expected float32", "int64"),
    "int32": (lambda t: t.int(), "of type int32, expected float32", "int32"),
    "bool": (lambda t: t > 0, "tensor of type bool", "bool"),
    "complex64": (lambda t: torch.complex(t, t), "tensor of type complex64", "complex64"),
    "conjugated": (lambda t: torch.complex(t, t).conj(), "tensor of type complex64", "complex64"),
    "float8": (lambda t: t.to(torch.float8_e4m3fn), "tensor of type float8_e4m3fn", "float8"),
    "transposed": (lambda t: t.T.contiguous().T, r"apart, expected 4: transposed\? .*contiguous\(\)", "strides"),
    "every other column": (lambda t: apart(torch.repeat_interleave(t, 2, 1), 2), r"8 bytes apart.*contiguous\(\)",
                           "strides"),
    "one row expanded": (lambda t: t[:1].expand(t.shape), r"0 bytes apart.*expanded.*contiguous\(\)", "strides"),
    "nested": (lambda t: torch.nested.nested_tensor(list(t)), r"nested tensor; to_padded_tensor\(\)", "Nested|nested"),
    "jagged": (lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged),
               r"nested tensor; to_padded_tensor\(\)", "NestedTensor|jagged|nested|flashsampling"),
    "sparse": (lambda t: t.to_sparse(), r"layout sparse_coo; to_dense\(\)", "Sparse"),
    "sparse rows": (lambda t: t.to_sparse_csr(), r"layout sparse_csr; to_dense\(\)", "Sparse"),
    "mkldnn": (lambda t: t.to_mkldnn(), r"layout mkldnn; to_dense\(\)", "Mkldnn"),
    "quantised": (quantised, r"quantised tensor, quint8; dequantize\(\)", "Quantized"),
    "meta": (lambda t: t.to("meta"), "a tensor of device meta", None),
    "negated": (lambda t: torch._neg_view(t), r"a view that negates .*resolve_neg\(\)", None),
}
REFUSED_ARRAYS = {
    "float64": (lambda a: a.astype("f8"), r"array of type float64, .*astype\(\"float32\"\)"),
    "int64": (lambda a: a.astype("i8"), "of type int64, expected float32"),
    "bool": (lambda a: a > 0, "array of type bool"),
    "object": (lambda a: a.astype(object), "array of type object"),
    "text": (lambda a: a.astype(str), "array of type str"),
    "uint16": (lambda a: fs.to_bf16(a), r"array of type uint16, .*uint16 with dtype=\"bf16\""),
    "bytes swapped": (swapped, r"array of type float32 with bytes in the other order.*astype\(\"float32\"\)"),
    "masked": (lambda a: np.ma.masked_array(a), r"a masked array; filled\(value\)"),
    "a list": (lambda a: a.tolist(), "a list, as an array of type float64"),
    "in Fortran's order": (np.asfortranarray, r"transposed\? .*ascontiguousarray\(\)"),
    "rows reversed": (lambda a: a[::-1], r"reversed\? .*ascontiguousarray\(\)"),
    "one row expanded": (lambda a: np.broadcast_to(a[:1], a.shape), r"0 bytes apart.*expanded"),
}


def by_sampler(hidden, weight):
    dtype = {"float16": "f16", "bfloat16": "bf16"}.get(str(getattr(hidden, "dtype", "")).split(".")[-1], "f32")
    return fs.Sampler(fs.Head(weight), B, hidden_dtype=dtype, temperature=0)(hidden).tokens


# Ways in: (hidden, weight) -> greedy tokens. Those of flashsampling.torch take tensors alone.
WAYS = {
    "sample": lambda h, w: fs.sample(h, w, temperature=0).tokens,
    "sample again": lambda h, w: [fs.sample(h, w, temperature=0).tokens for _ in range(3)][-1],
    "Context.sample": lambda h, w: CONTEXT.sample(fs.Head(w), h, temperature=0).tokens[:, 0],
    "Sampler": by_sampler,
    "Batch": lambda h, w: CONTEXT.sample(fs.Head(w), fs.Batch(fs.Head(w), h, temperature=0)).tokens[:, 0],
}
OPERATORS = {
    "torch.sample": lambda h, w: flashsampling.torch.sample(h, w, temperature=0),
    "torch.ops": lambda h, w: torch.ops.flashsampling.sample(h, w, temperature_all=0.0),
}


def check(draw, make, like):
    """Both arguments lie so, one by one and together."""
    hidden, weight = like
    for h, w in ((make(hidden), weight), (hidden, make(weight)), (make(hidden), make(weight))):
        found = torch.as_tensor(np.asarray(draw(h, w)))
        assert found.tolist() == best(torch.as_tensor(np.asarray(h.detach().float() if hasattr(h, "detach") else h)),
                                      torch.as_tensor(np.asarray(w.detach().float() if hasattr(w, "detach") else w)))


@pytest.mark.parametrize("way", [*WAYS, *OPERATORS])
@pytest.mark.parametrize("kind", SERVED)
def test_tensors_that_are_served(kind, way):
    draw = {**WAYS, **OPERATORS}[way]
    check(draw, SERVED[kind], (H, W))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SERVED_ARRAYS)
def test_arrays_that_are_served(kind, way):
    check(WAYS[way], SERVED_ARRAYS[kind], (H.numpy(), W.numpy()))


@pytest.mark.parametrize("way", WAYS)
def test_mapped_files_are_served(way, tmp_path):
    W.numpy().tofile(tmp_path / "weights")
    weight = np.memmap(tmp_path / "weights", "f4", "r", shape=(V, D))
    assert np.asarray(WAYS[way](H.numpy(), weight)).tolist() == best(H, W)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_that_are_refused(kind, way):
    make, text, _ = REFUSED[kind]
    good = WAYS[way](H, W).tolist()
    with pytest.raises((TypeError, ValueError), match="hidden: .*" + text):
        WAYS[way](make(H), W)
    with pytest.raises((TypeError, ValueError), match="weights: .*" + text):
        WAYS[way](H, make(W))
    assert WAYS[way](H, W).tolist() == good


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", REFUSED_ARRAYS)
def test_arrays_that_are_refused(kind, way):
    make, text = REFUSED_ARRAYS[kind]
    hidden, weight = H.numpy(), W.numpy()
    if kind != "uint16":  # hidden states are taken for the bits of bfloat16
        with pytest.raises((TypeError, ValueError), match="hidden: .*" + text) as found:
            WAYS[way](make(hidden), weight)
        assert "<" not in str(found.value) and "|" not in str(found.value)
    with pytest.raises((TypeError, ValueError), match="weights: .*" + text):
        WAYS[way](hidden, make(weight))


@pytest.mark.parametrize("way", OPERATORS)
@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_that_operators_refuse(kind, way):
    make, _, text = REFUSED[kind]
    draw = OPERATORS[way]
    if kind == "negated":  # torch makes a tensor of it before an operator sees it
        assert draw(make(H), W).tolist() == best(-H, W)
    elif kind == "meta":  # a fake kernel's answer, which tracing needs
        assert draw(make(H), make(W)).device.type == "meta"
    else:
        errors = (RuntimeError, TypeError, ValueError, NotImplementedError)
        hidden_text = weight_text = text
        if way == "torch.sample":  # a function in Python, which says what fs.sample does
            errors, hidden_text, weight_text = (TypeError, ValueError), *("%s: .*%s" % (name, REFUSED[kind][1])
                                                                          for name in ("hidden", "weight"))
        with pytest.raises(errors, match=hidden_text):
            draw(make(H), W)
        with pytest.raises(errors, match=weight_text):
            draw(H, make(W))


@pytest.mark.parametrize("kind", [*SERVED, *REFUSED])
def test_stored_logits(kind):
    logits = H @ W.T
    make, text = (SERVED[kind], None) if kind in SERVED else REFUSED[kind][:2]
    ways = {"sample_logits": lambda x: fs.sample_logits(x, temperature=0).tokens,
            "sample_logits again": lambda x: [fs.sample_logits(x, temperature=0).tokens for _ in range(3)][-1],
            "Head": lambda x: CONTEXT.sample(fs.Head(logits=x), temperature=0).tokens[:, 0],
            "Sampler": lambda x: fs.Sampler(fs.Head(logits=logits), B, temperature=0)(x).tokens}
    for way, draw in ways.items():
        if text is None and not (way == "Sampler" and kind in ("float16", "bfloat16")):
            assert draw(make(logits)).tolist() == make(logits).float().argmax(1).tolist()
        elif text is not None:
            with pytest.raises((TypeError, ValueError), match="logits: .*" + text):
                draw(make(logits))


# --------------------------------------------------------------------------------------------------------- rules ----

VALUES = torch.tensor([0.5, 1.0, 2.0, 1.0])
NUMBERS = {  # made of a float32 tensor of numbers that float16 has too
    "float32": lambda t: t, "float64": lambda t: t.double(), "float16": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(), "every other": lambda t: torch.repeat_interleave(t, 2)[::2],
    "requires grad": lambda t: t.clone().requires_grad_(), "of one value": lambda t: t[:1].expand(B),
    "negated": lambda t: torch._neg_view(-t),
    "numpy float32": lambda t: t.numpy(), "numpy float64": lambda t: t.double().numpy(),
    "numpy float16": lambda t: t.half().numpy(), "bytes swapped": lambda t: swapped(t.numpy()),
    "reversed": lambda t: t.flip(0).numpy()[::-1], "object": lambda t: t.numpy().astype(object),
    "a list": lambda t: t.tolist(), "a tuple": lambda t: tuple(t.tolist()),
    "numpy scalars": lambda t: [np.float64(x) for x in t.tolist()],
}
INTEGERS = {
    "int32": lambda t: t.int(), "int64": lambda t: t.long(), "int16": lambda t: t.short(), "int8": lambda t: t.char(),
    "uint8": lambda t: t.byte(), "float32": lambda t: t.float(), "float64": lambda t: t.double(),
    "numpy int32": lambda t: t.int().numpy(), "numpy int64": lambda t: t.long().numpy(),
    "numpy uint32": lambda t: t.numpy().astype("u4"), "numpy uint64": lambda t: t.numpy().astype("u8"),
    "numpy float64": lambda t: t.double().numpy(), "bytes swapped": lambda t: swapped(t.long().numpy()),
    "a list": lambda t: t.tolist(), "numpy scalars": lambda t: [np.int64(x) for x in t.tolist()],
}


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def both(rules, plain):
    """sample, and flashsampling.torch.sample where all rules are tensors, draw with these rules as with plain ones."""
    fixed = {"seed": 5, "position": 3}
    quick = [fs.sample(H, W, **{**fixed, **rules}).tokens.tolist() for _ in range(2)]
    whole = fs.sample(H, W, **{**fixed, **plain}).tokens.tolist()
    assert quick == [whole] * 2
    if all(is_tensor(value) for value in rules.values()):
        assert flashsampling.torch.sample(H, W, **{**fixed, **rules}).tolist() == whole


@pytest.mark.parametrize("kind", NUMBERS)
def test_rules_that_are_real(kind):
    values = VALUES if kind != "of one value" else torch.full((B,), 0.5)
    for name, wanted in (("temperature", values), ("top_p", values / 2), ("min_p", values / 16)):
        if name == "temperature" or kind not in ("requires grad",):
            both({name: NUMBERS[kind](wanted)}, {name: wanted.tolist()})


@pytest.mark.parametrize("kind", INTEGERS)
def test_rules_that_are_integers(kind):
    values = torch.tensor([3, 1, 5, 2])
    for name in ("top_k", "seed", "position"):
        value = INTEGERS[kind](values)
        if name == "seed" and "float" in str(getattr(value, "dtype", "")):
            with pytest.raises(TypeError, match="seed: array of type float.*, expected integers"):
                fs.sample(H, W, seed=value)
        elif is_tensor(value) and value.is_floating_point():
            assert fs.sample(H, W, **{name: value}).ok
            with pytest.raises(TypeError, match=r"%s: tensor of type float.*, expected integers.*long\(\)" % name):
                flashsampling.torch.sample(H, W, **{name: value})  # an operator does not look at values
        else:
            both({name: value}, {name: values.tolist()})


@pytest.mark.parametrize("make", [lambda x: x, np.float64, np.float32, np.array, torch.tensor,
                                  lambda x: torch.tensor(x, dtype=torch.float64)], ids=range(6))
def test_rules_that_are_one_number(make):
    both({"temperature": make(0.5), "top_p": make(0.75)}, {"temperature": 0.5, "top_p": 0.75})


@pytest.mark.parametrize("make", [lambda x: x, np.int64, np.uint8, np.array, torch.tensor, np.float64], ids=range(6))
def test_rules_that_are_one_integer(make):
    both({"top_k": make(4), "position": make(3)}, {"top_k": 4, "position": 3})
    if make is torch.tensor:  # operators do not look at values, and a seed for all rows is spread
        assert fs.sample(H, W, seed=make(9)).tokens.tolist() == fs.sample(H, W, seed=9).tokens.tolist()
        with pytest.raises(RuntimeError, match=r"seed: int64\[\] on cpu.*; expected int64 or uint64\[4\]"):
            flashsampling.torch.sample(H, W, seed=make(9))
    elif make is not np.float64:
        both({"seed": make(9)}, {"seed": 9})


@pytest.mark.parametrize("rules, text", [
    (dict(top_k=torch.tensor([1, 2, 2**31, 4])), "top_k: 2147483648, expected an integer from -2147483648"),
    (dict(top_k=torch.tensor([1, 2, 2.5, 4])), "top_k: 2.5, expected an integer"),
    (dict(seed=torch.tensor([1, 2, -3, 4])), "seed: -3, expected an integer from 0"),
    (dict(seed=np.array([1, 2, -3, 4])), "seed: -3, expected an integer from 0"),
    (dict(position=[0, 1, 2**64, 3]), "position: 18446744073709551616, expected an integer from 0"),
    (dict(top_k=np.float64(np.nan)), "top_k: nan, expected an integer"),
    (dict(temperature=torch.complex(VALUES, VALUES)), "temperature: array of type complex64, expected real numbers"),
    (dict(temperature=np.array(["a"] * B)), "temperature: could not convert"),
    (dict(temperature=VALUES.to_sparse()), r"temperature: a tensor of layout sparse_coo; to_dense\(\)"),
    (dict(temperature=quantised(VALUES)), r"temperature: a quantised tensor, quint8; dequantize\(\)"),
    (dict(temperature=np.ma.masked_array(VALUES.numpy(), [0, 1, 0, 0])), r"temperature: a masked array; filled"),
    (dict(temperature=VALUES.to("meta")), "temperature: a tensor of device meta"),
    (dict(seed=np.random.default_rng(1)), "seed: a Generator, expected integers; generator= takes it"),
    (dict(seed=torch.Generator()), "seed: a Generator, expected integers; generator= takes it"),
])
def test_values_that_do_not_fit_are_named(rules, text):
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=text):
            fs.sample(H, W, **rules)


@pytest.mark.parametrize("rules, text", [
    (dict(top_k=5.5), "top_k: 5.5, expected an integer from -2147483648"),
    (dict(top_k="5"), "top_k: '5', expected an integer"),
    (dict(position=1.5), "position: 1.5, expected an integer"),
    (dict(temperature="0.7"), "temperature: '0.7', expected a number"),
    (dict(top_p=[0.9] * B), r"top_p: \[0.9.*expected a number"),
    (dict(position=torch.ones(B)), "position: tensor of type float32, expected integers"),
])
def test_values_that_an_operator_cannot_take_are_named(rules, text):
    with pytest.raises((TypeError, ValueError), match=text):
        flashsampling.torch.sample(H, W, **rules)
    with pytest.raises((TypeError, ValueError), match=text):
        flashsampling.torch.sample_logits(H @ W.T, **rules)


def test_functions_of_tensors_refuse_arrays():
    with pytest.raises(TypeError, match="hidden: a ndarray, expected a tensor; flashsampling.sample takes arrays"):
        flashsampling.torch.sample(H.numpy(), W)
    with pytest.raises(TypeError, match="logits: a list, expected a tensor"):
        flashsampling.torch.sample_logits((H @ W.T).tolist())


# --------------------------------------------------------------------------------------------------------- masks ----

FLAGS = torch.zeros(B, V, dtype=torch.bool)
FLAGS[torch.arange(B), torch.tensor([3, 31, 32, 499])] = True
WORDS = fs.pack_bits(FLAGS.numpy())
MASKS = {
    "uint32": WORDS, "int32": WORDS.view("i4"), "tensor of int32": torch.from_numpy(WORDS.view("i4")),
    "tensor of uint32": torch.from_numpy(WORDS), "bool": FLAGS.numpy(), "tensor of bool": FLAGS,
    "bool, wider": torch.cat([FLAGS, FLAGS], 1), "bool, transposed": FLAGS.T.contiguous().T,
    "read-only": np.frombuffer(WORDS.tobytes(), "u4").reshape(WORDS.shape), "packed tensor": fs.pack_bits(FLAGS),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind):
    wanted = [3, 31, 32, 499]
    mask = MASKS[kind]
    for _ in range(2):
        assert fs.sample(H, W, allow=mask).tokens.tolist() == wanted
    index = np.array([1, 1, 0, 3], "i4")
    assert fs.sample(H, W, allow=mask, allow_index=index).tokens.tolist() == [31, 31, 3, 499]
    assert fs.sample(H, W, allow=mask, allow_index=torch.from_numpy(index).long()).tokens.tolist() == [31, 31, 3, 499]
    seen = fs.sample(H, W, seen=mask, repetition=1.7, seed=3)
    assert seen.tokens.tolist() == fs.sample(H, W, seen=WORDS, repetition=1.7, seed=3).tokens.tolist()
    if is_tensor(mask):
        assert flashsampling.torch.sample(H, W, allow=mask).tolist() == wanted
        assert flashsampling.torch.sample(H, W, allow=mask, allow_index=torch.tensor([1, 1, 0, 3])).tolist() == [
            31, 31, 3, 499]
    if "bool" in kind:
        with pytest.raises(TypeError, match="allow: bool, which would be copied; flashsampling.pack_bits"):
            fs.Sampler(fs.Head(W), B, allow=mask)
    else:
        assert fs.Sampler(fs.Head(W), B, allow=mask)(H).tokens.tolist() == wanted


@pytest.mark.parametrize("mask, text", [
    (FLAGS[:, :-1], r"allow: bool of shape \[4, 499\], expected \[rows, 500\]"),
    (FLAGS[:2], r"allow: shape \[2, 16\], expected at least \[4, 16\]"),
    (FLAGS[0], r"allow: bool of shape \[500\], expected \[rows, 500\]"),
    (FLAGS.to_sparse(), "allow: a tensor of layout sparse_coo"),
    (FLAGS.byte(), "allow: of type uint8, expected words of 32 tokens"),
    (FLAGS.numpy().astype("i8"), "allow: of type int64, expected words of 32 tokens"),
    (FLAGS.tolist(), "allow: a list, as an array of type bool, expected uint32"),
])
def test_masks_that_do_not_fit_are_named(mask, text):
    with pytest.raises((TypeError, ValueError), match=text):
        fs.sample(H, W, allow=mask)
    if is_tensor(mask):
        with pytest.raises((TypeError, ValueError, RuntimeError), match="allow: "):
            flashsampling.torch.sample(H, W, allow=mask)


def test_packed_bits_of_tensors_are_those_of_arrays():
    for shape in ((V,), (3, 64), (2, 3, 33), (1, 1), (0, 40)):
        flags = torch.rand(shape) > 0.5
        packed = fs.pack_bits(flags)
        assert packed.dtype == torch.int32 and np.array_equal(packed.numpy().view("u4"), fs.pack_bits(flags.numpy()))


# ---------------------------------------------------------------------------------------------------- generators ----

SOURCES = {"torch": lambda: torch.Generator().manual_seed(7), "numpy": lambda: np.random.default_rng(7)}


@pytest.mark.parametrize("source", SOURCES)
def test_generators_give_the_seeds_of_calls(source):
    def seeds():
        generator = SOURCES[source]()
        if source == "numpy":
            return [int(generator.integers(0, 2**64, dtype="u8")) for _ in range(4)]
        return [int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator)) % 2**64 for _ in range(4)]

    logits, wanted = H @ W.T, seeds()
    for hidden, weight in ((H, W), (H.numpy(), W.numpy())):
        generator = SOURCES[source]()
        found = [fs.sample(hidden, weight, generator=generator).tokens.tolist() for _ in range(4)]
        assert found == [fs.sample(H, W, seed=seed).tokens.tolist() for seed in wanted]
    generator = SOURCES[source]()
    assert fs.sample_logits(logits, generator=generator).tokens.tolist() == fs.sample_logits(
        logits, seed=wanted[0]).tokens.tolist()
    sampler = fs.Sampler(fs.Head(W), B, generator=generator)
    assert sampler(H).tokens.tolist() == fs.sample(H, W, seed=wanted[1]).tokens.tolist()
    sampler.set(seed=None)
    assert sampler(H).tokens.tolist() == fs.sample(H, W, seed=wanted[2], position=1).tokens.tolist()
    sampler.set(temperature=0.5)  # no seed is taken for this
    sampler.set(seed=None)
    assert sampler(H).tokens.tolist() == fs.sample(H, W, seed=wanted[3], temperature=0.5, position=2).tokens.tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_generators_of_operators(source):
    for draw in (lambda g: flashsampling.torch.sample(H, W, temperature=2.0, generator=g),
                 lambda g: flashsampling.torch.sample_logits(H @ W.T, temperature=9.0, generator=g)):
        first, again = SOURCES[source](), SOURCES[source]()
        tokens = [draw(first).tolist() for _ in range(5)]
        assert [draw(again).tolist() for _ in range(5)] == tokens and len({tuple(t) for t in tokens}) > 1


def test_a_generator_has_all_of_its_64_bits_used():
    for source in SOURCES.values():
        generator, every = source(), 0
        for _ in range(64):
            every |= fs._sample.fresh_seed(H, generator)
        assert every == 2**64 - 1


@pytest.mark.parametrize("draw", [
    lambda **rules: fs.sample(H, W, **rules), lambda **rules: fs.sample_logits(W, **rules),
    lambda **rules: fs.Sampler(fs.Head(W), B, **rules), lambda **rules: flashsampling.torch.sample(H, W, **rules),
    lambda **rules: flashsampling.torch.sample_logits(W, **rules),
], ids=["sample", "sample_logits", "Sampler", "torch.sample", "torch.sample_logits"])
def test_what_is_no_generator_is_refused(draw):
    for source in SOURCES.values():
        with pytest.raises(ValueError, match="generator: given beside seed"):
            draw(seed=3, generator=source())
        with pytest.raises(TypeError, match="seed: a Generator, expected integers; generator= takes it"):
            draw(seed=source())
    for wrong in (5, np.random.RandomState(1), np.random.Generator):
        with pytest.raises(TypeError, match=r"generator: a (int|RandomState|type), expected a torch.Generator or"):
            draw(generator=wrong)


# ------------------------------------------------------------------------------------- conversions on a device ----


def test_values_of_a_device_are_converted_without_a_look_at_them():
    from flashsampling._arrays import device_values

    wide = torch.tensor([3, -(2**40), 2**40, 2**31 - 1])
    assert device_values(wide, "i32").tolist() == [3, -(2**31), 2**31 - 1, 2**31 - 1]
    assert device_values(wide, "u64") is not None and device_values(wide, "u64").data_ptr() == wide.data_ptr()
    assert device_values(VALUES.double(), "f32").tolist() == VALUES.tolist()
    assert device_values(wide, "f32").dtype == torch.float32
    assert device_values(VALUES, "i32").dtype == torch.float32  # which is refused then
    assert device_values(torch.repeat_interleave(VALUES, 2)[::2], "f32").is_contiguous()


def test_what_is_converted_on_another_stream_is_refused():
    from flashsampling._arrays import Pointer
    from flashsampling._context import _refuse_converted

    pointer = Pointer(64, (4,), "f32")
    _refuse_converted([None, pointer])
    pointer.converted = "top_k"
    with pytest.raises(TypeError, match="top_k: was converted on torch's current stream, and the context has a stream"):
        _refuse_converted([None, pointer])


@pytest.mark.parametrize("kind", ["u1", "i8", "u8", "i2"])
@pytest.mark.parametrize("name", ["allow", "seen"])
def test_masks_of_other_integers_are_refused_with_what_they_are_to_be(name, kind):
    text = r"%s: of type u?int\d+, expected words of 32 tokens each, uint32 or int32, or bool \[rows, 500\]" % name
    for mask in (WORDS.astype(kind), torch.from_numpy(WORDS.astype("i8")).long()):
        with pytest.raises(TypeError, match=text + ".*pack_bits"):
            fs.sample(H, W, **{name: mask, "repetition": 1.2 if name == "seen" else None})
