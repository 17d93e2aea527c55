"""The command flashsample, which `python -m flashsampling` is too: `flashsample --help` lists what it does.

The program in C, which the package carries, runs every command but generate, which needs torch and transformers.
"""
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence

from . import _c, _generate, _native
from ._package import find_command


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def print_package() -> None:
    """Prints where the Python package lies, which libraries it loads, and versions of the packages it works with."""
    in_c = _native.library()
    lines = {"package": "%s, %s" % (_version("flashsampling"), os.path.dirname(os.path.abspath(__file__)))}
    lines["library"] = ", ".join(dict.fromkeys(_c.library(backend)._name for backend in ("cpu", "cuda")))
    lines["calls"] = "through ctypes" if in_c is None else "in C, " + in_c._name
    for name in ("numpy", "torch", "transformers"):
        lines[name] = _version(name)
    for name, text in lines.items():
        print("%-12s %s" % (name, text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns an exit code where the program in C does not take the place of this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["generate"]:
        return _generate.main(words[1:])
    program = find_command()
    try:
        if program is None:
            raise FileNotFoundError("bin/flashsample is not in the package %s" % os.path.dirname(__file__))
        for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would the program
            signal.signal(name, signal.SIG_DFL)
        if words == ["info"]:
            print_package()
            sys.stdout.flush()
        os.execv(program, ["flashsample", *words])
    except (ImportError, OSError) as error:
        print("flashsample: %s" % error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
