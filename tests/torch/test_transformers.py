"""generate() of transformers with our draws: greedy tokens are its own, and so is everything around a token."""
import copy
import gc
import logging
import pickle
import threading
import weakref

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")

import hf_models as hf
from torch.utils._python_dispatch import TorchDispatchMode

import flashsampling.transformers as fst


@pytest.fixture
def silent(caplog):
    """Fails the test if a call was left to transformers."""
    with caplog.at_level(logging.INFO, "flashsampling"):
        yield
    assert [r.getMessage() for r in caplog.records if r.name == "flashsampling"] == []


def both(model, **arguments):
    """What transformers generates, and what we do, with one seed."""
    outputs = []
    for more in ({}, {"custom_generate": fst.generate}):
        torch.manual_seed(3)
        outputs.append(model.generate(**arguments, **more))
    return outputs


class Widths(TorchDispatchMode):
    """Notes the last dimension of every matrix that is made, by torch's lowest layer."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.seen.update(t.shape[-1] for t in torch.utils._pytree.tree_leaves(out)
                         if isinstance(t, torch.Tensor) and t.dim() > 1)
        return out


# ------------------------------------------------------------------------------------------------- greedy tokens ----

# A model that rounds behind its soft-cap is in the next test.
@pytest.mark.parametrize("family,dtype", [(f, d) for f in hf.FAMILIES for d in ("float32", "bfloat16", "float16")
                                          if d == "float32" or "softcap" not in f])
def test_greedy_tokens_are_those_of_transformers(family, dtype, silent):
    stock, ours = both(hf.make(family, getattr(torch, dtype)), **hf.prompts(), max_new_tokens=48, do_sample=False)
    assert stock.shape == (3, 7 + 48) and torch.equal(stock, ours)
    assert len(set(stock[:, 7:].flatten().tolist())) > 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_greedy_tokens_behind_a_rounded_softcap_are_largest_up_to_rounding(dtype, silent):
    model, inputs = hf.make("gemma2-softcap", getattr(torch, dtype)), hf.prompts()
    ours = model.generate(**inputs, max_new_tokens=24, do_sample=False, custom_generate=fst.generate)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 24), value=1)
    with torch.no_grad():
        logits = model(ours, attention_mask=mask).logits[:, 6:-1].double()
    missing = logits.max(-1).values - logits.gather(-1, ours[:, 7:, None])[..., 0]
    assert missing.max() <= 4 * torch.finfo(getattr(torch, dtype)).eps * logits.abs().max()


def test_what_a_model_does_behind_its_output_embedding_is_found():
    """Scales and soft-caps come from numbers sent through the model, not from its name."""
    found = {}
    for family in hf.FAMILIES:
        model = hf.make(family, torch.bfloat16)
        model.generate(**hf.prompts(1), max_new_tokens=1, do_sample=False, custom_generate=fst.generate)
        proof = fst._known[model][1]
        found[family] = proof["scale"], proof["softcap"]
    expected = {family: (1.0, 0.0) for family in hf.FAMILIES}
    expected.update({"gemma2-softcap": (1.0, 3.0), "gemma3-softcap": (1.0, 5.0)})
    expected.update({"cohere-scale": (pytest.approx(0.3, rel=1e-7), 0.0)})
    expected.update({"granite-scale": (pytest.approx(1 / 6, rel=1e-7), 0.0)})
    assert found == expected


# ------------------------------------------------------------------------------------------------------ no logits ----

@pytest.mark.parametrize("family", ["llama", "gemma2-softcap", "gptj-bias"])
def test_no_tensor_of_logits_is_made(family, silent):
    """After the first call, which compares; in prefill as in decoding. Stock makes one, and the mode sees it."""
    model, inputs = hf.make(family), hf.prompts(2, 60)
    fst.patch(model).generate(**inputs, max_new_tokens=1, do_sample=True)
    with Widths() as fused:
        model.generate(**inputs, max_new_tokens=4, do_sample=True, top_p=0.9, repetition_penalty=1.2)
    assert not fused.seen & {hf.VOCAB, 2 * hf.VOCAB} and 64 in fused.seen
    fst.unpatch(model)
    with Widths() as stock:
        model.generate(**inputs, max_new_tokens=4, do_sample=True, top_p=0.9)
    assert hf.VOCAB in stock.seen


def test_the_head_sees_the_last_positions_alone(monkeypatch, silent):
    """Also where forward() has no logits_to_keep, and transformers computes logits of the whole prompt."""
    model, shapes = hf.make(), []
    monkeypatch.setattr(type(model), "_supports_logits_to_keep", lambda self: False)
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, *a: shapes.append((x, a)) or linear(x, *a))
    model.generate(**hf.prompts(2, 60), max_new_tokens=3, do_sample=False, custom_generate=fst.generate)
    assert [list(x.shape) for x, a in shapes if a[0].shape[0] == hf.VOCAB] == [[2, 1, 64]]
    del shapes[:]
    model.generate(**hf.prompts(2, 60), max_new_tokens=3, do_sample=False)
    assert [2, 60, 64] in [list(x.shape) for x, a in shapes if a[0].shape[0] == hf.VOCAB]


# --------------------------------------------------------------------------------------------------- reproducible ----

def test_a_seed_reproduces_and_another_does_not(silent):
    model, outputs = hf.make(), []
    with fst.patch(model):
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            outputs.append(model.generate(**hf.prompts(), max_new_tokens=20, do_sample=True))
        outputs.append(model.generate(**hf.prompts(), max_new_tokens=20, do_sample=True))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[2], outputs[3])


def test_steps_and_rows_have_their_own_noise(silent):
    """Equal rows go different ways, and with a flat distribution no token of a row is likely to come again."""
    model = hf.make()
    torch.manual_seed(7)
    out = model.generate(**hf.prompts(1), max_new_tokens=8, do_sample=True, top_k=0, temperature=100.0,
                         num_return_sequences=16, custom_generate=fst.generate)[:, 7:]
    assert len({tuple(row) for row in out.tolist()}) == 16
    assert all(len(set(row)) >= 6 for row in out.tolist())


def test_greedy_takes_nothing_from_the_generator(silent):
    model = hf.make()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model.generate(**hf.prompts(), max_new_tokens=3, do_sample=False, custom_generate=fst.generate)
    assert torch.equal(before, torch.get_rng_state())


# ------------------------------------------------------------------------------------------ what is around a token ----

def test_sequences_end_and_are_padded_as_in_transformers(silent):
    model = hf.make()
    free = model.generate(**hf.prompts(), max_new_tokens=30, do_sample=False)
    ends = [free[0, 12].item(), free[1, 20].item(), free[2, 16].item()]
    stock, ours = both(model, **hf.prompts(), max_new_tokens=30, do_sample=False, eos_token_id=ends, pad_token_id=2)
    assert torch.equal(stock, ours) and (stock[:, -1] == 2).any()


GREEDY_RULES = {
    "repetition": dict(repetition_penalty=1.7),
    "bias": dict(sequence_bias=[[[9], 6.0], [[11], -3.0]]),
    "bad words": dict(bad_words_ids=[[40], [41]]),
    "suppressed": dict(suppress_tokens=list(range(10, 300, 2))),
    "suppressed at first": dict(begin_suppress_tokens=list(range(10, 300))),
    "min length": dict(min_length=15, eos_token_id=list(range(3, 320))),
    "min new tokens": dict(min_new_tokens=9, eos_token_id=list(range(3, 320))),
    "forced eos": dict(forced_eos_token_id=[77, 70]),
    "all together": dict(repetition_penalty=0.8, sequence_bias=[[[9], 2.0]], suppress_tokens=[4, 9, 300], min_length=12,
                         eos_token_id=[5, 20, 21], bad_words_ids=[[33]], renormalize_logits=True),
}


@pytest.mark.parametrize("rule", GREEDY_RULES)
def test_greedy_tokens_with_rules_are_those_of_transformers(rule, silent):
    model = hf.make()
    plain = model.generate(**hf.prompts(), max_new_tokens=20, do_sample=False)
    stock, ours = both(model, **hf.prompts(), max_new_tokens=20, do_sample=False, **GREEDY_RULES[rule])
    assert torch.equal(stock, ours)
    assert not torch.equal(stock, plain) or rule in ("bad words",)


def test_a_forced_first_token(silent):
    stock, ours = both(hf.make(), input_ids=torch.tensor([[1], [1]]), max_new_tokens=6, do_sample=False,
                       forced_bos_token_id=123)
    assert torch.equal(stock, ours) and (ours[:, 1] == 123).all()


@pytest.mark.parametrize("arguments", [
    dict(cache_implementation="static"), dict(use_cache=False), dict(prefill_chunk_size=3),
    dict(cache_implementation="offloaded") if torch.cuda.is_available() else dict(cache_implementation="dynamic"),
], ids=lambda a: "-".join(map(str, *a.items())))
def test_caches_are_handled_by_transformers(arguments, silent):
    stock, ours = both(hf.make(), **hf.prompts(), max_new_tokens=12, do_sample=False, **arguments)
    assert torch.equal(stock, ours)


def test_hidden_states_attentions_and_cache_are_returned(silent):
    stock, ours = both(hf.make(attn_implementation="eager"), **hf.prompts(), max_new_tokens=4, do_sample=False,
                       return_dict_in_generate=True, output_hidden_states=True, output_attentions=True)
    assert torch.equal(stock.sequences, ours.sequences) and ours.scores is None
    assert torch.equal(stock.hidden_states[3][-1], ours.hidden_states[3][-1])
    assert torch.equal(stock.attentions[3][0], ours.attentions[3][0])
    assert ours.past_key_values.get_seq_length() == stock.past_key_values.get_seq_length() == 10


def test_prompts_may_be_embeddings(silent):
    model, inputs = hf.make(), hf.prompts()
    inputs = dict(inputs_embeds=model.get_input_embeddings()(inputs["input_ids"]).detach(),
                  attention_mask=inputs["attention_mask"])
    stock, ours = both(model, **inputs, max_new_tokens=12, do_sample=False)
    assert torch.equal(stock, ours)


def test_an_encoder_and_a_decoder(silent):
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=hf.VOCAB, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
                                   decoder_start_token_id=0, initializer_factor=4.0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    stock, ours = both(model, **hf.prompts(), max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert torch.equal(stock, ours) and len(set(ours.flatten().tolist())) > 5


class Lines(transformers.generation.streamers.BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


@pytest.mark.parametrize("patched", [True, False])
def test_streamers_get_every_token_and_the_end(patched, silent):
    model, streamer = hf.make(), Lines()
    more = {} if patched else {"custom_generate": fst.generate}
    if patched:
        fst.patch(model)
    out = model.generate(**hf.prompts(1), max_new_tokens=9, do_sample=True, streamer=streamer, **more)
    assert streamer.tokens == out[0].tolist() and len(streamer.tokens) == 16 and streamer.ended


def test_stopping_criteria_are_asked(silent):
    def after_five(input_ids, scores, **_):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 12)

    criteria = transformers.StoppingCriteriaList([after_five])
    stock, ours = both(hf.make(), **hf.prompts(), max_new_tokens=30, do_sample=False, stopping_criteria=criteria)
    assert torch.equal(stock, ours) and ours.shape[1] == 12


def test_stop_strings_end_a_generation_of_a_patched_model(silent):
    """The tokenizer, which they need, is handed to loops of transformers' own names alone."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers cannot be imported")
    known = {"abcdef": 0, **{"w%d." % i: i for i in range(1, hf.VOCAB)}}  # transformers looks for that first word
    words = tokenizers.models.WordLevel(known, unk_token="abcdef")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
    model = hf.make()
    free = model.generate(**hf.prompts(1), max_new_tokens=20, do_sample=False)
    arguments = dict(**hf.prompts(1), max_new_tokens=20, do_sample=False, tokenizer=tokenizer,
                     stop_strings=["w%d." % free[0, 15]])
    stock, ours = model.generate(**arguments), fst.patch(model).generate(**arguments)
    assert torch.equal(stock, ours) and stock.shape[1] <= 16


