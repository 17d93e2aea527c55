"""Where arrays become pointers: numpy arrays, torch tensors, anything with an array interface, or a bare address.

Large arrays (weights, hidden states, logits) are used as they lie and never copied. Small ones (a value per slot,
lists) are converted to the type the library reads; tensors in device memory on torch's current stream.
"""
import numbers
from collections.abc import Sequence
from typing import Any

Array = Any  # a numpy array, a torch tensor, a Pointer, or, where it is small, a list

TYPESTR: dict[Any, str] = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "i32": "<i4", "i64": "<i8", "u32": "<u4",
                           "u64": "<u8"}
KNOWN = {typestr: dtype for dtype, typestr in TYPESTR.items() if dtype != "bf16"}
TENSORS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint32": "u32",
           "uint64": "u64"}  # torch's names
NAMES = {ours: name for name, ours in TENSORS.items()}
ITEM = {dtype: int(typestr[2:]) for dtype, typestr in TYPESTR.items()}
UNSIGNED: dict[Any, str] = {"u32": "i32", "u64": "i64"}  # few operations of torch know its unsigned types
FLOATS = ("f32", "f16", "bf16")
LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1), "u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1)}


def numpy() -> Any:
    """numpy, when it is needed first: importing this package does not take it."""
    import numpy as np

    return np


class Local:
    """An object that points to memory of this process, which neither a copy nor a pickle of it would own."""

    def __reduce__(self) -> Any:
        raise TypeError("a %s cannot be pickled or copied, because it points to memory of this process: make another "
                        "one from its arguments" % type(self).__name__)


class Pointer(Local):
    """Memory by its address, for arrays without an interface Python knows.

    dtype is "f32", "f16", "bf16", "i32", ...; stride is the bytes from one row to the next, 0 = packed; device is
    "cpu", "cuda" or "cuda:1", None = not told and not checked. The caller keeps the memory alive and vouches for the
    shape.
    """

    def __init__(self, address: int, shape: Sequence[int], dtype: str, stride: int = 0,
                 device: str | None = None) -> None:
        if dtype not in TYPESTR:
            raise ValueError("dtype %r: expected one of %s" % (dtype, ", ".join(TYPESTR)))
        if device is not None and not is_device(device):
            raise ValueError("device %r: expected \"cpu\", \"cuda\" or \"cuda:\" and a number" % (device,))
        self.address, self.shape, self.dtype, self.stride = int(address), tuple(shape), dtype, int(stride)
        self.device = device
        self.keep: Any = None  # what owns the memory
        self.converted: str | None = None  # what it is, where a conversion on torch's current stream writes it

    def check_place(self, what: str) -> None:
        """Refuses memory that its tensor has left since, as a Parameter's does in model.half() or model.to()."""
        if is_tensor(self.keep) and self.keep.data_ptr() != self.address:
            raise ValueError("%s: the tensor's memory was exchanged or freed since; point to it anew" % what)


def type_name(dtype: Any) -> str:
    """A type of numpy's by its name: float64, not <f8."""
    dtype = numpy().dtype(dtype)
    name = "str" if dtype.kind in "US" else str(dtype.name)
    return name if dtype.isnative else name + " with bytes in the other order"


def is_device(name: Any) -> bool:
    """Whether this names a kind of memory the library knows."""
    if name == "cpu" or name == "cuda:0":
        return True
    kind, colon, number = str(name).partition(":")
    return kind == "cuda" and (not colon or number.isdigit())


def is_apart(device: str | None, found: str | None) -> bool:
    """Whether these are two kinds of memory, or two devices, as far as both are told."""
    if device is None or found is None or device == found:
        return False
    return device[:4] != found[:4] or ":" in device and ":" in found


def same_memory(device: str | None, pointer: Any, what: str) -> None:
    """Refuses what the backend cannot reach: it would fail far from here, or read elsewhere."""
    if is_apart(device, pointer.device):
        raise ValueError("%s: in memory of %s, expected %s" % (what, pointer.device, device))


def is_scalar(value: Any) -> bool:
    if type(value) in (int, float):
        return True
    return isinstance(value, numbers.Number) or getattr(value, "shape", None) == ()


