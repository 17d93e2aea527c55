"""Logits that a hook or a subclass of the model reads or changes: every token is drawn from what the model returned.

Tokens are compared with those of transformers under the same hook. Each test uses it from the first step, which
compares our logits with the model's, or from a later one, which does not.
"""
import copy
import logging
import weakref

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")

import hf_models as hf

import flashsampling.transformers as fst

ALLOWED, BANNED = 300, slice(0, 300)
FAMILIES = ["llama", "qwen3-tied", "gemma2-softcap", "cohere-scale", "granite-scale", "phi-bias"]


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "flashsampling"]


def generate(model, ours, **arguments):
    torch.manual_seed(3)
    more = {"custom_generate": fst.generate} if ours else {}
    arguments = {**hf.prompts(), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, **arguments}
    return model.generate(**arguments, **more)


def _in_place(x):
    x[..., BANNED] = -torch.inf
    return x


def _masked(x):
    return x.masked_fill_(torch.arange(hf.VOCAB) < ALLOWED, -torch.inf)


def _data(x):
    x.data[..., BANNED] = -torch.inf
    return x


def _view(x):
    x[:, -1][:, BANNED] = -torch.inf
    return x


def _numpy(x):
    x.detach().numpy()[..., BANNED] = -torch.inf
    return x


def _plus(x):
    x += torch.where(torch.arange(hf.VOCAB) < ALLOWED, -1e9, 0.0)
    return x


def _one_row(x):
    x[1, :, BANNED] = -torch.inf
    return x


def _each_row(x):
    """One other set of tokens for each row."""
    rows = torch.arange(3)[:, None, None]
    return x + torch.where(torch.arange(hf.VOCAB) % 3 == rows, -1e9, 0.0)


def _aside(x):
    """A tensor made of logits before they are changed keeps the old ones."""
    half = x * 0.5
    x[..., BANNED] = -torch.inf
    return half


def _copy(x):
    other = x.clone()
    other[..., BANNED] = -torch.inf
    return other


@torch.jit.script
def _scripted(x):
    return torch.cat([torch.full_like(x[..., :300], -1e9), x[..., 300:]], -1)


EDITS = {
    "in place": _in_place, "masked": _masked, "data": _data, "view": _view, "numpy": _numpy, "plus": _plus,
    "one row": _one_row, "each row": _each_row, "aside": _aside, "copy": _copy, "scripted": _scripted,
    "bias": lambda x: x + torch.linspace(0, 40, hf.VOCAB),
    "where": lambda x: torch.where(torch.arange(hf.VOCAB) < ALLOWED, -torch.inf, x),
    "other tensor": lambda x: torch.linspace(0, 1, hf.VOCAB).roll(x.shape[0]).expand(x.shape).clone(),
    "by rank": lambda x: torch.where(x == x.amax(-1, keepdim=True), -1e9, x),
}


class From:
    """A hook that changes logits from its step `first` on: of the model's output, or of a tensor."""

    def __init__(self, change, first=0):
        self.change, self.first, self.step = change, first, -1

    def __call__(self, module, inputs, output):
        self.step += 1
        if self.step < self.first:
            return output
        if isinstance(output, torch.Tensor):
            return self.change(output)
        output.logits = self.change(output.logits)
        return output


def on_model(model, hook):
    return model.register_forward_hook(hook)


def on_head(model, hook):
    return model.get_output_embeddings().register_forward_hook(hook)


def by_subclass(model, hook):
    class Changed(type(model)):
        def forward(self, *args, **kwargs):
            return hook(self, None, super().forward(*args, **kwargs))

    model.__class__ = Changed


def with_hook(family, place, make_hook, known=False, **arguments):
    """Tokens of transformers and of us under the hook, in models of their own; `known`: one that has been served."""
    outputs = []
    for ours in (False, True):
        model = hf.make(family)
        if known:
            generate(model, True, max_new_tokens=1)
        place(model, make_hook())
        outputs.append(generate(model, ours, **arguments))
    return outputs


# ---------------------------------------------------------------------------------------------------------- edits ----

@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("edit", EDITS)
def test_changed_logits_are_drawn_from(edit, first, caplog):
    plain = generate(hf.make(), False)
    stock, ours = with_hook("llama", on_model, lambda: From(EDITS[edit], first))
    assert torch.equal(stock, ours)
    assert edit == "aside" or not torch.equal(stock, plain)
    line, = lines(caplog)
    assert "the model's forward, or a hook, re" in line