# ------------------------------------------------------------------------------------------------------ the patch ----

def test_a_patch_is_of_one_model_and_can_be_undone():
    model, other = hf.make(), hf.make()
    stock = type(model)
    with fst.patch(fst.patch(model)) as same:
        assert same is model and isinstance(model, stock) and type(model) is not stock and type(other) is stock
        assert type(model).__name__ == stock.__name__
    assert type(model) is stock and "forward" not in model.lm_head.__dict__
    fst.unpatch(model)
    assert type(model) is stock


def test_a_copy_of_a_patched_model_is_patched(silent):
    def sampled(model):
        torch.manual_seed(5)
        return model.generate(**hf.prompts(), max_new_tokens=4, do_sample=True).tolist()

    model = fst.patch(hf.make())
    expected = sampled(model)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(other) is type(model) and other is not model and sampled(other) == expected
    fst.unpatch(model)
    assert type(pickle.loads(pickle.dumps(model))) is transformers.LlamaForCausalLM


def test_a_wrapped_model_is_not_patched():
    with pytest.raises(TypeError, match="patch: a Sequential, expected a transformers model"):
        fst.patch(torch.nn.Sequential(hf.make()))


def test_models_are_not_kept_alive():
    model = fst.patch(hf.make())
    model.generate(**hf.prompts(), max_new_tokens=2, do_sample=True)
    gone = weakref.ref(model), weakref.ref(model.lm_head)
    del model
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_a_raised_exception_leaves_the_model_as_it_was():
    def fail(input_ids, scores, **_):
        raise KeyError("stop")

    model = hf.make()
    with pytest.raises(KeyError):
        model.generate(**hf.prompts(), custom_generate=fst.generate, stopping_criteria=[fail], max_new_tokens=3)
    assert "forward" not in model.lm_head.__dict__
    assert model(**hf.prompts()).logits.shape[-1] == hf.VOCAB