def no_integer(value: Any, dtype: str, what: str) -> ValueError:
    shown = repr(value) if isinstance(value, str) else value
    return ValueError("%s: %s, expected an integer from %d to %d" % ((what, shown) + LIMITS[dtype]))


def integer(value: Any, dtype: str, what: str) -> int:
    """A number as an int that this dtype holds: ctypes would wrap it silently."""
    low, high = LIMITS[dtype]
    if type(value) is int and low <= value <= high:
        return value
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (int, float)) or not (low <= value <= high and value == int(value)):
        raise no_integer(value, dtype, what)
    return int(value)


def real(value: Any, what: str) -> float:
    """A number as a float."""
    if type(value) is float:
        return value
    try:
        # numpy and torch would drop the imaginary part, and Python reads numbers from text
        if "complex" in str(getattr(value, "dtype", "")) or isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError("%s: %r, expected a number" % (what, value)) from None


def integers(value: Any, dtype: str, what: str) -> Any:
    """The array, if this dtype holds its values: numpy would wrap and truncate them silently. An array of the signed
    type of the same width is used as it lies, like a tensor's, if none of its values is negative."""
    np = numpy()
    array, (low, high) = np.asarray(value), LIMITS[dtype]
    if hasattr(value, "dtype") and array.dtype.str == TYPESTR[dtype]:
        return array
    if hasattr(value, "dtype") and array.dtype.str == TYPESTR.get(UNSIGNED.get(dtype)):
        if np.count_nonzero(array < 0):
            raise no_integer(array[array < 0].flat[0], dtype, what)
        return array.view(TYPESTR[dtype])
    if array.dtype.kind not in ("biuO" if what == "seed" else "biufO"):
        raise TypeError("%s: array of type %s, expected integers" % (what, type_name(array.dtype)))
    exact = array.astype("f8") if array.dtype.kind == "f" else array  # a narrower float would round the limits
    try:
        with np.errstate(invalid="ignore"):
            good = (exact >= low) & (exact < high + 1) & (exact % 1 == 0)
    except TypeError:  # an object that is no number
        raise TypeError("%s: a %s, expected integers" % (what, type(value).__name__)) from None
    if not np.all(good):
        raise no_integer(exact[~good].flat[0], dtype, what)
    return array


def is_tensor(value: Any) -> bool:
    """A torch tensor, known without importing torch. Its own array interface lacks bfloat16."""
    return hasattr(value, "data_ptr") and hasattr(value, "is_cuda")


def check_plain(value: Any, what: str) -> None:
    """Refuses what has values, but not one after another in memory."""
    if is_tensor(value):
        if value.is_nested:
            raise TypeError("%s: a nested tensor; to_padded_tensor() makes a dense one" % what)
        if str(value.layout) != "torch.strided":
            raise TypeError("%s: a tensor of layout %s; to_dense() makes a dense one"
                            % (what, str(value.layout).split(".")[-1].removeprefix("_")))
        if value.is_quantized:
            raise TypeError("%s: a quantised tensor, %s; dequantize() makes float32 of it"
                            % (what, _tensor_type(value)))
    elif hasattr(value, "mask") and hasattr(value, "filled"):
        raise TypeError("%s: a masked array; filled(value) makes a plain one" % what)


def _tensor_type(value: Any) -> str:
    return str(value.dtype).split(".")[-1]


def on_device(value: Any) -> bool:
    """Whether an array lies in device memory."""
    return not value.is_cpu if is_tensor(value) else hasattr(value, "__cuda_array_interface__")


def tensor_device(value: Any, what: str) -> str:
    """The name of a tensor's device; refuses those that no backend reads (meta, mps, ...)."""
    device = str(value.device)
    if not is_device(device):
        raise TypeError("%s: a tensor of device %s, expected cpu or cuda" % (what, device))
    return device


_COPY = "A packed copy is made by numpy.ascontiguousarray(), of tensors by contiguous()"


