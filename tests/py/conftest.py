"""Finds the package beside the tests and the library under test, and holds the contexts the tests share."""
import os
import sys

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "python"))
# scripts/test.py names the library it has just built.
if "FLASHSAMPLING_LIB" in os.environ:
    os.environ.setdefault("FLASHSAMPLING_LIBRARY", os.environ["FLASHSAMPLING_LIB"])

import flashsampling as fs


@pytest.fixture(scope="session")
def reference():
    return fs.Context("reference")
