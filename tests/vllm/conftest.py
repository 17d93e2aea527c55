"""Tests against the vLLM that is installed, on the CPU: its kernels run in Triton's interpreter (make test-vllm)."""
import os
import sys

import pytest

# Before vLLM is imported: no device, and kernels that run without one.
os.environ.update(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="1", FLASHSAMPLING_VLLM="off")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "torch"))
try:
    import flashsampling
except ImportError:
    sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))

torch = pytest.importorskip("torch", reason="torch cannot be imported")
pytest.importorskip("vllm", reason="vllm cannot be imported")
torch.set_num_threads(1)
