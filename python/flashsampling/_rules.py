"""Keywords of calls, each written once: their types, which checkers and IDEs read, and what the package checks of them.

A rule with one number for all rows or a value per slot is one line of StructRules; any other is one line of Rules.
`unknown` makes the error for a keyword that is none of them.
"""
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor

    from ._arrays import Pointer

    Array = npt.NDArray[Any] | Tensor | Pointer
    Floats = float | np.floating[Any] | np.integer[Any] | Array | Sequence[float] | None
    Integers = int | np.integer[Any] | Array | Sequence[int] | None
    Edits = Sequence[Mapping[int, float] | Sequence[tuple[int, float]]] | tuple[Array | Sequence[float], ...] | None
    Counts = Sequence[Mapping[int, int] | Sequence[tuple[int, int]]] | tuple[Array | Sequence[int], ...] | None
    Tokens = Sequence[Sequence[int]] | tuple[Array | Sequence[int], ...] | None
    Generator = torch.Generator | np.random.Generator | None
else:
    Array = Floats = Integers = Edits = Counts = Tokens = Generator = Any

# The kind of a call's arrays: tensors in, tensors out.
Kind = TypeVar("Kind", "npt.NDArray[Any]", "Tensor")

Backend = Literal["auto", "cpu", "cuda", "reference"]
Dtype = Literal["f32", "f16", "bf16"]
Quantised = Literal["q8_0", "q5_k", "q6_k"]
TokenDtype = Literal["i64", "i32"]
Mode = Literal["sample", "without_replacement", "group_parallel", "group_online", "score"]
Noise = Literal["exact", "fast"]
LogitsMode = Literal["raw", "processed", "cut"]
Output = Literal["noisy_logit", "max_logit", "log_z", "logit", "logprob", "rank", "entropy"]
Outputs = Literal["all"] | Output | Iterable[Output]
ScreenBits = Literal[0, 4, 8, "4+8"]  # 0: no screen
OnError = Literal["raise", "status"] | None
RuleName = Literal["top_k", "top_p", "min_p", "allow", "edits", "penalties"]
InputName = Literal["broadcast", "extra_tokens"]
FlagName = Literal["keep_ties_top_k", "keep_ties_top_p", "keep_ties", "joint_top_p", "min_p_last",
                   "cut_before_temperature", "edits_last", "exact_rank", "rank_of_ties"]


class SlotRule(NamedTuple):
    """How a rule is stored, the value that does nothing, and the limits of a number for all rows. A bad value of an
    array is its row's own: Row."""

    dtype: str
    off: float = 0
    least: float = 0.0
    largest: float = 0.0
    text: str = ""
    penalty: bool = False  # of tokens that were counted


_FLOAT, _LEAST = 3.4028234663852886e38, 1.401298464324817e-45  # the largest and the least float32 above 0


class StructRules(TypedDict, total=False):
    """The members of fs_rules, in their order."""

    temperature: Annotated[Floats, SlotRule("f32", 1, 0, _FLOAT, "0 (greedy) or more")]
    top_k: Annotated[Integers, SlotRule("i32")]
    top_p: Annotated[Floats, SlotRule("f32", 1, 0, 1 + 1e-5, "from 0 to 1 (off)")]
    min_p: Annotated[Floats, SlotRule("f32", 0, 0, 1, "from 0 (off) to 1")]
    repetition: Annotated[Floats, SlotRule("f32", 1, _LEAST, _FLOAT, "above 0, 1 is off", penalty=True)]
    frequency: Annotated[Floats, SlotRule("f32", 0, -_FLOAT, _FLOAT, "that is finite", penalty=True)]
    presence: Annotated[Floats, SlotRule("f32", 0, -_FLOAT, _FLOAT, "that is finite", penalty=True)]


class SlotRules(StructRules, total=False):
    """Rules that are one number for all rows, or an array with one value per slot."""

    seed: Annotated[Integers, SlotRule("u64")]
    substream: Annotated[Integers, SlotRule("u32")]


