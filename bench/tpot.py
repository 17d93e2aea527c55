"""Time per output token of vLLM with its own sampler, with ours, and without any (null), in one process.

    make tpot ARGS="--json tpot.json"              every cell; some twenty minutes
    make tpot ARGS="--quick --json tpot.json"      the bars, and one cell of every rule, in under 200 s of measuring
    python bench/tpot.py --serve 16,64 --rows ""  requests that come by chance (tpot_serve.py), and no other cells
    python bench/tpot.py --screen 8,4              arms more, whose head has a screen of 8 bits, of 4
    python bench/tpot.py --kv --json kv.json       tokens of KV cache with and without the plug-in; six engine starts

Weights are random: no checkpoint is needed. Rows of hidden states are exchanged before every call (tpot_arms.py).
Arms take turns, round by round; a turn is one generate() of B requests and its time per token the mean time between
calls of sample() in decoding. Needs vLLM 0.26.0 or later, a GPU and the CUDA library; bench/tpot_tables.py prints the
tables of a file again.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python")]

import tpot_arms
import tpot_serve
import tpot_tables

QWEN3 = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=128, num_key_value_heads=8,
             max_position_embeddings=4096, rope_theta=1e6, rms_norm_eps=1e-6, vocab_size=151936, hidden_act="silu",
             eos_token_id=151645, bos_token_id=151643, torch_dtype="bfloat16")
MODELS = {
    "qwen3-8b": dict(QWEN3, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
                     tie_word_embeddings=False),
    "qwen3-1.7b": dict(QWEN3, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
                       tie_word_embeddings=True),
    "qwen3-32b": dict(QWEN3, hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64,
                      tie_word_embeddings=False),
    "qwen3-30b-a3b": dict(QWEN3, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048,
                          intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
                          num_attention_heads=32, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8,
                          decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, tie_word_embeddings=False),
    "gemma3-1b": dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=1152,
                      intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4, num_key_value_heads=1,
                      head_dim=256, vocab_size=262144, sliding_window=512, query_pre_attn_scalar=256,
                      max_position_embeddings=4096, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True,
                      hidden_activation="gelu_pytorch_tanh", torch_dtype="bfloat16"),
}
RULES = {
    "t1": dict(temperature=1.0),
    "kp": dict(temperature=1.0, top_k=50, top_p=0.95),
    "p": dict(temperature=1.0, top_p=0.95),
    "penalties": dict(temperature=1.0, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1),
    "logprobs5": dict(temperature=1.0, logprobs=5),
    "mask": dict(temperature=1.0),
    "greedy": dict(temperature=0.0),
}
BY_SCREEN = ("t1", "greedy", "kp", "penalties", "mask")  # where steps of few rows read a screen, if there is one
BATCHES = (1, 4, 16, 64, 128, 256)
SETTLE = 4  # decode steps of a turn that are not counted, at its beginning
SAME = 32  # requests whose seeds are drawn again in other batches


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def sizes_of(arguments):
    """Every B that is drawn."""
    return {1, *(B for _, _, B, _ in plan_of(arguments)), *numbers(arguments.serve), SAME if arguments.same else 1}


def plan_of(arguments):
    """[(rows, rules, B, rounds)], what matters most first."""
    if not arguments.quick:
        return [(rows, rules, B, arguments.rounds) for rows in filter(None, arguments.rows.split(","))
                for rules in arguments.rules.split(",") for B in numbers(arguments.batches)]
    plan = [("language", rules, B, 6) for rules in ("t1", "kp") for B in (1, 16, 64)]
    plan += [("flat", rules, B, 3) for rules in ("t1", "kp") for B in (16, 64)]
    return plan + [("language", rules, B, 3) for rules in ("penalties", "logprobs5", "mask") for B in (16, 64)]


def engine(arguments, folder, most, **more):
    """LLM in this process, so that sample() can be exchanged between turns."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["FLASHSAMPLING_VLLM_SCREEN"] = "off"  # the head is written to once more: --screen makes one behind that
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(MODELS[arguments.model], file)
    import flashsampling.vllm as plugin

    plugin.register()
    from vllm import LLM

    sizes = sorted({1, 2, 4, 8, 16, 32, 64, most} | sizes_of(arguments))
    options = dict(model=folder, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, max_model_len=1024,
                   max_num_seqs=most, max_num_batched_tokens=max(2048, most * arguments.prompt), seed=0,
                   gpu_memory_utilization=arguments.memory, enable_prefix_caching=False,
                   compilation_config={"cudagraph_capture_sizes": [size for size in sizes if size <= most]})
    return LLM(**{**options, **more}), plugin


