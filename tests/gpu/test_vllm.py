"""vLLM with the plug-in, end to end on a GPU: a tiny model with random weights and a large vocabulary, in this process.

Each case draws 2,048 first tokens of one prompt, held by chi-squared against the law of vLLM's sampler on the logits
that the model has for it; one false alarm in 50,000 runs of all cases.
"""
import json
import os
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", FLASHSAMPLING_VLLM="on")
vllm = pytest.importorskip("vllm", reason="vllm cannot be imported")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "torch"))
from vllm_cases import LEAST, PROMPT, cases, p_value, sampling_params
from vllm_standin import Request, law

import flashsampling.vllm as fsv

VOCAB, SEQUENCES, DRAWS = 151936, 256, 2048
CONFIG = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=256, intermediate_size=512,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
              max_position_embeddings=1024,
              vocab_size=VOCAB, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=False, hidden_act="silu",
              eos_token_id=1, bos_token_id=2, torch_dtype="bfloat16")
CASES = {name: rules for name, rules in cases(300).items() if name != "stops no more"}


class Engine:
    def __init__(self, folder):
        (folder / "config.json").write_text(json.dumps(CONFIG))
        fsv.register()
        self.llm = vllm.LLM(model=str(folder), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True,
                            max_model_len=128, max_num_seqs=SEQUENCES, max_num_batched_tokens=2048, enforce_eager=True,
                            enable_prefix_caching=False, gpu_memory_utilization=0.5, seed=0)
        import vllm.v1.worker.gpu.model_runner as module

        assert module.GPUModelRunner.sample is fsv._sample
        self.logits, engine = None, self

        def sample(self, hidden_states, input_batch, grammar_output):
            if engine.logits is None:
                row = hidden_states[input_batch.logits_indices[:1]]
                engine.logits = self.model.compute_logits(row)[0].float().cpu().numpy()
                engine.runner = self
            return fsv._sample(self, hidden_states, input_batch, grammar_output)

        module.GPUModelRunner.sample = sample
        self.tokens(Request(PROMPT), 1)
        model = self.runner.model
        with torch.inference_mode():  # rows with some likely tokens; the norm's random scale is tiny
            model.model.norm.weight.fill_(1)
            model.lm_head.weight.normal_(0, 3.2 / 16)

    def tokens(self, request, count, **more):
        """First tokens of `count` such requests."""
        self.logits = None
        params = sampling_params(vllm.SamplingParams, request, **more)
        prompts = [{"prompt_token_ids": request.prompt}] * count
        return [output.outputs[0] for output in self.llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return Engine(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", CASES)
def test_tokens_follow_the_law(engine, name):
    fsv._counts.clear()
    request = Request(PROMPT, **CASES[name])
    tokens = np.array([output.token_ids[0] for output in engine.tokens(request, DRAWS)])
    assert set(fsv.counts()) == {"fused"}
    assert p_value(tokens, law(engine.logits, request)) > LEAST


def test_logprobs_are_those_of_the_logits(engine):
    outputs = engine.tokens(Request(PROMPT, logprobs=5), SEQUENCES)
    row = engine.logits.astype(np.float64)
    scores = row - row.max() - np.log(np.exp(row - row.max()).sum())
    best = np.sort(scores)[::-1][:5]
    for output in outputs:
        found = output.logprobs[0]
        drawn = found[output.token_ids[0]]
        assert abs(drawn.logprob - scores[output.token_ids[0]]) < 0.05
        assert np.allclose(sorted((entry.logprob for entry in found.values()), reverse=True)[:5], best, atol=0.05)


def test_seeds_repeat_in_any_batch(engine):
    request = Request(PROMPT, seed=11, temperature=1.3)
    alone, among = engine.tokens(request, 1)[0].token_ids, engine.tokens(request, SEQUENCES)
    assert {tuple(output.token_ids) for output in among} == {tuple(among[0].token_ids)}
    assert len(alone) == 1


@pytest.mark.parametrize("bits", ["8", "4"])
def test_tokens_with_a_screen_are_those_without(engine, monkeypatch, bits):
    """In steps of 1 to 24 rows. A token that only W knows of, since nobody has told the screen, is not drawn: so it is
    the screen that is read."""
    monkeypatch.setenv("FLASHSAMPLING_SCREEN_ROWS", "16")  # W is so small that it would be read
    weight = engine.runner.model.lm_head.weight.data

    def renewed(screen):
        monkeypatch.setenv("FLASHSAMPLING_VLLM_SCREEN", screen)
        engine.runner.__dict__.pop("_flashsampling", None)
        engine.tokens(Request(PROMPT, temperature=1.3), 1)
        assert (engine.runner._flashsampling.call.head.screen is None) == (screen == "off")

    def drawn(screen):
        renewed(screen)
        return [output.token_ids[0] for seed in range(24) for output in engine.tokens(
            Request(PROMPT, seed=seed, temperature=0.0 if seed == 9 else 1.3), 1 + seed)]

    def greedy():
        return engine.tokens(Request(PROMPT, temperature=0.0), 1)[0].token_ids[0]

    want = drawn("off")
    assert len(set(want)) > 8 and drawn(bits) == want
    first, last = greedy(), int(engine.logits.argmin())
    with torch.inference_mode():
        before = weight[last].clone()
        weight[last] = 2 * weight[first]
    try:
        assert greedy() == first
        renewed("off")
        assert greedy() == last
    finally:
        with torch.inference_mode():
            weight[last] = before
        engine.runner.__dict__.pop("_flashsampling", None)


def test_a_step_that_is_not_served_has_room_when_memory_is_full(engine):
    """All sequences at once, in a memory in which only the reserve is left."""
    fsv._counts.clear()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] - fsv._reserve_bytes() - (64 << 20)
    ballast = torch.empty(free, dtype=torch.uint8, device="cuda")
    try:
        request = Request(PROMPT, allowed=[5, 9, 11], logprobs=2, top_k=2, top_p=0.9)
        tokens = [output.token_ids[0] for output in engine.tokens(request, SEQUENCES)]
    finally:
        del ballast
        torch.cuda.empty_cache()
    assert set(tokens) <= {5, 9, 11}
    assert "stock: allowed_token_ids together with raw logprobs" in fsv.counts()