def test_other_threads_get_their_logits_during_a_generation(silent):
    model, inputs, widths = hf.make(), hf.prompts(), []

    def look(input_ids, scores, **_):
        thread = threading.Thread(target=lambda: widths.append(model(**inputs).logits.shape[-1]))
        thread.start()
        thread.join()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    model.generate(**inputs, max_new_tokens=3, do_sample=True, custom_generate=fst.generate, stopping_criteria=[look])
    assert widths == [hf.VOCAB] * 3


def test_threads_generate_with_one_model_at_once(silent):
    model, outputs = fst.patch(hf.make()), {}

    def work(i):
        outputs[i] = model.generate(**hf.prompts(2, 5 + i, i), max_new_tokens=25, do_sample=False)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    fst.unpatch(model)
    for i in range(4):
        assert torch.equal(outputs[i], model.generate(**hf.prompts(2, 5 + i, i), max_new_tokens=25, do_sample=False))


def test_a_compiled_forward_and_stock_beside_it(silent):
    """Whichever was compiled first, neither runs with what was compiled for the other."""
    model = hf.make()
    config = transformers.CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    arguments = dict(**hf.prompts(), max_new_tokens=5, do_sample=False, cache_implementation="static")
    expected = model.generate(**arguments)
    for more in ({"custom_generate": fst.generate}, {}) * 2:
        assert torch.equal(model.generate(**arguments, compile_config=config, **more), expected)
