"""flashsample generate: text from a checkpoint directory, and the time and memory of each token.

Its exit codes are those of `flashsample --help`, and 130 when it is interrupted.
"""
from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ._meter import measure, rules_of

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class UserError(Exception):
    """Something given is wrong; the text is all a user needs."""

    code = 2


class MissingError(UserError):
    """Something is not there, or not of the kind that is needed."""

    code = 3


# ------------------------------------------------------------------------------------------------------- options ----


_MEASURED = """
Time and memory of head + sampling are measured, not estimated. The time runs from the moment the hidden state enters
the LM head until stopping rules have seen the token: with flashsampling that is the fused call, with stock the head's
matmul, every logits processor, softmax and torch.multinomial. A hook on the output embedding and a stopping rule take
it, by the clock on the CPU, by events of the stream on CUDA. Time per token leaves out the first one, which also reads
the prompt, and what printing takes; both are medians. Memory is what is alive at once in that span beside weights and
caches, seen in a run of its own: on CUDA the allocator's peak, on the CPU all tensors; and the library's work memory.
--compare runs stock generate() with the same prompt and rules after flashsampling, both after a warm-up of a few
tokens.
"""


class Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, "%s: %s\n" % (self.prog, message))


def number(kind: type, low: float, high: float = float("inf"), above: bool = False) -> Callable[[str], Any]:
    """A type for argparse: a number from low, or above it, to high."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high or above and value == low:
            limits = "%s %s" % ("above" if above else "at least", low)
            limits += "" if high == float("inf") else ", at most %s" % high
            word = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError("%s: expected %s %s" % (text, word, limits))
        return value

    return parse


def parser() -> Parser:
    """The options of the command."""
    make = Parser(prog="flashsample generate", epilog=_MEASURED, description="Continues a text with a model that "
                  "transformers loads, and prints the time and memory of head and sampling.")
    add = make.add_argument
    add("--model", required=True, metavar="DIR", help="a checkpoint: config.json, *.safetensors, perhaps a tokenizer")
    add("--prompt", required=True, metavar="TEXT", help="what to continue; token ids where there is no tokenizer")
    add("--max-new-tokens", type=number(int, 1), metavar="N", help="(generation_config's, or 128)")
    rules = make.add_argument_group("rules; what is not given is the model's generation_config, as in transformers")
    add_rule = rules.add_argument
    add_rule("--sample", action="store_true", help="draw, where generation_config says greedy; the next four do too")
    add_rule("--temperature", type=number(float, 0), metavar="T", help="0 is greedy")
    add_rule("--top-k", type=number(int, 0), metavar="K", help="0 is off; transformers has 50 where nothing says else")
    add_rule("--top-p", type=number(float, 0, 1, above=True), metavar="P", help="1 is off")
    add_rule("--min-p", type=number(float, 0, 1), metavar="P", help="0 is off")
    add_rule("--repetition-penalty", type=number(float, 0, above=True), metavar="R", help="1 is off")
    add_rule("--seed", type=number(int, 0, 2**63 - 1), metavar="N", help="of torch.manual_seed; without it a fresh one")
    add("--copies", type=number(int, 1), default=1, metavar="N", help="rows of a batch, all with this prompt (1)")
    add("--device", metavar="D", help="cpu, cuda, cuda:1, ... (cuda where torch sees a GPU)")
    add("--dtype", choices=("float32", "float16", "bfloat16"), help="of the weights in memory (as they are stored)")
    add("--compare", action="store_true", help="run stock beside it and print a table")
    add("--json", action="store_true", help="print one JSON object, nothing else; times in seconds")
    return make


# ------------------------------------------------------------------------------------------------------- loading ----


def _import() -> Any:
    """torch and transformers, which this command needs and the package does not."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a directory is all that is read
    for name in ("torch", "transformers"):
        try:
            __import__(name)
        except ImportError as error:
            raise MissingError("generate needs %s: %s; pip install torch transformers" % (name, error)) from None
    transformers = sys.modules["transformers"]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return sys.modules["torch"], transformers


