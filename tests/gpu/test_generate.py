"""generate() of transformers on CUDA: its rules are drawn fused; what is none of our rules transformers draws."""
import os
import sys

import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")
transformers = pytest.importorskip("transformers", reason="transformers cannot be imported")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "torch"))
import hf_models as hf
from test_transformers_draws import CASES, LEAST, first_token, p_value

import flashsampling.transformers as fst

DEVICE, DRAWS = "cuda", 16384


def made(family="llama", dtype=torch.bfloat16):
    return hf.make(family, dtype).to(DEVICE)


def prompts(rows=3, length=7):
    return {name: tensor.to(DEVICE) for name, tensor in hf.prompts(rows, length).items()}


def warnings_of(caplog):
    """What the package has said; torch.compile says more to a log that is captured."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("flashsampling")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", [family for family in hf.FAMILIES if "softcap" not in family])
def test_greedy_tokens_are_those_of_transformers(family, dtype, caplog):
    """Over 16 steps: sums in another order may round one of two equal logits the other way, once in many steps."""
    model, arguments = made(family, dtype), dict(**prompts(), max_new_tokens=16, do_sample=False)
    stock, ours = model.generate(**arguments), model.generate(**arguments, custom_generate=fst.generate)
    assert torch.equal(stock, ours) and ours.device.type == DEVICE
    assert warnings_of(caplog) == []


def first_draws(model, inputs, **arguments):
    torch.manual_seed(11)
    return model.generate(**inputs, do_sample=True, max_new_tokens=1, num_return_sequences=DRAWS, pad_token_id=0,
                          custom_generate=fst.generate, **arguments)[:, -1].cpu().numpy()


@pytest.mark.parametrize("family", ["llama", "gemma2-softcap", "granite-scale", "phi-bias"])
def test_first_tokens_follow_the_distribution_of_transformers(family, caplog):
    """Chi-squared, p above 1e-6; and one of another temperature is rejected."""
    model, inputs = made(family), prompts(1, 4)
    tokens = first_draws(model, inputs, top_k=0)
    assert warnings_of(caplog) == []
    right, wrong = (first_token(model, inputs, top_k=0, temperature=t).cpu() for t in (1.0, 1.5))
    assert p_value(tokens, right) > LEAST > p_value(tokens, wrong)


def test_a_seed_reproduces():
    model, outputs = fst.patch(made()), []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        outputs.append(model.generate(**prompts(), max_new_tokens=20, do_sample=True, top_k=0))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("case", CASES)
def test_rules_follow_the_distribution_of_transformers(case, caplog):
    """In float32: where a cut falls between two logits that are nearly equal, bf16 makes them equal."""
    model, inputs = made(dtype=torch.float32), prompts(1, 4)
    tokens = first_draws(model, inputs, **CASES[case])
    assert p_value(tokens, first_token(model, inputs, **CASES[case]).cpu()) > LEAST
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("case", ["repetition", "bias", "min length"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rules_without_a_cut_follow_it_in_half_precision_too(dtype, case, caplog):
    model, inputs = made(dtype=dtype), prompts(1, 4)
    tokens = first_draws(model, inputs, **CASES[case])
    assert p_value(tokens, first_token(model, inputs, **CASES[case]).cpu()) > LEAST
    assert warnings_of(caplog) == []


def test_a_cut_that_is_off_by_one_is_rejected():
    model, inputs = made(dtype=torch.float32), prompts(1, 4)
    tokens = first_draws(model, inputs, top_k=10, temperature=3.0)
    for k in (9, 11):
        assert p_value(tokens, first_token(model, inputs, top_k=k, temperature=3.0).cpu()) < LEAST


def test_what_is_none_of_our_rules_is_left_to_transformers(caplog):
    model, outputs = made(), []
    for more in ({}, {"custom_generate": fst.generate}):
        torch.manual_seed(3)
        outputs.append(model.generate(**prompts(), max_new_tokens=6, do_sample=True, typical_p=0.9, **more))
    assert torch.equal(*outputs)
    assert ["TypicalLogitsWarper is none of our rules" in text for text in warnings_of(caplog)] == [True]


def test_a_compiled_forward_with_a_static_cache(caplog):
    """generate() compiles it with CUDA graphs, whose memory the hidden states lie in."""
    model = made(dtype=torch.float32)
    arguments = dict(**prompts(), max_new_tokens=12, do_sample=False, cache_implementation="static")
    expected = model.generate(**arguments, disable_compile=True)
    for _ in range(2):
        assert torch.equal(model.generate(**arguments, custom_generate=fst.generate), expected)
    assert warnings_of(caplog) == []
