"""The files of the package that are not Python: headers, libraries, the command."""
from __future__ import annotations

import os
from typing import Literal

from . import _c

# In the package as it is installed, then in the repository around it.
_HEADERS = ("include/flashsampling.h", "../../include/flashsampling.h")
_COMMAND = ("bin/flashsample", "../../build/release/bin/flashsample", "../../build/bin/flashsample")


def get_include() -> str:
    """The folder of flashsampling.h and the other public headers, for a compiler's -I."""
    file = _c.find_file(_HEADERS)
    if file is None:
        raise FileNotFoundError("flashsampling.h is not in the package %s" % os.path.dirname(os.path.abspath(__file__)))
    return os.path.dirname(file)


def get_library(backend: Literal["cpu", "cuda"] = "cpu") -> str:
    """The file of the C library that calls of this backend go to, to be linked with.

    Where the package has no CUDA library, "cuda" gives the CPU's, which refuses the backend by name.
    """
    if backend not in ("cpu", "cuda"):
        raise ValueError("backend %r: expected 'cpu' or 'cuda'" % (backend,))
    return _c.library(backend)._name


def find_command() -> str | None:
    """The command's program; None where it was not built."""
    return _c.find_file(_COMMAND)
