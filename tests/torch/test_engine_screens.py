"""Screens in the plug-ins for engines, on stand-ins, the CPU backend drawing: tokens are those without one, and it is a
screen of the head as it is now that decides them."""
import logging
import sys
import types

import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

import sglang_world
import vllm_standin
from sglang_steps import patched
from vllm_steps import module, request, sample

import flashsampling as fs
import flashsampling.sglang as fss
import flashsampling.vllm as fsv
from flashsampling._engine_head import make_screen
from flashsampling._engine_steps import screen_bits

VOCAB, DIM, ROWS, STEPS = 3000, 128, 3, 12  # so many rows are few enough for every CPU kernel


class VLLM:
    """Steps of vLLM's stand-in."""

    plugin, variable, logger, kind = fsv, "FLASHSAMPLING_VLLM_SCREEN", "vllm.flashsampling", vllm_standin.World

    def __init__(self, dtype=torch.bfloat16):
        self.world = self.kind(vocab=VOCAB, dim=DIM, slots=ROWS, dtype=dtype)
        self.lm_head = self.world.runner.model.lm_head
        for slot in range(ROWS):
            self.world.add(slot, request(seed=slot, temperature=(0.0, 0.7, 1.3)[slot]))

    def step(self, number):
        return sample(self.world, range(ROWS), shift=number).sampled_token_ids.flatten().tolist()

    @property
    def call(self):
        return self.world.runner._flashsampling.call

    counts = staticmethod(fsv._counts)


class SGLang(VLLM):
    plugin, variable, logger, kind = fss, "FLASHSAMPLING_SGLANG_SCREEN", "sglang.flashsampling", sglang_world.World

    def __init__(self, dtype=torch.bfloat16):
        self.world = self.kind(vocab=VOCAB, dim=DIM, dtype=dtype)
        self.lm_head = self.world.lm_head

    def step(self, number):
        requests = [sglang_world.Request(seed=row, temperature=(0.5, 0.7, 1.3)[row], position=number)
                    for row in range(ROWS)]
        return self.world.step(requests)[0].tolist()

    @property
    def call(self):
        return self.world.processor._flashsampling[id(self.lm_head)][0].call

    counts = fss._steps.counts


@pytest.fixture(params=[VLLM, SGLang])
def engine(request, module, patched):
    """A kind of engine, patched, with counts of its own."""
    fsv._counts.clear()
    return request.param


def drawn(world, screened):
    """Tokens of some steps; how many rows a screen has decided is what was expected."""
    tokens, rows = [], 0
    for number in range(STEPS):
        tokens += world.step(number)
        rows += world.call.context.counters.screened_rows
    assert rows == 0 if not screened else rows > STEPS * ROWS // 2, rows
    assert len(set(tokens)) > STEPS // 2
    return tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_tokens_are_those_without(engine, monkeypatch, caplog, bits, dtype):
    caplog.set_level(logging.INFO, engine.logger)
    want = drawn(engine(dtype), False)
    assert "screen" not in caplog.text
    monkeypatch.setenv(engine.variable, "off")
    assert drawn(engine(dtype), False) == want
    monkeypatch.setenv(engine.variable, str(bits))
    world = engine(dtype)
    assert drawn(world, True) == want and set(engine.counts) == {"fused"}
    size, weight = world.call.head.screen.nbytes, world.lm_head.weight
    lines = [line for line in caplog.messages if "screen" in line]
    assert lines == ["flashsampling: a screen of %d bits: %d bytes, the head has %d" % (
        bits, size, weight.numel() * weight.element_size())]
    assert size < weight.numel() * (1.2 if bits == 8 else 0.7)


def test_a_head_that_has_moved_gets_another(engine, monkeypatch, caplog):
    """One made of the weights that were there before would be refused, or give other tokens."""
    def move(world):
        world.step(0)
        weight = world.lm_head.weight
        world.lm_head.weight = torch.nn.Parameter(weight.flip(1).contiguous(), requires_grad=False)
        return weight  # kept, so that the new one is elsewhere

    caplog.set_level(logging.INFO, engine.logger)
    plain = engine()
    kept = [move(plain)]
    want = drawn(plain, False)
    monkeypatch.setenv(engine.variable, "8")
    world = engine()
    kept.append(move(world))
    assert drawn(world, True) == want and set(engine.counts) == {"fused"}
    assert len([line for line in caplog.messages if "a screen of 8 bits" in line]) == 2


@pytest.mark.parametrize("error", [fs.Error(-3, "no room"), torch.OutOfMemoryError("no room"), MemoryError("no room")])
def test_without_a_screen_draws_go_on(engine, monkeypatch, caplog, error):
    caplog.set_level(logging.INFO, engine.logger)
    want = drawn(engine(), False)
    monkeypatch.setenv(engine.variable, "8")
    monkeypatch.setattr(fs.Context, "screen", lambda *_: (_ for _ in ()).throw(error))
    assert drawn(engine(), False) == want and set(engine.counts) == {"fused"}
    assert [line for line in caplog.messages if "screen" in line] == ["flashsampling: no screen: %s" % error]


