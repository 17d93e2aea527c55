"""Texts drawn by an engine's own sampler and by ours: are they equally good, and are they the model's?

    make model                                                                      a small trained model
    python bench/quality.py --model build/model --engine transformers -n 400       here, on a CPU, some minutes
    python bench/quality.py --model build/model --engine vllm -n 10000 --json q.json      on a GPU

Completions of the same prompts by two arms, stock and ours, at T = 1 and with top-k 50, top-p .95, T = .8: mean
log-likelihood under the model, entropies of n-grams and lengths, each compared by a bootstrap; the log-likelihood
against what the model's distributions let expect along the same texts; and at every position the probability-integral
transform of the drawn tokens under the model's own distribution (what top-k and top-p left of it), which is uniform if
they follow it, by chi-squared. Together the tests of one pair of arms raise a false alarm with probability .01. A third
arm draws with a temperature 5 % too high: it has to be rejected, and says what the tests can see. Then equal seeds and
positions, in other batches and rows: the tokens must be equal.
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python")]

import numpy as np
import quality_stats

PROMPTS = ["The function returns", "This module", "If the file does not exist,", "Note that", "For example,",
           "The default is", "A list of", "See also", "Raises an error if", "It is possible to", "By default",
           "When the", "The first argument", "Use this option to", "Copyright", "In order to"]
RULES = {"t1": dict(temperature=1.0, top_k=0, top_p=1.0), "kp": dict(temperature=0.8, top_k=50, top_p=0.95)}
PLANTED = 1.05  # what the third arm multiplies the temperature by
LOGITS = 2**25  # that are scored at once
BUDGET = 24  # tokens a step, in which prompts are read in pieces


class Transformers:
    """generate() of transformers, its own draws or ours."""

    name = "transformers"

    def __init__(self, arguments, model, tokenizer):
        self.model, self.end = model, tokenizer.eos_token_id

    def complete(self, arm, prompt, number, rules, most, seed):
        import torch

        import flashsampling.transformers as fst

        torch.manual_seed(seed)
        options = dict(do_sample=True, max_new_tokens=most, num_return_sequences=number, pad_token_id=self.end,
                       temperature=rules["temperature"], top_k=rules["top_k"], top_p=rules["top_p"])
        ids = torch.tensor([prompt], device=self.model.device)
        if arm == "stock":
            drawn = self.model.generate(ids, **options)
        else:
            with fst.patch(self.model):
                drawn = self.model.generate(ids, **options)
        return [ended(tokens, self.end) for tokens in drawn[:, len(prompt):].tolist()]


class Vllm:
    """LLM in this process; its sampler and ours are exchanged between arms."""

    name = "vllm"

    def __init__(self, arguments, model, tokenizer):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import flashsampling.vllm as plugin

        plugin.register()
        import vllm
        import vllm.v1.worker.gpu.model_runner as module

        self.vllm, self.plugin, self.module, self.end = vllm, plugin, module, tokenizer.eos_token_id
        limit = model.config.max_position_embeddings
        self.llm = vllm.LLM(model=arguments.model, dtype="bfloat16", max_model_len=limit, max_num_seqs=256,
                            max_num_batched_tokens=8192, gpu_memory_utilization=0.1, enable_prefix_caching=False,
                            kv_cache_memory_bytes=2 << 30, skip_tokenizer_init=True, enforce_eager=arguments.eager)
        if module.GPUModelRunner.sample is not plugin._sample:
            sys.exit("quality: the plug-in does not know this vLLM")

    def arm(self, arm):
        (self.plugin.unpatch if arm == "stock" else self.plugin.patch)(self.module)

    def generate(self, prompts, params):
        outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(each.token_ids) for output in outputs for each in output.outputs]

    def params(self, rules, most, seed):
        return self.vllm.SamplingParams(**rules, max_tokens=most, seed=seed, detokenize=False,
                                        stop_token_ids=[self.end])

    def complete(self, arm, prompt, number, rules, most, seed):
        self.arm(arm)
        seeds = np.random.default_rng(seed).integers(0, 2**62, number)
        drawn = self.generate([prompt] * number, [self.params(rules, most, int(each)) for each in seeds])
        return [ended(tokens, self.end) for tokens in drawn]

    def repeated(self, arm, prompts, most):
        """The shares of completions that are equal with equal seeds: all at once against backwards, in fours, alone,
        and with prompts read in pieces among the draws of others."""
        self.arm(arm)
        params = [self.params(RULES["t1"], most, 1000 + i) for i in range(len(prompts))]
        first = self.generate(prompts, params)
        found = {"backwards": self.generate(prompts[::-1], params[::-1])[::-1]}
        for name, size in (("in fours", 4), ("alone", 1)):
            found[name] = [tokens for i in range(0, len(prompts), size)
                           for tokens in self.generate(prompts[i:i + size], params[i:i + size])]
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        whole, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, BUDGET
        found["prompts in pieces"] = self.generate(prompts, params)
        scheduler.max_num_scheduled_tokens = whole
        return {name: float(np.mean([a == b for a, b in zip(first, again)])) for name, again in found.items()}


def ended(tokens, end):
    """Up to the end of the text, which belongs to it."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def cut_law(logits, rules):
    """Probabilities [.., V] that are drawn from: temperature, top-k with ties, top-p of what is left."""
    import torch

    x = logits.double() / rules["temperature"]
    if 0 < rules["top_k"] < x.shape[-1]:
        x = x.masked_fill(x < x.topk(rules["top_k"], -1).values[..., -1:], -torch.inf)
    p = x.softmax(-1)
    if rules["top_p"] < 1:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        gone = ordered.cumsum(-1) - ordered >= rules["top_p"]
        p = p.scatter(-1, order, ordered.masked_fill(gone, 0.0))
        p = p / p.sum(-1, keepdim=True)
    return p


