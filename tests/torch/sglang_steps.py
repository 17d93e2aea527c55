"""A patched stand-in, for the tests of flashsampling.sglang."""
import functools

import pytest
import sglang_standin as standin
from sglang_world import draw_by_law

import flashsampling.sglang as fss


def setup(monkeypatch, later=False, backend="flashinfer", **more):
    monkeypatch.setattr(fss, "_registered", False)
    fss._steps.counts.clear()
    draw = functools.partial(draw_by_law, backend=backend)
    standin.install(monkeypatch.setitem, draw, later, backend, **more)
    fss.register()
    standin.HookRegistry.apply_hooks()


@pytest.fixture(params=[False, True], ids=["0.5.17", "0.5.23"])
def both(request, monkeypatch):
    setup(monkeypatch, request.param)


@pytest.fixture
def patched(monkeypatch):
    setup(monkeypatch)