@pytest.mark.parametrize("place", [on_model, on_head, by_subclass])
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("first", [0, 4])
def test_banned_tokens_are_not_drawn(place, known, first, caplog):
    stock, ours = with_hook("llama", place, lambda: From(_in_place, first), known, do_sample=True, temperature=3.0)
    assert (ours[:, 7 + first:] >= ALLOWED).all() and len(lines(caplog)) == 1
    assert torch.equal(stock, ours) or first  # from the first step on transformers' own tokens, with its seed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [on_model, on_head])
@pytest.mark.parametrize("edit", ["in place", "each row"])
def test_families(family, place, edit, caplog):
    """Also an edit between the output embedding and the scale, or the soft-cap, behind it."""
    stock, ours = with_hook(family, place, lambda: From(EDITS[edit], 2))
    assert torch.equal(stock, ours) and len(lines(caplog)) == 1


def test_a_hook_that_is_registered_and_removed_within_a_call(caplog):
    """By a stopping rule, after the third token and after the fifth."""
    outputs = []
    for ours in (False, True):
        model, handles = hf.make(), []

        def turn(input_ids, scores, **_):
            if input_ids.shape[1] == 7 + 3:
                handles.append(on_model(model, From(_in_place)))
            if input_ids.shape[1] == 7 + 5:
                handles.pop().remove()
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        outputs.append(generate(model, ours, stopping_criteria=[turn]))
    assert torch.equal(*outputs) and (outputs[1][:, 10:12] >= ALLOWED).all() and len(lines(caplog)) == 1


def test_two_forwards_that_are_combined(caplog):
    """Guidance: what a second forward, of other ids, computes is not taken for the first one's."""
    class Guided(transformers.LlamaForCausalLM):
        def forward(self, input_ids, **kwargs):
            kwargs.update(use_cache=False, past_key_values=None)
            one = super().forward(input_ids, **kwargs)
            two = super().forward(input_ids.flip(0), **kwargs)
            if self.combined:
                one.logits = one.logits + 1.5 * (one.logits - two.logits)
            return one

    for combined in (True, False):
        model = hf.make()
        model.__class__, model.combined = Guided, combined
        inputs = dict(input_ids=hf.prompts()["input_ids"], attention_mask=None, use_cache=False)
        assert torch.equal(generate(model, False, **inputs), generate(model, True, **inputs))
        assert len(lines(caplog)) == combined
        caplog.clear()


# ------------------------------------------------------------------------------------------------- what hooks see ----

@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_reads_the_logits_of_transformers(family, caplog):
    """With their shape, dtype and device, and every number; reading them leaves the step to transformers."""
    seen = {}
    for ours in (False, True):
        model, found = hf.make(family, torch.bfloat16), seen.setdefault(ours, [])
        generate(model, ours, max_new_tokens=1)
        on_model(model, lambda _, inputs, out: found.append(
            (out.logits.shape, out.logits.dtype, out.logits.device, out.logits.tolist())))
        tokens = generate(model, ours)
        found.append(tokens.tolist())
    assert seen[True] == seen[False] and len(seen[True]) == 9
    line, = lines(caplog)
    assert line.endswith("read or changed logits: torch.Tensor.tolist")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_that_needs_no_number_leaves_draws_fused(family, caplog):
    shapes = []
    stock, ours = with_hook(family, on_model, lambda: lambda _, inputs, out: shapes.append(
        (out.logits.shape, out.logits.dim(), out.logits.numel(), len(out.logits), out.logits.dtype, out.logits.device)))
    assert torch.equal(stock, ours) and shapes[:8] == shapes[8:] and lines(caplog) == []


def test_logits_that_a_hook_keeps_can_be_read_later(caplog):
    """After the generation, when nothing is drawn from them any more."""
    model, kept, ours, stock = hf.make("gemma2-softcap"), [], [], []
    for found, fused in ((ours, True), (stock, False)):
        handle = on_model(model, lambda _, inputs, out: found.append(out.logits))
        kept.append(generate(model, fused))
        handle.remove()
    assert torch.equal(*kept) and len(ours) == 8 and lines(caplog) == []
    for one, other in zip(ours, stock):
        assert one.shape == other.shape and torch.equal(copy.deepcopy(one), other) and not one.requires_grad