def score(model, prompts, drawn, owners, rules, seed):
    """What quality_stats.study wants of completions. The log-likelihood is the model's own, without rules."""
    import torch

    generator, most = np.random.default_rng(seed), max(map(len, drawn))
    loglik, excess, variance = np.zeros((3, len(drawn)))
    pit, outside = np.full((len(drawn), most), np.nan), 0
    at_once = max(1, LOGITS // (most * model.config.vocab_size))
    for first in range(0, len(drawn), at_once):
        some = range(first, min(first + at_once, len(drawn)))
        logits, tokens = logits_along(model, [prompts[owners[i]] for i in some], [drawn[i] for i in some])
        owner = np.repeat(some, [len(drawn[i]) for i in some])
        place = np.concatenate([np.arange(len(drawn[i])) for i in some])
        logp, law = logits.double().log_softmax(-1), cut_law(logits, rules)
        taken, expected = logp.gather(1, tokens)[:, 0], (law * logp).sum(-1)
        spread = (law * (logp - expected[:, None]) ** 2).sum(-1)
        for sums, values in ((loglik, taken), (excess, taken - expected), (variance, spread)):
            np.add.at(sums, owner, values.cpu().numpy())
        # The mass of likelier tokens: what a wrong temperature or cut moves. Equal ones are in the order of ids.
        mine, number = law.gather(1, tokens), torch.arange(law.shape[1], device=law.device)
        above = torch.where((law > mine) | (law == mine) & (number < tokens), law, 0.0).sum(1)
        u = above.cpu().numpy() + generator.random(len(owner)) * mine[:, 0].cpu().numpy()
        pit[owner, place] = np.minimum(u, 1 - 1e-12)
        outside += int((mine == 0).sum())
    # With cuts a token at their edge may be in or out as the model that judges rounds.
    first = [] if rules["top_k"] or rules["top_p"] < 1 else first_tokens(model, prompts, drawn, owners, rules)
    return dict(tokens=drawn, prompts=np.asarray(owners), loglik=loglik, excess=excess, variance=variance, pit=pit,
                outside=outside, first=first)


def logits_along(model, prompts, drawn):
    """The logits [N, V] that each of the N tokens drawn was drawn from, and the tokens [N, 1]."""
    import torch

    texts = [prompt + tokens for prompt, tokens in zip(prompts, drawn)]
    ids = torch.zeros((len(texts), max(map(len, texts))), dtype=torch.long)
    there = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (prompt, text) in enumerate(zip(prompts, texts)):
        ids[row, : len(text)] = torch.tensor(text)
        there[row, len(prompt) - 1 : len(text) - 1] = True
    with torch.inference_mode():
        logits = model(ids.to(model.device)).logits[there.to(model.device)].float()
    tokens = torch.tensor([token for tokens in drawn for token in tokens], device=logits.device)
    return logits, tokens[:, None]


def first_tokens(model, prompts, drawn, owners, rules):
    """p-values of the first tokens of each prompt, by their counts."""
    import torch

    found = []
    for number, prompt in enumerate(prompts):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt], device=model.device)).logits[0, -1].float()
        tokens = [each[0] for each, owner in zip(drawn, owners) if owner == number]
        found.append(quality_stats.chi_counts(tokens, cut_law(logits, rules).cpu().numpy()))
    return found