def row_stride(shape: Sequence[int], strides: Sequence[int], item: int, what: str) -> int:
    """Bytes from one row to the next; 0 = there is but one."""
    if strides[-1] != item and shape[-1] > 1:
        raise ValueError("%s: elements of a row are %d bytes apart, expected %d: transposed? %s"
                         % (what, strides[-1], item, _COPY))
    if len(shape) != 2 or shape[0] <= 1:
        return 0
    if strides[0] <= 0:
        raise ValueError("%s: rows are %d bytes apart, expected a positive number: %s? %s"
                         % (what, strides[0], "reversed" if strides[0] else "one row expanded to many", _COPY))
    return strides[0]


def wrong_type(what: str, kind: str, found: str, dtype: str | None, expected: str) -> Exception:
    """What to raise for an array of type `found` where `dtype` was asked for, or, without one, what is `expected`."""
    if dtype is not None and dtype not in TYPESTR:
        return ValueError("%s: dtype %r: expected one of %s" % (what, dtype, ", ".join(FLOATS)))
    advice = ""
    if dtype in (None, "f32") and found.startswith("float"):
        advice = ". A copy is made by astype(\"float32\"), of tensors by float()"
    return TypeError("%s: %s%s, expected %s%s" % (what, kind, found, NAMES.get(dtype or "", expected), advice))


def tensor_pointer(value: Any, what: str, dtype: str | None) -> Pointer:
    """as_pointer for torch tensors."""
    check_plain(value, what)
    name, item = _tensor_type(value), value.element_size()
    found = TENSORS.get(name)
    if found is not None and found == UNSIGNED.get(dtype):
        found = dtype
    if found is None or (dtype is not None and found != dtype):
        raise wrong_type(what, "tensor of type ", name, dtype, "float32, float16 or bfloat16")
    device = tensor_device(value, what)
    if value.is_neg():
        raise TypeError("%s: a view that negates what lies in memory; resolve_neg() makes a tensor of it" % what)
    stride = row_stride(value.shape, [s * item for s in value.stride()], item, what) if value.dim() else 0
    pointer = Pointer(value.data_ptr(), value.shape, found, stride, device)
    pointer.keep = value
    return pointer


def as_pointer(value: Array, what: str, dtype: str | None = None) -> Pointer:
    """A Pointer to the array as it lies. Rows may have a stride; elements of a row must be neighbours."""
    if isinstance(value, Pointer):
        if dtype is not None and value.dtype not in (dtype, UNSIGNED.get(dtype)):
            raise wrong_type(what, "a Pointer to ", NAMES[value.dtype], dtype, "")
        return value
    if is_tensor(value):
        return tensor_pointer(value, what, dtype)
    check_plain(value, what)
    interface = getattr(value, "__array_interface__", None) or getattr(value, "__cuda_array_interface__", None)
    kind = "array of type "
    if interface is None:
        kind = "a %s, as an array of type " % type(value).__name__
        value = numpy().asarray(value)
        interface = value.__array_interface__
    typestr, shape, strides = interface["typestr"], interface["shape"], interface.get("strides")
    found = KNOWN.get(typestr)
    # bfloat16 is a type of its own where a package has given numpy one, else the bits of it in uint16.
    if found is None and (typestr == "<u2" and dtype == "bf16" or str(getattr(value, "dtype", "")) == "bfloat16"):
        found = "bf16"
    if found is not None and found == UNSIGNED.get(dtype):
        found = dtype
    if found is None or (dtype is not None and found != dtype):
        raise wrong_type(what, kind, type_name(typestr), dtype, 'float32, float16, or uint16 with dtype="bf16"')
    stride = 0 if strides is None else row_stride(shape, strides, int(typestr[2:]), what)
    pointer = Pointer(interface["data"][0] or 0, shape, found, stride, "cuda" if on_device(value) else "cpu")
    pointer.keep = value
    return pointer


def device_values(value: Any, dtype: str) -> Any:
    """A tensor with the values of this one, packed and of this dtype, without a look at them: an integer that it cannot
    hold becomes its largest or smallest, which is as wrong, or as far off, as it was. Other types stay as they are."""
    kind = _tensor_type(value)
    whole = kind in ("int8", "int16", "int32", "int64", "uint8")
    value = value.detach()
    if dtype == "f32" and (whole or kind in ("float64", "float16", "bfloat16")):
        value = value.to(torch_dtype(dtype))
    elif dtype in LIMITS and whole and kind != NAMES[UNSIGNED.get(dtype, dtype)]:
        low, high = LIMITS[UNSIGNED.get(dtype, dtype)]
        value = (value.clamp(low, high) if kind == "int64" else value).to(torch_dtype(dtype))
    return value.resolve_neg().contiguous()