def test_hidden_states_of_a_step_are_gone_at_the_next_one(caplog):
    """Those of a prompt may be large; and a captured graph writes to the same memory again."""
    model, found, alive = hf.make(), [], []

    def hook(module, inputs):
        alive.append([reference() is not None for reference in found])
        found.append(weakref.ref(inputs[0]))

    model.lm_head.register_forward_pre_hook(hook)
    generate(model, True, max_new_tokens=3)
    assert alive == [[], [False], [False, False]] and lines(caplog) == []


def test_a_hook_that_runs_the_model_itself(caplog):
    """Within a step: its logits are its own, and the step's are as before."""
    widths = []

    def make_hook():
        busy = []

        def hook(module, inputs, out):
            if not busy:
                busy.append(1)
                widths.append(module(torch.tensor([[5, 6]])).logits.argmax(-1).tolist())
                busy.clear()

        return hook

    stock, ours = with_hook("llama", on_model, make_hook)
    assert torch.equal(stock, ours) and lines(caplog) == [] and widths[:8] == widths[8:]


@pytest.mark.parametrize("first", [0, 3])
def test_pre_hooks_change_what_is_drawn_from_and_leave_it_fused(first, caplog):
    def shifted(hidden):
        return hidden + torch.linspace(-3, 3, 64)

    def make_hook(change):
        steps = []

        def hook(module, inputs):
            steps.append(1)
            return (change(inputs[0]),) if len(steps) > first else inputs

        return hook

    plain = generate(hf.make(), False)
    stock, ours = with_hook("llama", lambda model, hook: model.lm_head.register_forward_pre_hook(hook),
                            lambda: make_hook(shifted))
    assert torch.equal(stock, ours) and not torch.equal(stock, plain) and lines(caplog) == []

    def flipped(model, hook):
        model.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "input_ids": hook(module, [kwargs["input_ids"]])[0]}),
            with_kwargs=True)

    stock, ours = with_hook("llama", flipped, lambda: make_hook(lambda ids: ids.flip(0)))
    assert torch.equal(stock, ours) and not torch.equal(stock, plain) and lines(caplog) == []


# ------------------------------------------------------------------------------------------------------- the law ----

def law_at_the_second_token(change, caplog):
    """p of the second tokens after a forced first one, under a hook from the second step, and of the law without it."""
    pytest.importorskip("scipy", reason="scipy cannot be imported")
    from test_transformers_draws import p_value

    prompt, draws = hf.prompts(1, 4), 8192
    arguments = dict(top_k=0, temperature=2.0, begin_suppress_tokens=[i for i in range(hf.VOCAB) if i != 200])
    model = hf.make(num_hidden_layers=1)
    generate(model, True, max_new_tokens=1)
    with torch.no_grad():
        longer = torch.cat([prompt["input_ids"], torch.tensor([[200]])], -1)
        logits = model(longer).logits[:, -1:].double()
    on_model(model, From(change, 1))
    out = generate(model, True, **prompt, max_new_tokens=2, do_sample=True, num_return_sequences=draws, **arguments)
    assert (out[:, -2] == 200).all()
    return [p_value(out[:, -1].numpy(), torch.softmax(x[0, 0] / 2.0, -1)) for x in (change(logits), logits)]


def test_the_step_in_which_a_change_is_seen_follows_its_law(caplog):
    right, wrong = law_at_the_second_token(lambda x: x.index_fill(-1, torch.arange(0, 300, 2), -torch.inf), caplog)
    assert right > 1e-6 > wrong and len(lines(caplog)) == 1


def test_a_scale_that_comes_in_the_middle_is_drawn_with(caplog):
    right, wrong = law_at_the_second_token(lambda x: x * 1.5, caplog)
    assert right > 1e-6 > wrong and lines(caplog) == []


# ------------------------------------------------------------------------------------------ biases of whole models ----

@pytest.mark.parametrize("bias", [0.0, 4.0])
def test_a_bias_that_a_model_adds_behind_its_head(bias, caplog):
    """BART's, which is 0 in nearly all of its checkpoints: then it is served."""
    config = transformers.BartConfig(vocab_size=hf.VOCAB, d_model=64, encoder_layers=1, decoder_layers=2,
                                     encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
                                     decoder_ffn_dim=96, init_std=0.5, max_position_embeddings=64, eos_token_id=None,
                                     forced_eos_token_id=None)
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(config).eval()
    model.final_logits_bias[0, 50:80] = bias
    outputs = [generate(model, ours, num_beams=1, eos_token_id=None) for ours in (False, True)]
    assert torch.equal(*outputs)
    assert [("not by a scale or a soft-cap" in line) for line in lines(caplog)] == [True] * bool(bias)
    caplog.clear()
    model.final_logits_bias[0, 90:] = 60.0  # changed in place, which the next call sees
    outputs = [generate(model, ours, num_beams=1, eos_token_id=None) for ours in (False, True)]
    assert torch.equal(*outputs) and (outputs[1][:, 1:] >= 90).all()


