"""Tests that need torch; those of transformers say so themselves."""
import os
import sys

import pytest

try:
    import flashsampling  # where it is installed, as it is installed
except ImportError:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

torch = pytest.importorskip("torch", reason="torch cannot be imported")
torch.set_num_threads(1)  # the jobs already fill the machine