def converted(value: Array, dtype: str, what: str, shape: Sequence[int], in_place: bool = False) -> Pointer:
    """A Pointer to a packed array of this dtype and shape; -1 in the shape is any length. in_place refuses an array
    that would be copied: what its owner writes to it later would not be seen."""
    check_plain(value, what)
    given, away = value, is_tensor(value) and on_device(value)
    if away and not in_place:
        tensor_device(value, what)
        value = device_values(value, dtype)
    elif is_tensor(value) and not away:
        value = value.detach() if value.requires_grad else value
        value = value.resolve_neg() if value.is_neg() else value
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()  # numpy has no bfloat16
        given = value
    if not isinstance(value, Pointer) and not on_device(value):
        array = integers(value, dtype, what) if dtype in LIMITS else value
        try:
            array = numpy().asarray(array)
            if array.dtype.kind == "c":
                raise TypeError("array of type %s, expected real numbers" % type_name(array.dtype))
            value = numpy().ascontiguousarray(array, TYPESTR[dtype])
        except (TypeError, ValueError) as error:
            raise type(error)("%s: %s" % (what, error)) from None
    pointer = as_pointer(value, what, dtype)
    if away and pointer.address != given.data_ptr():
        pointer.converted = what
    copied = value is not given and hasattr(given, "dtype") and not away and not numpy().shares_memory(value, given)
    if in_place and copied and value.size:
        raise TypeError("%s: %s that does not lie packed as %s, and would be copied"
                        % (what, type_name(given.dtype), NAMES[dtype]))
    if len(pointer.shape) != len(shape) or any(s not in (-1, n) for n, s in zip(pointer.shape, shape)):
        wanted = ", ".join("any" if s == -1 else str(s) for s in shape)
        raise ValueError("%s: shape %s, expected [%s]" % (what, list(pointer.shape), wanted))
    return pointer


def ragged(value: Any, rows: int, dtypes: Sequence[str], what: str, in_place: bool = False) -> list[Pointer]:
    """Pointers to (offset [rows + 1], column, column ...) of lists with one entry per row.

    Given as that tuple already, or as a sequence with, per row, a dictionary {token: value} or a list of entries.
    """
    np = numpy()
    if isinstance(value, tuple):
        offset, columns = value[0], list(value[1:])
    else:
        try:
            lists = [list(row.items()) if isinstance(row, dict) else list(row) for row in value]
        except TypeError:
            raise TypeError("%s: %.99r, expected a list with a list or dictionary for each of %d rows"
                            % (what, value, rows)) from None
        if len(lists) != rows:
            raise ValueError("%s: %d lists, expected one for each of %d rows" % (what, len(lists), rows))
        offset = np.cumsum([0] + [len(row) for row in lists], dtype="<i8")
        entries = [entry if isinstance(entry, tuple) else (entry,) for row in lists for entry in row]
        wrong = next((entry for entry in entries if len(entry) != len(dtypes)), None)
        if wrong is not None:
            raise ValueError("%s: an entry %r, expected %d values" % (what, wrong, len(dtypes)))
        columns = [[entry[i] for entry in entries] for i in range(len(dtypes))]
    if len(columns) != len(dtypes):
        raise ValueError("%s: %d columns, expected %d" % (what, len(columns), len(dtypes)))
    pointers = [converted(offset, "i64", what + " offsets", [rows + 1], in_place)]
    pointers += [converted(c, d, what, [-1], in_place) for c, d in zip(columns, dtypes)]
    steps = pointers[0].keep
    if steps is not None and isinstance(steps, np.ndarray):
        length = min(p.shape[0] for p in pointers[1:])
        if np.any(np.diff(steps) < 0) or steps[0] < 0 or steps[-1] > length:
            raise ValueError("%s: offsets must rise from 0 or more to at most %d" % (what, length))
    return pointers


_torch_dtypes: dict[str, Any] = {}