def _check_directory(path: str) -> None:
    if not os.path.isdir(path):
        why = "not a directory" if os.path.exists(path) else "no such directory"
        raise MissingError("--model %s: %s" % (path, why))
    names = os.listdir(path)
    if "config.json" not in names:
        raise MissingError("--model %s: has no config.json" % path)
    if not any(name.endswith(".safetensors") for name in names):
        raise MissingError("--model %s: has no *.safetensors" % path)


def _device(torch: Any, name: str | None) -> Any:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError("--device %s: expected cpu, cuda, cuda:1, ..." % name) from None
    if device.type not in ("cpu", "cuda"):
        raise UserError("--device %s: expected cpu, cuda, cuda:1, ..." % name)
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise UserError("--device %s: torch sees %d of them" % (name, torch.cuda.device_count()))
    return device


def load(path: str, device: str | None = None, dtype: str | None = None) -> Any:
    """The model of a directory, in its stored dtype unless another is named, and its tokenizer, or None."""
    _check_directory(path)
    torch, transformers = _import()
    where = _device(torch, device)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True)
        tokenizer = None
        if any(os.path.exists(os.path.join(path, name)) for name in TOKENIZER_FILES):
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # whatever a damaged or foreign file makes these raise
        text = (str(error).strip().split("\n") or [""])[0]
        raise MissingError("--model %s: was not loaded: %s: %s" % (path, type(error).__name__, text)) from None
    if model.get_output_embeddings() is None:
        raise MissingError("--model %s: %s has no output embedding" % (path, type(model).__name__))
    return model.to(where).eval(), tokenizer


def prompt_tokens(text: str, tokenizer: Any, model: Any) -> list[int]:
    """The ids of a prompt; where there is no tokenizer it is made of them."""
    vocab = model.get_input_embeddings().weight.shape[0]
    if tokenizer is not None:
        ids = list(tokenizer(text)["input_ids"])
    else:
        try:
            ids = [int(word) for word in text.replace(",", " ").split()]
        except ValueError:
            raise UserError("--prompt %r: without a tokenizer token ids are expected, as in 1 2 3" % text) from None
    if not ids and model.generation_config.bos_token_id is not None:
        ids = [model.generation_config.bos_token_id]
    if not ids:
        raise UserError("--prompt %r: empty, and the model has no token to begin with" % text)
    for token in ids:
        if not 0 <= token < vocab:
            raise UserError("--prompt: token %d, the vocabulary has %d" % (token, vocab))
    return ids


def generation_config(model: Any, options: Any, prompt: int) -> Any:
    """The model's own rules with those of the command line, for a prompt of so many tokens."""
    config = copy.deepcopy(model.generation_config)
    given = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("temperature") == 0:
        config.do_sample, config.temperature, config.top_k, config.top_p, config.min_p = False, None, None, None, None
    elif given or options.sample:
        config.do_sample = True
        config.update(**given)
    if options.repetition_penalty is not None:
        config.repetition_penalty = options.repetition_penalty
    config.max_length, config.num_return_sequences = None, 1
    room = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    config.max_new_tokens = options.max_new_tokens or config.max_new_tokens or max(1, min(128, room - prompt))
    if prompt + config.max_new_tokens > room:
        text = "flashsample generate: a prompt of %d tokens and %d more; the model was made for %d"
        print(text % (prompt, config.max_new_tokens, room), file=sys.stderr)
    if config.pad_token_id is None:
        end = config.eos_token_id
        config.pad_token_id = end[0] if isinstance(end, list) else end
    return config


# ------------------------------------------------------------------------------------------------------ printing ----


