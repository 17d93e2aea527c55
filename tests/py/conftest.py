"""Finds the package beside the tests (the installed one where FS_INSTALLED is set) and holds the contexts tests use."""
import os
import sys

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
if not os.environ.get("FS_INSTALLED"):
    sys.path.insert(0, os.path.join(ROOT, "python"))

import flashsampling as fs


@pytest.fixture(scope="session")
def reference():
    return fs.Context("reference")


@pytest.fixture
def context():
    """One that a test may break or close."""
    return fs.Context("reference")