def torch_dtype(dtype: str) -> Any:
    """torch's type for ours; the signed one for an unsigned."""
    if not _torch_dtypes:
        import torch

        _torch_dtypes.update((ours, getattr(torch, name)) for name, ours in TENSORS.items() if hasattr(torch, name))
    return _torch_dtypes[UNSIGNED.get(dtype, dtype)]


def new_array(like: Any, dtype: str, shape: Sequence[int]) -> Any:
    """An uninitialised array of the kind of `like`: a tensor on its device, or numpy's."""
    if like is None:
        return numpy().empty(shape, TYPESTR[dtype])
    return like.new_empty(shape, dtype=torch_dtype(dtype))


def to_bf16(values: Array) -> Any:
    """float32 -> bfloat16 bits as uint16, rounded to nearest even; NaN stays NaN."""
    np = numpy()
    values = np.asarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(bits: Array) -> Any:
    """bfloat16 bits as uint16 -> float32, exactly."""
    np = numpy()
    wide = np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16
    return np.ascontiguousarray(wide).view(np.float32).reshape(wide.shape)


def pack_bits(flags: Array) -> Any:
    """Booleans [..., vocabulary] -> words [..., ceil(vocabulary / 32)], bit id % 32 of word id / 32: uint32, or, for a
    tensor, an int32 tensor on its device."""
    if is_tensor(flags):
        import torch

        check_plain(flags, "flags")
        if flags.is_cpu:
            return torch.from_numpy(pack_bits(flags.numpy()).view("i4"))
        padded = torch.nn.functional.pad(flags.bool(), (0, -flags.shape[-1] % 32)).view(torch.uint8)
        bits = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=flags.device)
        octets = (padded.unflatten(-1, (-1, 8)) * bits).sum(-1, dtype=torch.uint8)
        return octets.view(torch.int32)
    np = numpy()
    flags = np.asarray(flags, dtype=bool)
    missing = -flags.shape[-1] % 32
    flags = np.concatenate([flags, np.zeros(flags.shape[:-1] + (missing,), bool)], axis=-1)
    return np.ascontiguousarray(np.packbits(flags, axis=-1, bitorder="little")).view("<u4")


def words_of(value: Array, what: str, vocab: int, in_place: bool) -> tuple[Any, str | None]:
    """A bitmask, packed where it is bool [rows, vocab] or wider; and what it is, if a tensor was packed on a device."""
    kind = str(getattr(value, "dtype", "")).split(".")[-1]
    if kind != "bool":
        if "int" in kind and ITEM.get(TENSORS.get(kind)) != 4:
            raise TypeError("%s: of type %s, expected words of 32 tokens each, uint32 or int32, or bool [rows, %d]; "
                            "flashsampling.pack_bits makes words of bool" % (what, kind, vocab))
        return value, None
    if in_place:
        raise TypeError("%s: bool, which would be copied; flashsampling.pack_bits makes words of it" % what)
    if len(value.shape) != 2 or value.shape[1] < vocab:
        raise ValueError("%s: bool of shape %s, expected [rows, %d]" % (what, list(value.shape), vocab))
    check_plain(value, what)
    if is_tensor(value):
        tensor_device(value, what)
    return pack_bits(value), what if on_device(value) else None


def screen_memory(screen: Any, device: str | None) -> tuple[Any, int, int]:
    """A screen, which is read where it lies, beside the weights: what owns its bytes, their address, how many."""
    if is_tensor(screen):
        kind, where, packed = str(screen.dtype).replace("torch.", ""), str(screen.device), screen.is_contiguous()
        address, size, shape = screen.data_ptr(), screen.numel(), list(screen.shape)
    else:
        screen = numpy().asarray(screen)
        kind, where, packed = str(screen.dtype), "cpu", screen.flags.c_contiguous
        address, size, shape = screen.ctypes.data, screen.nbytes, list(screen.shape)
    if kind != "uint8" or len(shape) != 1 or not packed or address % 64 or is_apart(device, where):
        raise ValueError("screen: %s%s at %#x on %s, expected uint8 [bytes] on %s, packed, 64-byte aligned: what "
                         "Context.screen returns, or a copy or mapped file of it"
                         % (kind, shape, address, where, device or where))
    return screen, address, size