# ----------------------------------------------------------------------------------------------------------- NaN ----

def spoil(model, rows, steps=(0,)):
    """Hidden states of some rows become NaN in some steps."""
    count = []

    def hook(module, inputs, out):
        count.append(1)
        if len(count) - 1 in steps:
            out.last_hidden_state[rows] = torch.nan

    return model.model.register_forward_hook(hook)


@pytest.mark.parametrize("rows", [[0, 1, 2], [1]], ids=["all", "one"])
@pytest.mark.parametrize("do_sample", [True, False])
def test_a_nan_in_the_first_call_does_not_disable_the_model(rows, do_sample, caplog):
    """transformers raises where it samples, and takes the NaN where it does not; so do we. The next call is fused."""
    outputs, model = [], hf.make()
    for ours in (False, True):
        handle = spoil(model, rows)
        if do_sample:
            with pytest.raises(RuntimeError, match="probability tensor contains"):
                generate(model, ours, do_sample=True)
        else:
            outputs.append(generate(model, ours))
        handle.remove()
    assert do_sample or torch.equal(*outputs)
    assert len(lines(caplog)) == 1
    caplog.clear()
    seen = []
    on_head(model, lambda module, inputs, out: seen.append(out))
    assert torch.equal(generate(model, True), generate(model, False))
    assert seen[0].source.drawn and lines(caplog) == []


def test_a_nan_in_a_later_step(caplog):
    outputs = []
    for ours in (False, True):
        model = hf.make()
        handle = spoil(model, [1], (3,))
        outputs.append(generate(model, ours))
        handle.remove()
        spoil(model, [1], (3,))
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            generate(model, ours, do_sample=True)
    assert torch.equal(*outputs)
    line, = lines(caplog)
    assert line.endswith("rows have no distribution: NAN") or line.endswith("rows have no distribution: EMPTY NAN")


def test_one_token_that_is_nan(caplog):
    """Not skipped: transformers would not draw from such a row either."""
    model = hf.make()
    generate(model, True, max_new_tokens=1)
    with torch.no_grad():
        model.lm_head.weight[77] = torch.nan
    for ours in (False, True):
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            generate(model, ours, do_sample=True)
        assert (generate(model, ours)[:, 7:] == 77).all()
    assert len(lines(caplog)) == 1


# ------------------------------------------------------------------------------------------------------- the log ----

def test_each_reason_is_logged_once_for_each_model(caplog):
    one, other = fst.patch(hf.make()), fst.patch(hf.make())
    with caplog.at_level(logging.INFO, "flashsampling"):
        for _ in range(3):
            one.generate(**hf.prompts(), max_new_tokens=2, do_sample=True, typical_p=0.5)
        assert len(lines(caplog)) == 1
        other.generate(**hf.prompts(), max_new_tokens=2, do_sample=True, typical_p=0.5)
        one.generate(**hf.prompts(), max_new_tokens=2, do_sample=True, epsilon_cutoff=0.01)
        one.generate(**hf.prompts(), max_new_tokens=2, num_beams=2)
        one.generate(**hf.prompts(), max_new_tokens=2, num_beams=2)
    assert [line.split(": ")[1].split()[0] for line in lines(caplog)] == [
        "TypicalLogitsWarper", "TypicalLogitsWarper", "EpsilonLogitsWarper", "beam_search"]


def test_generate_batch_says_that_it_is_not_fused(caplog, monkeypatch):
    """Its manager is not started: it wants a GPU."""
    asked = []
    monkeypatch.setattr(transformers.LlamaForCausalLM, "init_continuous_batching",
                        lambda self, *args, **named: asked.append((args, named)))
    model = fst.patch(hf.make())
    model.init_continuous_batching(generation_config=None)
    model.init_continuous_batching(generation_config=None)
    line, = lines(caplog)
    assert "generate_batch" in line and asked == [((), {"generation_config": None})] * 2