@pytest.mark.parametrize("value", ["5", "on", ""])
def test_what_is_no_number_of_bits_is_refused(engine, monkeypatch, value):
    monkeypatch.setenv(engine.variable, value)
    monkeypatch.setattr(fss, "_registered", False)
    finders = list(sys.meta_path)
    with pytest.raises(ValueError, match="%s is '%s', expected one of off, 8, 4" % (engine.variable, value)):
        engine.plugin.register()
    assert sys.meta_path == finders
    monkeypatch.setenv(engine.variable, "4")
    assert screen_bits(engine.variable) == 4


@pytest.mark.parametrize("dtype, width, first, why", [
    (torch.bfloat16, 64, 1000, "must begin at a multiple of 16 tokens, not at 1000"),
    (torch.float16, 64, 0, "it is f16 and 64 wide"), (torch.bfloat16, 60, 0, "it is bf16 and 60 wide")], ids=str)
def test_a_screen_that_nothing_would_read_is_not_made(caplog, dtype, width, first, why):
    weight = types.SimpleNamespace(is_cuda=True, dtype=dtype, shape=(VOCAB, width))
    head = types.SimpleNamespace(data=types.SimpleNamespace(keep=weight),
                                 struct=types.SimpleNamespace(first_token=first))
    assert make_screen(None, head, 8, logging.getLogger("vllm.flashsampling")) is None
    assert len(caplog.messages) == 1 and why in caplog.text


@pytest.mark.parametrize("bits", [0, 8])
def test_ranks_draw_the_same_steps_at_start_up(module, monkeypatch, bits):
    """Every step gathers from all ranks: one that could make no screen draws as many as the others."""
    class Rank(fsv.Drawer):
        def __init__(self, screen):
            self.device, self.ranks, self.bits, self.drawn = types.SimpleNamespace(type="cuda"), 2, bits, []
            self.call = types.SimpleNamespace(head=types.SimpleNamespace(screen=screen))

        def __call__(self, runner, hidden, batch, grammar, rules):
            self.drawn.append((batch, rules))

    made = types.SimpleNamespace(make_dummy=lambda rows, tokens, buffers: rows)
    monkeypatch.setattr(sys.modules["vllm.v1.worker.gpu.input_batch"], "InputBatch", made, raising=False)
    ranks = Rank(None), Rank(object() if bits else None)
    for rank in ranks:
        rank.reserve(types.SimpleNamespace(input_buffers=None), torch.zeros(20, 8))
    assert [rows for rows, _ in ranks[0].drawn] == [20, 20] + ([1, 16] if bits else [])
    assert ranks[0].drawn == ranks[1].drawn


def test_calls_that_need_every_logit_are_the_same(module, monkeypatch):
    """Logprobs and top-p read W, beside a screen as without."""
    outputs = []
    for value in ("off", "8"):
        monkeypatch.setenv(VLLM.variable, value)
        world = VLLM().world
        world.add(0, request(seed=1, logprobs=3))
        world.add(1, request(seed=2, top_p=0.8))
        for slots in ([0], [1], [0, 1, 2]):
            output = sample(world, slots)
            assert world.runner._flashsampling.call.context.counters.screened_rows == 0
            logprobs = output.logprobs_tensors
            outputs.append((output.sampled_token_ids.tolist(), logprobs and [each.tolist() for each in logprobs[:3]]))
    assert outputs[:3] == outputs[3:] and set(fsv.counts()) == {"fused"}


# -------------------------------------------------------------------------------------------- transformers ----

@pytest.fixture
def screened(monkeypatch):
    """How many rows of each call a screen has decided."""
    rows, stock = [], fs.Context.sample

    def counting(self, *args, **rules):
        result = stock(self, *args, **rules)
        rows.append(self.counters.screened_rows)
        return result

    monkeypatch.setattr(fs.Context, "sample", counting)
    return rows


def test_transformers(screened, monkeypatch, caplog):
    """patch(model, screen=...): made once, again for other weights, and the tokens are those without."""
    pytest.importorskip("transformers", reason="transformers cannot be imported")
    import hf_models as hf

    import flashsampling.transformers as fst

    def tokens(model):
        torch.manual_seed(3)
        del screened[:]
        return model.generate(**hf.prompts(), max_new_tokens=8, do_sample=True, top_k=0)[:, 7:].tolist()

    caplog.set_level(logging.INFO, "flashsampling")
    model, made, stock = hf.make("llama", torch.bfloat16), [], fs.Context.screen
    monkeypatch.setattr(fs.Context, "screen", lambda self, head, bits: made.append(bits) or stock(self, head, bits))
    want = tokens(fst.patch(model))
    assert not made and not any(screened)
    fst.patch(model, screen=8)
    for _ in range(2):
        assert tokens(model) == want and sum(screened) > 12
    assert made == [8] and caplog.text.count("a screen of 8 bits") == 1
    with torch.no_grad():
        model.lm_head.weight.mul_(-0.7)
    changed = tokens(model)
    assert made == [8, 8] and sum(screened) > 12
    model.lm_head.weight.data = model.lm_head.weight.data.clone()
    assert tokens(model) == changed and made == [8, 8, 8]
    assert tokens(fst.patch(model)) == changed != want and not any(screened)
    fst.unpatch(model)
    assert model not in fst._bits and model not in fst._screens
    with pytest.raises(ValueError, match="screen: 5, expected one of 0, 8, 4"):
        fst.patch(model, screen=5)