class Flags(TypedDict, total=False):
    """Flag by name: True sets the bit."""

    keep_ties_top_k: bool
    keep_ties_top_p: bool
    keep_ties: bool
    joint_top_p: bool
    min_p_last: bool
    cut_before_temperature: bool
    edits_last: bool
    exact_rank: bool
    rank_of_ties: bool


class Limits(TypedDict, total=False):
    """Members of fs_limits: what no row goes beyond."""

    absent: Annotated[int, "u32"]
    top_k: Annotated[int, "i32"]
    edits: Annotated[int, "i64"]
    counts: Annotated[int, "i64"]
    watched: Annotated[int, "i64"]


class Rules(SlotRules, Flags, total=False):
    """What is drawn; Batch says what each means."""

    samples: int | None
    mode: Mode
    noise: Noise
    flags: int
    fallback_token: int
    group_size: int
    list_capacity: int
    slot: Array | Sequence[int] | None
    slots: int | None
    position: Integers
    allow: Array | None
    allow_index: Array | Sequence[int] | None
    edits: Edits
    padded_edits: Sequence[Array | Sequence[int]] | None
    seen: Array | None
    counts: Array | None
    count_list: Counts
    extra_tokens: Tokens
    score_tokens: Array | Sequence[Sequence[int]] | None
    watch: Tokens
    limits: Limits | None


class BatchRules(Rules, total=False):
    """Rules, and how Batch takes their arrays."""

    hidden_dtype: Dtype | None
    in_place: bool


class HeadOptions(TypedDict, total=False):
    """What a Head says of the logits beside its array."""

    bias: Array | Sequence[float] | None
    first_token: int
    vocab: int
    round_to: Dtype
    scale: float
    softcap: float
    post_scale: float
    constant: bool


class SampleRules(HeadOptions, BatchRules, total=False):
    """Keywords of flashsampling.sample and sample_logits beside those in their signatures."""

    generator: Generator


class TensorRules(TypedDict, total=False):
    """Keywords of flashsampling.torch beside those in its signatures."""

    generator: Generator
    temperature: "float | Tensor"
    top_k: "int | Tensor"
    top_p: "float | Tensor"
    min_p: "float | Tensor"
    position: "int | Tensor"
    slot: "Tensor"
    allow: "Tensor"
    allow_index: "Tensor"
    samples: int
    flags: int
    vocab: int
    round_to: Dtype
    scale: float
    softcap: float
    post_scale: float


if TYPE_CHECKING:
    from dataclasses import dataclass

    # jedi, the completion of IPython, Jupyter and Spyder, does not read Unpack. It offers the keywords of functions
    # that get a function's **keywords, and dataclass() shows it those of a TypedDict. Nothing calls these functions.
    def offer_head_options(**options: Any) -> None:
        dataclass(HeadOptions)(**options)

    def offer_rules(**rules: Any) -> None:
        dataclass(StructRules)(**rules)
        dataclass(SlotRules)(**rules)
        dataclass(Flags)(**rules)
        dataclass(Rules)(**rules)

    def offer_batch_rules(**rules: Any) -> None:
        offer_rules(**rules)
        dataclass(BatchRules)(**rules)

    def offer_sample_rules(**rules: Any) -> None:
        offer_head_options(**rules)
        offer_batch_rules(**rules)
        dataclass(SampleRules)(**rules)

    def offer_tensor_rules(**rules: Any) -> Any:
        dataclass(TensorRules)(**rules)


def _notes(kind: Any) -> dict[str, Any]:
    """The second argument of each Annotated member."""
    return {name: get_args(hint)[1] for name, hint in get_type_hints(kind, include_extras=True).items()}


