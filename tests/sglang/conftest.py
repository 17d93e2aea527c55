"""Tests against the SGLang that is installed, on the CPU (make test-sglang)."""
import os
import sys

import pytest

os.environ.update(CUDA_VISIBLE_DEVICES="", FLASHSAMPLING_SGLANG="on")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "torch"))
try:
    import flashsampling
except ImportError:
    sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))

torch = pytest.importorskip("torch", reason="torch cannot be imported")
pytest.importorskip("scipy", reason="scipy cannot be imported")
pytest.importorskip("sglang", reason="sglang cannot be imported")
torch.set_num_threads(1)
