"""One rank of tests/gpu/test_vllm_ranks.py: vllm_ranks_worker.py RANK COUNT FOLDER. vLLM with its head over COUNT
processes, which share one device; what this one drew goes to FOLDER/COUNT-RANK.json."""
import json
import os
import sys

import conftest  # noqa: F401  finds the package
import torch
import vllm

import flashsampling.vllm as fsv

RANK, COUNT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
VOCAB, DIM, ROWS, NEW, POOL = 150001, 256, 12, 6, 509
CONFIG = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=DIM, intermediate_size=512,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=64,
              max_position_embeddings=1024, vocab_size=VOCAB, rope_theta=1e6, rms_norm_eps=1e-6,
              tie_word_embeddings=False, hidden_act="silu", eos_token_id=1, bos_token_id=2, torch_dtype="bfloat16")
# What every request of a case has; seeds and temperatures are its own.
CASES = {
    "plain": {}, "no seeds": {}, "vLLM's own": {},
    "top-k": dict(top_k=20), "top-p": dict(top_p=0.7), "min-p": dict(min_p=0.1),
    "bias": dict(logit_bias={4: 9.0, 140000: 9.0}),
    "penalties": dict(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={5: 12.0, 120000: 11.0}),
    "allowed": dict(allowed_token_ids=list(range(3, VOCAB, 997))), "logprobs": dict(logprobs=3), "screened": {},
}


def grid(rows, seed, scale, most):
    """[rows, DIM] of multiples of 1/64: their dot products are exact in any order of addition."""
    normal = torch.randn(rows, DIM, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
    return ((normal * scale * 64).round().clamp(-most, most) / 64).to(torch.bfloat16)


class Rank:
    def __init__(self):
        folder = os.path.join(FOLDER, "model-%d-%d" % (COUNT, RANK))
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        fsv.register()
        ranks = dict(tensor_parallel_size=COUNT, distributed_executor_backend="external_launcher",
                     disable_custom_all_reduce=True) if COUNT > 1 else {}
        self.llm = vllm.LLM(model=folder, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True,
                            max_model_len=128, max_num_seqs=16, max_num_batched_tokens=512, enforce_eager=True,
                            enable_prefix_caching=False, gpu_memory_utilization=0.02, kv_cache_memory_bytes=256 << 20,
                            seed=0, **ranks)
        import vllm.v1.worker.gpu.model_runner as module
        from vllm.distributed import get_tp_group

        self.sizes, self.pool, self.stock, rank = [], grid(POOL, 2, 1.0, 255), False, self
        group, gather = get_tp_group(), get_tp_group().all_gather

        def counted(tensor, *more, **names):
            self.sizes.append(tensor.nbytes)
            return gather(tensor, *more, **names)

        group.all_gather = counted
        ours = module.GPUModelRunner.sample
        assert ours is fsv._sample, "the plug-in is not there"

        def sample(self, hidden_states, input_batch, grammar_output):
            rank.runner = self
            hidden_states[input_batch.logits_indices] = rank.pool[rank.places(input_batch)]
            draw = fsv._stock["sample"] if rank.stock else ours
            return draw(self, hidden_states, input_batch, grammar_output)

        module.GPUModelRunner.sample = sample
        self.draw("plain")
        with torch.inference_mode():
            self.plant(self.runner.model.lm_head)

    @staticmethod
    def plant(head):
        """This rank's rows of one matrix. What pads it would win if it were tokens."""
        weight, first = head.weight.data, head.shard_indices.padded_org_vocab_start_index
        whole = grid(weight.shape[0] * COUNT, 1, 0.22, 255)
        whole[VOCAB:] = 4
        weight.copy_(whole[first : first + weight.shape[0]])

    def places(self, batch):
        """Rows of the pool by seed and position: the same for a request over any number of ranks."""
        seeds = self.runner.sampler.sampling_states.seeds.gpu[batch.expanded_idx_mapping.long()]
        return (seeds % POOL * 31 + batch.positions[batch.logits_indices] * 17) % POOL

    def make_screen(self):
        """What draws is made anew, with a screen of this rank's rows; it is read, of a head as small as this too."""
        os.environ.update(FLASHSAMPLING_VLLM_SCREEN="8", FLASHSAMPLING_SCREEN_ROWS="64")
        del self.runner._flashsampling

    def draw(self, name):
        """ROWS requests, greedy the last, of one case: what came of it."""
        fsv._counts.clear()
        self.sizes.clear()
        self.stock = name == "vLLM's own"
        params = [vllm.SamplingParams(
            max_tokens=NEW, ignore_eos=True, detokenize=False, temperature=0.0 if row == ROWS - 1 else 0.7 + 0.1 * row,
            seed=None if name == "no seeds" else 1000 + row, **CASES[name]) for row in range(ROWS)]
        prompts = [{"prompt_token_ids": [5 + row] * (3 + row)} for row in range(ROWS)]
        outputs = [output.outputs[0] for output in self.llm.generate(prompts, params, use_tqdm=False)]
        best = [[sorted(step) for step in output.logprobs] for output in outputs] if outputs[0].logprobs else None
        return {"tokens": [list(output.token_ids) for output in outputs], "best": best, "counts": fsv.counts(),
                "gathered": sorted(set(self.sizes)), "wire": self.runner._flashsampling.call.context.counters.wire_bytes}


def main():
    rank = Rank()
    found = {}
    for name in CASES:
        if name == "screened":
            rank.make_screen()
        found[name] = rank.draw(name)
    found["screened"]["bytes"] = rank.runner._flashsampling.call.head.screen.nbytes
    found["about"] = {"rows": ROWS, "padded": rank.runner.model.lm_head.weight.shape[0] * COUNT}
    path = os.path.join(FOLDER, "%d-%d.json" % (COUNT, RANK))
    with open(path + ".new", "w") as file:
        json.dump(found, file)
    os.rename(path + ".new", path)
    sys.stdout.flush()
    os._exit(0)  # ranks that end in another order than vLLM's would wait for each other


if __name__ == "__main__":
    main()