class Run:
    arms = tpot_arms.ARMS

    def __init__(self, arguments):
        self.arguments, self.began = arguments, time.perf_counter()
        self.sampler_build = self._build_flashinfer()
        self.folder = tempfile.TemporaryDirectory()
        self.most = max(sizes_of(arguments))
        self.llm, self.plugin = engine(arguments, self.folder.name, self.most)
        import torch
        import vllm.v1.worker.gpu.model_runner as module
        from vllm.v1.core.sched.output import GrammarOutput
        from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected

        if not self.plugin.patch(module):
            sys.exit("tpot: the plug-in does not know this vLLM")
        self.torch = torch
        self.tap = tpot_arms.Tap(torch, self.plugin, module, {
            "count": get_num_sampled_and_rejected, "output": module.SamplerOutput, "grammar": GrammarOutput})
        self.random = random.Random(1)
        self.vocab = MODELS[arguments.model]["vocab_size"]
        self.generate(1, 2, "greedy")  # the tap has seen the runner
        self.results = {"about": self.about(), "cells": []}
        self.ready = time.perf_counter()
        self.prepare_rows()
        self.say("ready after %.0f s" % (self.ready - self.began))

    @staticmethod
    def _build_flashinfer():
        """vLLM's sampler of top-k and top-p compiles itself when it is first used; that takes longer than all else."""
        code = "from flashinfer.sampling import get_sampling_module as get; get()"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def say(self, text):
        print("%6.1f s  %s" % (time.perf_counter() - self.began, text), flush=True)

    def about(self):
        import gpu_bench
        import vllm

        import flashsampling as fs

        torch, config = self.torch, self.llm.llm_engine.vllm_config
        return {"device": torch.cuda.get_device_name(), "vllm": vllm.__version__, "torch": torch.__version__,
                "library": fs.version(), "model": self.arguments.model, "commit": self.arguments.commit
                or gpu_bench.first_line(["git", "rev-parse", "--short", "HEAD"]),
                "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "new": self.arguments.new,
                "prompt": self.arguments.prompt, "async": config.scheduler_config.async_scheduling,
                "graphs": str(config.compilation_config.cudagraph_mode)}

    def prepare_rows(self):
        """Rows for the pool, and how long reading W takes; on a stream of their own, before anything is timed."""
        import gpu_bench

        stream = self.torch.cuda.current_stream()
        drawer = self.tap.runner.__dict__.get(tpot_arms.KEY)
        if isinstance(drawer, str):
            sys.exit("tpot: the plug-in does not serve this model: %s" % drawer)
        weight = self.weight = drawer.layer.weight.data[: self.vocab]
        self.torch.cuda.synchronize()
        with self.torch.inference_mode():
            bench = gpu_bench.open_bench(self.arguments.build)
            make = tpot_arms.turned if self.arguments.screen else tpot_arms.planted
            self.pools, self.results["language"] = make(bench, weight)
            reader = bench.best_reader(weight)
            read = bench.time_in_turn({"read": lambda: bench.read(reader, weight)}, reps=30, warm_ups=5)["read"]
            bench.flush = bench.square = None
            self.torch.cuda.synchronize()
        self.read_ms = read[1] / 1e3
        self.torch.cuda.set_stream(stream)
        self.prepare_screens()
        self.results["about"]["read_tb_s"] = round(weight.numel() * 2 / self.read_ms / 1e9, 3)

    def prepare_screens(self):
        self.tap.pool = self.pools["language"]
        for bits in numbers(self.arguments.screen):
            self.arms = (*self.arms, tpot_tables.SCREENED[bits])
            with self.torch.inference_mode():
                self.results["about"]["screen_bytes_%d" % bits] = self.tap.screen(bits)

    def generate(self, B, new, rules):
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": [self.random.randrange(1000, 150000) for _ in range(self.arguments.prompt)]}
                   for _ in range(B)]
        params = SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False, **RULES[rules])
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == new for output in outputs)

    def turn(self, arm, B, rules):
        """One generate(): ms a token, on the device and on the host of sample()."""
        self.tap.arm = arm
        self.tap.take()
        self.generate(B, self.arguments.new + 1, rules)
        began, host, device = (values[SETTLE:] for values in self.tap.take())
        return {"tpot_ms": 1e3 * (began[-1] - began[0]) / (len(began) - 1), "host_ms": 1e3 * statistics.median(host),
                "device_ms": statistics.median(device)}

    def cell(self, rows, rules, B, rounds):
        import numpy as np

        self.tap.pool = self.pools[rows]
        words = (self.vocab + 31) // 32
        self.tap.mask = None
        if rules == "mask":  # a grammar that allows every other token on average
            self.tap.mask = np.random.default_rng(1).integers(-2**31, 2**31, (B, words)).astype(np.int32)
        if rules in ("kp", "p"):
            self.sampler_build.wait()
        # The engine wants the logprobs that it has asked for, and null has none.
        left = [*(["null"] if rules == "logprobs5" else []),
                *([] if rules in BY_SCREEN else tpot_tables.SCREENED.values())]
        taken = {arm: [] for arm in self.arms if arm not in left}
        for arm in taken:
            self.tap.arm = arm
            self.generate(B, 6, rules)
        for number in range(rounds):
            order = list(taken) if number % 2 == 0 else list(taken)[::-1]
            for arm in order:
                taken[arm].append(self.turn(arm, B, rules))
        self.tap.mask = None
        cell = {"model": self.arguments.model, "rows": rows, "rules": rules, "B": B, "read_ms": self.read_ms,
                "rounds": taken}
        self.results["cells"].append(cell)
        self.say(tpot_tables.table({"cells": [cell]}).splitlines()[-1])

    def greedy(self):
        """Greedy tokens of vLLM and of ours on the same hidden states."""
        self.tap.arm, self.tap.pool = "check", self.pools["language"]
        self.generate(16, 33, "greedy")
        self.tap.pool = self.pools["flat"]
        self.generate(16, 33, "greedy")
        drawn = sum(count for count, _ in self.tap.differ)
        apart = [gap for _, gaps in self.tap.differ for gap in gaps]
        self.results["greedy"] = {"drawn": drawn, "equal": drawn - len(apart), "apart": sorted(apart, reverse=True)}
        self.say("greedy: %d of %d are vLLM's" % (drawn - len(apart), drawn))
        if self.tap.screened:
            self.sampler_build.wait()
            for B, rules in ((32, "t1"), (16, "t1"), (8, "t1"), (8, "greedy"), (1, "t1"), (1, "greedy"), (16, "kp"),
                             (8, "kp"), (1, "kp"), (8, "penalties")):
                self.generate(B, 33, rules)
            self.results["screened"] = {bits: dict(zip(("drawn", "equal"), map(sum, zip(*found))))
                                        for bits, found in self.tap.equal.items()}
            self.say("with a screen, by bits: %s" % self.results["screened"])

    def same(self, rules, new=17):
        """Equal seeds, positions and hidden states in other batches."""
        from vllm import SamplingParams

        params = [SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False, seed=seed, **RULES[rules])
                  for seed in range(1, SAME + 1)]
        prompts = [{"prompt_token_ids": [1000 + seed] * self.arguments.prompt} for seed in range(SAME)]
        self.tap.pool = self.pools["language"]
        shares = tpot_arms.same(self.llm, self.tap, prompts, params, self.arguments.prompt + SAME // 2)
        self.results.setdefault("same", {})[rules] = shares
        self.say("equal seeds, %s, %d tokens: %s" % (rules, SAME * new, shares))

    def save(self):
        self.results["counts"] = self.plugin.counts()
        if self.arguments.json:
            with open(self.arguments.json, "w") as file:
                json.dump(self.results, file, indent=1)

    def main(self):
        self.greedy()
        for cell in plan_of(self.arguments):
            if time.perf_counter() - self.ready > self.arguments.budget:
                self.say("the budget of %g s is spent: %s and what follows is left out" % (self.arguments.budget, cell))
                break
            self.cell(*cell)
            self.save()
        for rules in filter(None, self.arguments.same.split(",")):
            self.same(rules)
        if self.arguments.serve:
            tpot_serve.cells(self, numbers(self.arguments.serve), RULES["t1"])
        self.save()
        print(tpot_tables.text(self.results))


def kv_cache(arguments):
    """Tokens of KV cache that vLLM finds room for, each in a process of its own: they begin together and have the
    device in turn, since vLLM takes what others take there for its own."""
    import multiprocessing

    import flashsampling.vllm  # noqa: F401  what they import is imported once
    from vllm import LLM  # noqa: F401

    fork, found = multiprocessing.get_context("fork"), []
    pairs = [tuple(map(int, pair.split(":"))) for pair in arguments.kv.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        begun = []
        for case in ((*pair, switch) for pair in pairs for switch in ("off", "on")):
            go, (receive, send) = fork.Event(), fork.Pipe(duplex=False)
            process = fork.Process(target=kv_one, args=(arguments, folder, *case, go, send))
            process.start()
            send.close()
            begun.append((case, process, go, receive))
        for (most, tokens, switch), process, go, receive in begun:
            go.set()
            try:
                room = receive.recv()
            except EOFError:
                room = None
            process.join()
            found.append({"model": arguments.model, "max_num_seqs": most, "max_num_batched_tokens": tokens,
                          "plug-in": switch, "memory": arguments.memory, "kv": room})
            print(found[-1], flush=True)
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump({"kv_tokens": found}, file, indent=1)


def kv_one(arguments, folder, most, tokens, switch, go, send):
    """An engine, until it knows how large its KV cache will be: sends the number of tokens and ends."""
    os.environ["FLASHSAMPLING_VLLM"] = switch

    def known(config):
        send.send(config.num_gpu_blocks * config.block_size)
        os._exit(0)  # nothing of vLLM's is to be ended in order

    kv_hooks(go, known)
    folder = os.path.join(folder, "%d-%d-%s" % (most, tokens, switch))
    os.mkdir(folder)
    engine(arguments, folder, most, enforce_eager=True, max_num_batched_tokens=tokens, compilation_config={})


def kv_hooks(go, known):
    """The device is touched when `go` is set; known(cache_config) is called in place of what makes the caches."""
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.worker.gpu_worker import Worker

    init = Worker.init_device

    def init_device(self):
        go.wait()
        init(self)

    Worker.init_device = init_device
    Executor.initialize_from_config = lambda self, configs: known(self.vllm_config.cache_config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-8b")
    parser.add_argument("--quick", action="store_true", help="the bars first, one cell of every rule, fewer rounds")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--rules", default="t1,kp,penalties,logprobs5,mask", help="of %s" % ", ".join(RULES))
    parser.add_argument("--rows", default="language,flat")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--new", type=int, default=64, help="tokens a turn")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--memory", type=float, default=0.4, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of measuring; what does not fit is left out")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--commit", metavar="TEXT", help="what is measured, where there is no git to tell")
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build", "cuda"), metavar="FOLDER",
                        help="where read_ceiling.cu is compiled to")
    parser.add_argument("--kv", nargs="?", const="256:2048,1024:2048,1024:8192", metavar="SEQS:TOKENS,..",
                        help="tokens of KV cache, and no times, for max_num_seqs and max_num_batched_tokens "
                             "(%(const)s; the last are those of vllm serve on large GPUs)")
    parser.add_argument("--serve", default="", metavar="B,..", help="B requests at once that come by chance")
    parser.add_argument("--same", default="", metavar="RULES,..", help="draw equal seeds in other batches")
    parser.add_argument("--screen", default="", metavar="BITS,..", help="arms more, with screens of so many bits")
    arguments = parser.parse_args()
    if arguments.kv:
        kv_cache(arguments)
    else:
        Run(arguments).main()


if __name__ == "__main__":
    main()
