"""What is left to transformers: one line to the log says why, and the tokens are those that it draws without us."""
import logging

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")

import hf_models as hf
from transformers.generation import logits_process

import flashsampling.transformers as fst


def stock_and_ours(model, patched=False, **arguments):
    """Tokens of both, with one seed."""
    outputs = []
    for ours in (False, True):
        torch.manual_seed(3)
        more = {"custom_generate": fst.generate} if ours and not patched else {}
        if ours and patched:
            fst.patch(model)
        out = model.generate(**{**hf.prompts(), "max_new_tokens": 6, "do_sample": True, "pad_token_id": 0, **arguments},
                             **more)
        outputs.append(getattr(out, "sequences", out))
    fst.unpatch(model)
    return outputs


def check(caplog, reason, model, patched=False, **arguments):
    """That stock's tokens come out and exactly one line says this reason."""
    with caplog.at_level(logging.INFO, "flashsampling"):
        stock, ours = stock_and_ours(model, patched, **arguments)
    lines = [r.getMessage() for r in caplog.records if r.name == "flashsampling"]
    assert len(lines) == 1 and lines[0].startswith("transformers draws this itself, from stored logits: "), lines
    assert reason in lines[0]
    assert torch.equal(stock, ours)


class Mine(transformers.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores * 0.5


REASONS = {
    "output_scores asks": dict(output_scores=True, return_dict_in_generate=True),
    "output_logits asks": dict(output_logits=True, return_dict_in_generate=True),
    "beam_search": dict(num_beams=2, do_sample=False),
    "beam_sample": dict(num_beams=2),
    "assisted_generation": dict(prompt_lookup_num_tokens=2, input_ids=torch.tensor([[9, 8, 7, 9, 8]]),
                                attention_mask=None),
    "TypicalLogitsWarper": dict(typical_p=0.5),
    "EpsilonLogitsWarper": dict(epsilon_cutoff=0.01),
    "EtaLogitsWarper": dict(eta_cutoff=0.01),
    "TopHLogitsWarper": dict(top_h=0.4),
    "NoRepeatNGramLogitsProcessor": dict(no_repeat_ngram_size=2),
    "EncoderRepetitionPenaltyLogitsProcessor": dict(encoder_repetition_penalty=1.5),
    "EncoderNoRepeatNGramLogitsProcessor": dict(encoder_no_repeat_ngram_size=2),
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": dict(guidance_scale=1.5),
    "WatermarkLogitsProcessor": dict(watermarking_config=transformers.WatermarkingConfig(bias=2.5)),
    "PrefixConstrainedLogitsProcessor": dict(prefix_allowed_tokens_fn=lambda row, ids: list(range(50))),
    "InfNanRemoveLogitsProcessor": dict(remove_invalid_values=True),
    "ExponentialDecayLengthPenalty": dict(exponential_decay_length_penalty=(2, 1.1), eos_token_id=5),
    "SequenceBiasLogitsProcessor has sequences of more than one token, [4, 5]": dict(sequence_bias=[[[4, 5], 2.0]]),
    "NoBadWordsLogitsProcessor has sequences of more than one": dict(bad_words_ids=[[3], [7, 9]]),
    "Mine is none of our rules": dict(logits_processor=[Mine()]),
    "TopKLogitsWarper has filter_value -1000000.0": dict(
        logits_processor=[logits_process.TopKLogitsWarper(5, filter_value=-1e6)], top_k=0),
    "TopPLogitsWarper has min_tokens_to_keep 3": dict(
        logits_processor=[logits_process.TopPLogitsWarper(0.1, min_tokens_to_keep=3)], top_k=0),
    "TemperatureLogitsWarper comes after TemperatureLogitsWarper": dict(
        logits_processor=[logits_process.TemperatureLogitsWarper(2.0)], temperature=0.5),
    "RepetitionPenaltyLogitsProcessor comes after SuppressTokensLogitsProcessor": dict(
        logits_processor=[logits_process.RepetitionPenaltyLogitsProcessor(2.0)], suppress_tokens=[4]),
}


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "direct"])
@pytest.mark.parametrize("reason", REASONS)
def test_what_is_no_rule_of_ours_is_left_to_transformers(reason, patched, caplog):
    check(caplog, reason, hf.make(), patched, **REASONS[reason])


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "direct"])
def test_an_assistant_model(patched, caplog):
    inputs = dict(input_ids=torch.tensor([[9, 8, 7, 9, 8]]), attention_mask=torch.ones(1, 5, dtype=torch.long))
    check(caplog, "assisted_generation", hf.make(), patched, assistant_model=fst.patch(hf.make(seed=4)), **inputs)