STRUCT_RULES: dict[str, SlotRule] = _notes(StructRules)
SLOT_RULES: dict[str, SlotRule] = _notes(SlotRules)
LIMITS: dict[str, str] = _notes(Limits)
RULES, BATCH_RULES, HEAD_OPTIONS, SAMPLE_RULES, TENSOR_RULES = (
    frozenset(kind.__annotations__) for kind in (Rules, BatchRules, HeadOptions, SampleRules, TensorRules))
PENALTIES = {name: rule.off for name, rule in SLOT_RULES.items() if rule.penalty}
_OWNERS = {"Head": HEAD_OPTIONS, "Batch": BATCH_RULES, "sample and Sampler": SAMPLE_RULES}

# Names of transformers, vLLM, SGLang, FlashInfer, llama.cpp and torch, and what does the same here.
_CALLED = {
    "n": "samples", "num_samples": "samples", "num_return_sequences": "samples", "best_of": "samples",
    "replacement": 'mode="without_replacement"',
    "repetition_penalty": "repetition", "repeat_penalty": "repetition", "penalty_repeat": "repetition",
    "frequency_penalty": "frequency", "presence_penalty": "presence",
    "logit_bias": "edits", "bad_words": "edits", "bad_words_ids": "edits", "suppress_tokens": "edits",
    "sequence_bias": "edits", "allowed_token_ids": "allow", "bitmask": "allow", "grammar_bitmask": "allow",
    "logprobs": 'outputs=["logprob"]', "return_logprob": 'outputs=["logprob"]', "logprob": 'outputs=["logprob"]',
    "top_n": "top", "top_logprobs": "top", "top_logprobs_num": "top", "num_logprobs": "top",
    "prompt_logprobs": 'mode="score"', "token_ids_logprob": "watch", "logprob_token_ids": "watch",
    "do_sample": "temperature (0 is greedy)", "greedy": "temperature=0", "temp": "temperature",
    "sampling_seed": "seed", "random_seed": "seed", "manual_seed": "seed", "offset": "position", "step": "position",
    "filter_apply_order": "joint_top_p", "top_k_first": "joint_top_p", "softcapping": "softcap",
    "final_logit_softcapping": "softcap", "logit_softcapping": "softcap", "logit_scale": "scale",
}
_ABSENT = {
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_length", "min_tokens", "min_new_tokens", "stop",
                     "stop_token_ids", "eos_token_id"), "a call draws one token of each row, and the loop is yours"),
    **dict.fromkeys(("num_beams", "beam_width", "length_penalty"), "there is no beam search"),
    **dict.fromkeys(("typical_p", "top_a", "epsilon_cutoff", "eta_cutoff", "mirostat", "tfs_z", "xtc_probability",
                     "min_tokens_to_keep", "penalty_alpha"), "this rule is not in the library"),
}


def hint(name: Any, known: Iterable[str]) -> str:
    """What to add to the text of an error about a word that is none of those known."""
    if not isinstance(name, str):
        return ""
    import difflib

    name, known = name.lower(), sorted(known)
    longer = [word for word in known if word.startswith(name + "_")]
    close = difflib.get_close_matches(name, known, 1, 0.8) or longer or difflib.get_close_matches(name, known, 1)
    return "; did you mean %s?" % close[0] if close else ""


def check_names(given: Iterable[str], known: Collection[str], others: Iterable[str] = ()) -> None:
    """Raises TypeError for a keyword that is not known. `others` are keywords that stand in the signature itself."""
    wrong = [name for name in given if name not in known]
    if wrong:
        raise TypeError("; ".join("unknown rule: %s%s" % (name, _advice(name, {*known, *others})) for name in wrong))


def _advice(name: str, known: Collection[str]) -> str:
    if name in _CALLED:
        return "; it is called %s here" % _CALLED[name]
    if name in _ABSENT:
        return "; " + _ABSENT[name]
    owner = next((owner for owner, names in _OWNERS.items() if name in names), None)
    return "; it is a keyword of " + owner if owner else hint(name, known)
