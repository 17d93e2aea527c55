"""The command line: python -m flashsampling info | generate; --help explains each.

It ends with 0, with 2 and one line where something given is wrong or missing, with 1 and one line where a run failed,
and with 130 when interrupted.
"""
import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import _c, _generate, _native
from ._context import Context, Error, noise_id, version

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


def _package_version() -> str:
    try:
        return importlib.metadata.version("flashsampling")
    except importlib.metadata.PackageNotFoundError:
        return "%d.%d, not installed" % _c.VERSION


def info() -> int:
    """Prints what is installed, which backends run here, and why others do not."""
    print("package       %s, %s" % (_package_version(), os.path.dirname(os.path.abspath(__file__))))
    for name in dict.fromkeys(_c.library(backend)._name for backend in ("cpu", "cuda")):
        print("library       %s, noise mapping %d, %s" % (version(), noise_id() & 0x7FFFFFFF, name))
    in_c = _native.library()
    print("calls         %s" % ("through ctypes" if in_c is None else "in C, " + in_c._name))
    for backend in ("cpu", "cuda", "reference"):
        try:
            with Context(backend) as context:
                print("%-13s %s" % (backend, context.text.removeprefix(backend + ": ")))
        except Error as error:
            print("%-13s not here: %s" % (backend, error.text))
    for name in ("numpy", "torch", "transformers"):
        try:
            print("%-13s %s" % (name, importlib.import_module(name).__version__))
        except ImportError as error:
            print("%-13s not here: %s" % (name, error))
    return 0


def parser() -> Parser:
    """What the command line understands."""
    main = Parser(prog="flashsampling", description="Exact sampling fused into the LM-head matmul.")
    main.add_argument("--version", action="version", version=_package_version())
    commands = main.add_subparsers(dest="command", required=True, metavar="info|generate", parser_class=Parser)
    commands.add_parser("info", help="versions, backends, and why one is not there")
    make = commands.add_parser("generate", help="generate text from a checkpoint directory, and say what it took",
                               epilog=_MEASURED)
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
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "info":
            return info()
        return _generate.main(options)
    except BrokenPipeError:  # the reader has left; nothing can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (_generate.UserError, ImportError, OSError) as error:
        code, text = 2, str(error).strip().split("\n")[0]
    except (RuntimeError, ValueError) as error:
        code, text = 1, "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    print("flashsampling %s: %s" % (options.command, text), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
