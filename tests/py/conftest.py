"""Finds the package beside the tests and holds the context the tests share."""
import os
import sys

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "python"))

import flashsampling as fs


@pytest.fixture(scope="session")
def reference():
    return fs.Context("reference")