def test_rules_of_a_user_in_our_order_are_served(caplog):
    """The same class of processor, whoever made it."""
    processors = [logits_process.SuppressTokensLogitsProcessor([7, 8]), logits_process.TemperatureLogitsWarper(0.7)]
    hf.make().generate(**hf.prompts(), max_new_tokens=3, do_sample=True, logits_processor=processors,
                       custom_generate=fst.generate)
    assert caplog.records == []


def test_what_is_neither_ours_nor_in_transformers_any_more_is_an_error():
    with pytest.raises(ValueError, match="custom_generate: contrastive_search needs its own"):
        hf.make().generate(**hf.prompts(), penalty_alpha=0.6, top_k=4, max_new_tokens=3, custom_generate=fst.generate)


# ------------------------------------------------------------------------------------------------------- the head ----

def test_a_head_that_doubles_its_logits_is_refused(caplog):
    """By what it computes: nothing says that it was wrapped. The verdict is kept."""
    model = hf.make()
    linear = model.lm_head.forward
    model.lm_head.forward = lambda hidden: 2 * linear(hidden)
    check(caplog, "logits are not the model's own: token ", model)
    caplog.clear()
    assert torch.equal(*stock_and_ours(model, True)) and caplog.records == []  # the reason was logged before
    del model.lm_head.forward
    model.generate(**hf.prompts(), max_new_tokens=2, custom_generate=fst.generate)
    assert caplog.records == []


def test_a_head_wrapped_after_it_was_proven_is_refused(caplog):
    model = hf.make()
    model.generate(**hf.prompts(), max_new_tokens=2, custom_generate=fst.generate)
    linear = model.lm_head.forward
    model.lm_head.forward = lambda hidden: linear(hidden) + 1e-2 * hidden[..., :1]
    check(caplog, "logits are not the model's own: token ", model)


@pytest.mark.parametrize("family, change", [
    ("cohere-scale", lambda model: setattr(model, "logit_scale", 0.6)),
    ("granite-scale", lambda model: setattr(model.config, "logits_scaling", 3.0)),
    ("gemma2-softcap", lambda model: setattr(model.config, "final_logit_softcapping", 6.0)),
])
def test_a_scale_that_is_changed_after_it_was_found_is_found_anew(family, change, caplog):
    model = fst.patch(hf.make(family))

    def found():
        model.generate(**hf.prompts(), max_new_tokens=1, do_sample=True)
        proof = fst._known[model][1]
        return proof["softcap"] or proof["scale"]

    first, again = found(), found()
    change(model)
    assert first == again and found() == pytest.approx(2 * first) and caplog.records == []


def test_a_small_error_of_the_head_is_refused(caplog):
    """One part in a hundred, of one token in 331."""
    model = hf.make()
    linear, factor = model.lm_head.forward, torch.ones(hf.VOCAB)
    factor[hf.VOCAB - 1] = 1.01
    model.lm_head.forward = lambda hidden: linear(hidden) * factor
    check(caplog, "logits are not the model's own: token 330", model)


def rewritten(change, **more):
    """A model whose forward changes its logits after the output embedding, in a way no configuration speaks of."""
    class Changed(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = change(out.logits)
            return out

    model = hf.make(**more)
    model.__class__ = Changed
    return model


@pytest.mark.parametrize("change", [
    lambda x: x + 1.0, lambda x: x * -1.0, lambda x: torch.tanh(torch.tanh(x)), lambda x: torch.tanh(x + 1.0)],
    ids=["shifted", "negated", "capped-twice", "capped-aside"])
def test_steps_behind_the_head_that_are_no_scale_and_no_softcap_are_refused(change, caplog):
    check(caplog, "and not by a scale or a soft-cap: ", rewritten(change))


@pytest.mark.parametrize("change,function", [
    (lambda x: x**3, "__pow__"), (lambda x: -x, "neg"), (lambda x: torch.where(x > 100, 100.0, x), "gt"),
    (lambda x: x.clamp(-50, 50), "clamp"), (lambda x: torch.cat([x[..., :9] - 5, x[..., 9:]], -1), "__getitem__"),
    (lambda x: x.log_softmax(-1), "log_softmax"), (lambda x: x.index_fill(-1, torch.tensor([77]), -torch.inf),
                                                   "index_fill"),
    (lambda x: x[..., :200], "__getitem__"), (lambda x: torch.cat([x, x[..., :1]], -1), "__getitem__"),
], ids=["cubed", "negated", "clipped", "clamped", "some-shifted", "normalised", "one-masked", "fewer", "more"])
def test_unknown_changes_behind_the_head_are_refused_even_where_logits_are_small(change, function, caplog):
    """Clipped at 100, no logit of these prompts shows it."""
    check(caplog, "read or changed logits: torch.Tensor.%s" % function, rewritten(change))


def test_scales_and_softcaps_of_any_name_are_served(caplog):
    for change in (lambda x: x * 0.37, lambda x: 20 * torch.tanh(x * 0.5 / 20), lambda x: 2 * (7 * torch.tanh(x / 7))):
        model, outputs = rewritten(change), []
        for more in ({}, {"custom_generate": fst.generate}):
            outputs.append(model.generate(**hf.prompts(), max_new_tokens=30, do_sample=False, **more))
        assert torch.equal(*outputs)
    assert caplog.records == []


class Functional(transformers.LlamaForCausalLM):
    """Multiplies by the weight of its head without calling it, once it has called it `calls` times."""

    calls = 0

    def forward(self, *args, logits_to_keep=0, **kwargs):
        if self.calls:
            self.calls -= 1
            return super().forward(*args, logits_to_keep=logits_to_keep, **kwargs)
        out = self.model(*args, **{k: v for k, v in kwargs.items() if k != "return_dict"})
        logits = torch.nn.functional.linear(out.last_hidden_state, self.lm_head.weight)
        return transformers.modeling_outputs.CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)