def same_draws(model, prompts, seed):
    """Whether tokens of the model's hidden states are functions of seed and position alone: in any batch and row."""
    import torch

    import flashsampling as fs

    device = model.device
    with torch.inference_mode():
        hidden = torch.cat([model.model(torch.tensor([prompt], device=device)).last_hidden_state[0]
                            for prompt in prompts])
    weight = model.lm_head.weight.data
    if device.type == "cuda":
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    context, head, rows = fs.Context(device.type), fs.Head(weight), len(hidden)
    seeds = torch.arange(rows, dtype=torch.int64, device=device) * 7919 + seed
    position = torch.arange(rows, dtype=torch.int64, device=device) % 5

    def draw(chosen):
        chosen = torch.as_tensor(chosen, device=device)
        return context.sample(head, hidden[chosen].contiguous(), seed=seeds[chosen], position=position[chosen]).tokens

    whole = draw(np.arange(rows)).flatten().tolist()
    order, equal = np.random.default_rng(seed).permutation(rows), True
    for size in (1, 3, 16, rows):
        parts = torch.cat([draw(order[i : i + size]).flatten() for i in range(0, rows, size)]).tolist()
        equal &= [parts[place] for place in np.argsort(order)] == whole
    return equal


class Study:
    def __init__(self, arguments):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        import torch

        self.arguments, self.began = arguments, time.perf_counter()
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        device = "cuda" if arguments.engine == "vllm" else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(arguments.model).eval()
        # What vLLM serves is rounded, and so is what judges it.
        self.model = self.model.to(device, torch.bfloat16 if device == "cuda" else torch.float32)
        self.engine = {"vllm": Vllm, "transformers": Transformers}[arguments.engine](arguments, self.model, tokenizer)
        self.prompts = [tokenizer(text)["input_ids"] for text in PROMPTS[: arguments.prompts]]
        self.most = min(arguments.tokens, self.model.config.max_position_embeddings - max(map(len, self.prompts)))
        self.results = {"about": dict(engine=arguments.engine, model=os.path.basename(arguments.model.rstrip("/")),
                                      completions=arguments.n, prompts=len(self.prompts), tokens=self.most,
                                      commit=arguments.commit, date=time.strftime("%Y-%m-%d"),
                                      invariant=os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1"), "pairs": []}
        self.say("ready")

    def say(self, text):
        print("%6.1f s  %s" % (time.perf_counter() - self.began, text), flush=True)

    def sample(self, arm, rules, seed):
        number, drawn, owners = max(1, self.arguments.n // len(self.prompts)), [], []
        law = dict(rules)
        if arm == "planted":
            rules = dict(rules, temperature=rules["temperature"] * PLANTED)
        for i, prompt in enumerate(self.prompts):
            drawn += self.engine.complete(arm, prompt, number, rules, self.most, 1000 * seed + i)
            owners += [i] * number
        self.say("%s: %d completions, %d tokens" % (arm, len(drawn), sum(map(len, drawn))))
        return score(self.model, self.prompts, drawn, owners, law, seed)

    def pair(self, name, a, b, label):
        tests = quality_stats.study(a, b)
        rejected = [test for test, found in tests.items() if found["rejected"] and not found["stock_too"]]
        self.results["pairs"].append(dict(rules=name, pair=label, tests=tests, rejected=rejected,
                                          outside=[a["outside"], b["outside"]]))
        print_pair(name, label, tests, rejected, (a["outside"], b["outside"]))
        return rejected

    def run(self):
        good = True
        for number, name in enumerate(filter(None, self.arguments.rules.split(","))):
            samples = {arm: self.sample(arm, RULES[name], 10 * number + i + 1)
                       for i, arm in enumerate(("stock", "ours", "planted"))}
            good &= not self.pair(name, samples["stock"], samples["ours"], "stock, ours")
            good &= bool(self.pair(name, samples["stock"], samples["planted"], "stock, planted"))
            self.save()
        same = same_draws(self.model, self.prompts * 4, 3)
        self.results["same draws in any batch"] = same
        self.say("equal seeds and positions in other batches and rows: %s" % ("equal" if same else "DIFFERENT"))
        if self.engine.name == "vllm":
            self.results["counts"] = self.engine.plugin.counts()
            self.say("steps: %s" % self.results["counts"])
            self.results["repeated"] = {arm: self.engine.repeated(arm, self.prompts * 4, self.most)
                                        for arm in ("stock", "ours")}
            for arm, shares in self.results["repeated"].items():
                self.say("%s: completions equal to those of one batch, by seed: %s" % (arm, shares))
        self.save()
        return good and same

    def save(self):
        if self.arguments.json:
            with open(self.arguments.json, "w") as file:
                json.dump(self.results, file, indent=1, default=float)


def print_pair(name, label, tests, rejected, outside):
    print("\n%s: %s; tokens that the model's cut leaves out: %d, %d" % (name, label, *outside))
    print("| test | first | second | difference | its error | found with p = .8 | p |\n|---|---|---|---|---|---|---|")
    for test, found in tests.items():
        if "difference" in found:
            print("| %s | %.4f | %.4f | %+.4f | %.4f | %.4f | %.3g |" % (
                test, found["a"], found["b"], found["difference"], found["error"], found["detectable"], found["p"]))
    print("| distribution of lengths | | | | | | %.3g |" % tests["distribution of lengths"]["p"])
    for text, some in (("log-likelihood", "log-likelihood against"), ("positions", "position"),
                       ("first tokens", "first")):
        found = [found for test, found in tests.items() if test.startswith(some)]
        if found:
            least = [min(each[name] for each in found) for name in ("p_of_a", "p")]
            print("| %s against the model, %d tests: least p of each | %.3g | %.3g | | | | %.3g |" % (
                text, len(found), *least, least[1]))
    failed = [test for test, found in tests.items() if found["stock_too"]]
    if failed:
        print("the first fails these too, so they say something of the model that judges: %s" % ", ".join(failed))
    print("rejected: %s" % (", ".join(rejected) or "none"), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="build/model", help="a folder with a checkpoint (make model)")
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("-n", type=int, default=10000, help="completions of each arm")
    parser.add_argument("--tokens", type=int, default=96, help="at most, of each")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--rules", default="t1,kp", help="empty: only what equal seeds give")
    parser.add_argument("--eager", action="store_true", help="vLLM without compiled graphs: a quicker start")
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    study = Study(parser.parse_args(arguments))
    return 0 if study.run() else 1


if __name__ == "__main__":
    sys.exit(main())