class Text:
    """Prints a row's text as it grows; without a tokenizer its ids."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.begin, self.printed = tokenizer, 0, 0

    def of(self, tokens: list[int]) -> str:
        if self.tokenizer is None:
            return "".join(" %d" % token for token in tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def show(self, tokens: list[int]) -> None:
        text = self.of(tokens[self.begin:])
        if not text.endswith("\ufffd"):  # else the token ends inside a character
            print(text[self.printed:], end="", flush=True)
            self.printed = len(text)
        if text.endswith("\n"):  # a place to begin anew, so that long texts are not decoded over and over
            self.begin, self.printed = len(tokens), 0


def _seconds(value: float) -> str:
    return "%.2f ms" % (value * 1e3) if value >= 1e-3 else "%.0f us" % (value * 1e6)


def _bytes(value: int) -> str:
    return "%.1f MB" % (value / 1e6) if value >= 1e6 else "%.1f KB" % (value / 1e3)


def table(runs: dict[str, dict[str, Any]]) -> str:
    """What the runs took, side by side."""
    rows = {
        "": lambda run: None,
        "tokens per second": lambda run: "%.1f" % run["tokens_per_second"],
        "time to the first token": lambda run: _seconds(run["first_token_seconds"]),
        "time per token": lambda run: _seconds(run["token_seconds"]),
        "  head + sampling": lambda run: _seconds(run["head_seconds"]),
        "  its share": lambda run: "%.0f %%" % (100 * run["head_share"]),
        "memory of head + sampling": lambda run: _bytes(run["head_bytes"]),
        "  logits stored by the head": lambda run: _bytes(run["logits_bytes"]),
    }
    lines = []
    for title, cell in rows.items():
        cells = [cell(run) or name for name, run in runs.items()]
        lines.append(("%-27s" % title + "".join("%15s" % text for text in cells)).rstrip())
    return "\n".join(lines)


def run(options: Any) -> int:
    """Generates, measures and prints."""
    model, tokenizer = load(options.model, options.device, options.dtype)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    ids = prompt_tokens(options.prompt, tokenizer, model)
    config = generation_config(model, options, len(ids))
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    text, quiet, runs = Text(tokenizer), options.json, {}
    if not quiet:
        print(options.prompt, end="", flush=True)
    for name in ("flashsampling", "stock")[: 2 if options.compare else 1]:
        show = text.show if name == "flashsampling" and not quiet else None
        runs[name] = measure(model, ids, options.copies, config, seed, name != "stock", options.compare, show)
    V, D = model.get_output_embeddings().weight.shape
    about = {"model": options.model, "device": str(model.device), "dtype": str(model.dtype).split(".")[-1],
             "vocabulary": V, "hidden": D, "prompt_tokens": ids, "copies": options.copies, "seed": seed,
             "rules": rules_of(config)}
    if quiet:
        for run in runs.values():
            run["text"] = None if tokenizer is None else [text.of(row) for row in run["tokens"]]
        print(json.dumps({**about, **runs}))
        return 0
    ours = runs["flashsampling"]
    print()
    for number, row in enumerate(ours["tokens"][1:], 2):
        print("\n[%d] %s%s" % (number, options.prompt, text.of(row)))
    rules = ", ".join("%s %s" % rule for rule in about["rules"].items())
    print("\n%d tokens, %d %s; vocabulary %d x %d, %s on %s; %s, seed %d"
          % (ours["new_tokens"], options.copies, "row" if options.copies == 1 else "rows", V, D, about["dtype"],
             model.device, rules, seed))
    if not ours["fused"]:
        print("Not fused: these rules, or this model, were left to transformers.")
    print("\n" + table(runs))
    if options.compare and not config.do_sample:
        print("\ngreedy tokens are %s" % ("the same" if ours["tokens"] == runs["stock"]["tokens"] else "not the same"))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except BrokenPipeError:  # nobody reads the output any more, so there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    except UserError as error:
        code, text = error.code, str(error)
    except (ImportError, OSError) as error:
        code, text = 3, str(error)
    except (RuntimeError, ValueError) as error:
        code, text = 3, "%s: %s" % (type(error).__name__, str(error).strip())
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    print("flashsample generate: %s" % text.strip().split("\n")[0], file=sys.stderr)
    return code