@pytest.mark.parametrize("calls", [0, 2])
def test_a_head_that_forward_does_not_call(calls, caplog):
    """Not at all, or no more: hidden states of an earlier step are not drawn from again."""
    model = hf.make()
    model.__class__ = Functional
    arguments = dict(**hf.prompts(), max_new_tokens=8, do_sample=False)
    stock = model.generate(**arguments)
    model.calls = calls
    ours = model.generate(**arguments, custom_generate=fst.generate)
    assert torch.equal(stock, ours) and model.calls == 0
    assert [("did not call its output embedding" in r.getMessage()) for r in caplog.records] == [True]


class Quantised(torch.nn.Linear):
    """Stands for a layer of weights in 8 bits: a Linear whose forward is its own."""

    def forward(self, hidden):
        weight = (self.weight * 127).round() / 127
        return torch.nn.functional.linear(hidden, weight)


class Lora(torch.nn.Module):
    """Stands for an adapter around a Linear."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.weight = base, base.weight

    def forward(self, hidden):
        return self.base_layer(hidden)


def test_quantised_and_adapted_heads(caplog):
    model = hf.make()
    layer = Quantised(64, hf.VOCAB, bias=False)
    layer.weight = model.lm_head.weight
    model.lm_head = layer
    check(caplog, "lm_head is a test_transformers_stock.Quantised, not a torch.nn.Linear", model)
    caplog.clear()
    model = hf.make()
    model.lm_head = Lora(model.lm_head)
    check(caplog, "lm_head is a test_transformers_stock.Lora, not a torch.nn.Linear", model)


def test_a_head_of_another_linear_is_named_by_its_module(caplog):
    """torch.ao.nn.quantized.dynamic has a Linear too; what is logged must tell the two apart."""
    model = hf.make()
    model.lm_head = type("Linear", (Lora,), {"__module__": "torch.ao.nn.quantized"})(model.lm_head)
    check(caplog, "lm_head is a torch.ao.nn.quantized.Linear, not a torch.nn.Linear", model)


def test_heads_of_other_types_and_layouts(caplog):
    check(caplog, "the output embedding's weight is of type float64", hf.make(dtype=torch.float64))
    caplog.clear()
    model = hf.make()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().t().contiguous().t())
    check(caplog, "weight has shape [331, 64], strides [1, 331]", model)
    caplog.clear()
    model = hf.make()
    torch.nn.utils.parametrizations.weight_norm(model.lm_head)
    check(caplog, "weight is a Tensor of a Tensor, not a plain parameter", model)


def test_a_model_with_a_loop_of_its_own(caplog):
    class Own(transformers.LlamaForCausalLM):
        def _sample(self, *args, **kwargs):
            return super()._sample(*args, **kwargs)

    model = hf.make()
    model.__class__ = Own
    check(caplog, "Own has a decoding loop of its own", model, True)


def test_autocast(caplog):
    with torch.autocast("cpu", torch.bfloat16):
        check(caplog, "autocast is on", hf.make())


def test_a_compiled_forward_in_one_graph(caplog):
    config = transformers.CompileConfig(backend="eager", mode=None, fullgraph=True)
    check(caplog, "compile_config.fullgraph", hf.make(), compile_config=config)


def test_what_the_backend_does_not_do_is_said_in_its_words(caplog, monkeypatch):
    asked = []

    def refuse(backend, **call):
        asked.append((backend, call))
        return False, "top-p is not there yet"

    monkeypatch.setattr(fst, "supports", refuse)
    check(caplog, "backend cpu: top-p is not there yet", hf.make(), top_p=0.9, repetition_penalty=1.5, min_p=0.1)
    (backend, call), = asked
    assert backend == "cpu" and call["dtype"] == "f32"
    assert call["rules"] == ["top_k", "top_p", "min_p", "penalties"]
    assert call["flags"] == ["keep_ties_top_k", "min_p_last"]
