"""What make tpot exchanges in vLLM: GPUModelRunner.sample as vLLM has it, as flashsampling.vllm has it, with screens
if a run asks for those arms, or as if head and sampler took no time; each timed on the device and on the host, over
rows that are known.

The body of the model has random weights, whose hidden states make rows of no likeness. Before every call, outside of
what is timed, rows of a pool take their place: language-like ones, or flat ones, from the same head (gpu_language.py;
with screens gpu_screens.py).
"""
import functools
import time

import gpu_language
import gpu_screens
from gpu_rows import COLUMNS
from tpot_tables import SCREENED

POOL = 1024  # rows
KEY = "_flashsampling"  # where a runner has its drawer
ARMS = ("stock", "ours", "null")


class Tap:
    """Stands in GPUModelRunner.sample."""

    def __init__(self, torch, plugin, module, parts):
        self.torch, self.plugin, self.runner_class, self.parts = torch, plugin, module.GPUModelRunner, parts
        self.original = {"stock": plugin._stock["sample"], "ours": plugin._sample, "null": self.null}
        self.screened = {}  # by bits, the drawer that has such a screen
        self.runner = self.pool = self.mask = self.constant = None
        self.arm, self.step, self.calls, self.differ, self.by_seed = "ours", 0, [], [], False
        self.equal = {}  # by bits, of ours with and without a screen: [(tokens, equal ones)]
        tap = self

        def sample(self, hidden_states, input_batch, grammar_output):
            return tap(self, hidden_states, input_batch, grammar_output)

        self.runner_class.sample = sample

    def null(self, runner, hidden, batch, grammar):
        """The same token for all: what is left is the model's body and the engine."""
        torch = self.torch
        if self.constant is None:
            self.constant = torch.full((4096, 1), 1000, dtype=torch.int64, device=hidden.device)
        prefill = runner.req_states.prefill_len.gpu
        sampled, rejected = self.parts["count"](batch.seq_lens.new_ones(batch.num_reqs), batch.seq_lens,
                                                batch.cu_num_logits, batch.idx_mapping, prefill)
        output = self.parts["output"](sampled_token_ids=self.constant[: batch.num_reqs], logprobs_tensors=None,
                                      num_nans=None, num_sampled=sampled, num_rejected=rejected)
        return output, sampled, rejected

    def screen(self, bits):
        """The arm with a screen, of the head as it is now; how many bytes it has."""
        drawer = self.screened[bits] = self.plugin.Drawer(self.runner, self.torch.zeros_like(self.pool[:1]), bits=bits)
        if drawer.call.head.screen is None:
            raise SystemExit("tpot: no screen of %d bits, the log says why" % bits)
        self.original[SCREENED[bits]] = functools.partial(self.with_screen, drawer)
        self.equal[bits] = []
        return drawer.call.head.screen.nbytes

    def with_screen(self, drawer, runner, hidden, batch, grammar):
        plain, runner.__dict__[KEY] = runner.__dict__[KEY], drawer
        try:
            return self.plugin._sample(runner, hidden, batch, grammar)
        finally:
            runner.__dict__[KEY] = plain

    def __call__(self, runner, hidden, batch, grammar):
        self.runner, rows, decode = runner, batch.num_reqs, batch.num_tokens == batch.num_reqs
        if self.pool is not None:
            self.step = (self.step + 1) % (POOL - rows)
            taken = self.pool[self.places(runner, batch) if self.by_seed else slice(self.step, self.step + rows)]
            if decode:
                hidden[:rows].copy_(taken)
            else:
                hidden[batch.logits_indices] = taken
        if self.mask is not None and decode:
            grammar = self.parts["grammar"](structured_output_request_ids=list(batch.req_ids),
                                            grammar_bitmask=self.mask[:rows])
        if self.arm == "check":
            return self.check(runner, hidden, batch, grammar)
        if not decode:
            return self.original[self.arm](runner, hidden, batch, grammar)
        before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        before.record()
        result = self.original[self.arm](runner, hidden, batch, grammar)
        after.record()
        self.calls.append((began, time.perf_counter() - began, before, after))
        return result

    @staticmethod
    def places(runner, batch):
        """Rows of the pool as functions of seed and position: the same for a request in any batch."""
        seeds = runner.sampler.sampling_states.seeds.gpu[batch.expanded_idx_mapping.long()]
        return (seeds * 7919 + batch.positions[batch.logits_indices] * 31) % POOL

    def check(self, runner, hidden, batch, grammar):
        """Greedy tokens of both; where they differ, how far apart the logits are that vLLM has for them."""
        result = self.original["stock"](runner, hidden, batch, grammar)
        ours = self.original["ours"](runner, hidden, batch, grammar)[0].sampled_token_ids
        theirs = result[0].sampled_token_ids
        for bits, drawer in self.screened.items():
            screened = self.with_screen(drawer, runner, hidden, batch, grammar)[0].sampled_token_ids
            self.equal[bits].append((ours.numel(), int((ours == screened).sum())))
        logits = runner.model.compute_logits(hidden[batch.logits_indices]).float()
        apart = (logits.gather(1, theirs) - logits.gather(1, ours)).abs()[theirs != ours]
        self.differ.append((theirs.numel(), apart.cpu().tolist()))
        return result

    def take(self):
        """What was timed since: seconds between calls, host and device times of each, and clears it."""
        calls, self.calls = self.calls, []
        self.torch.cuda.synchronize()
        began = [call[0] for call in calls]
        return began, [call[1] for call in calls], [call[2].elapsed_time(call[3]) for call in calls]


def same(llm, tap, prompts, params, budget):
    """{arm: {how: share}} of tokens that are those of one batch, for equal seeds, positions and hidden states:
    backwards, in fours, alone, and with `budget` tokens a step: prompts are read in pieces among others' draws."""
    def drawn(order, size):
        found = {}
        for i in range(0, len(order), size):
            some = order[i:i + size]
            outputs = llm.generate([prompts[j] for j in some], [params[j] for j in some], use_tqdm=False)
            found.update((j, output.outputs[0].token_ids) for j, output in zip(some, outputs))
        return [token for j in sorted(found) for token in found[j]]

    tap.by_seed, shares, order = True, {}, list(range(len(prompts)))
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    for tap.arm in ("stock", "ours"):
        first, again = drawn(order, len(order)), {"backwards": drawn(order[::-1], len(order)),
                                                  "in fours": drawn(order, 4), "alone": drawn(order, 1)}
        whole, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, budget
        again["prompts in pieces"] = drawn(order, len(order))
        scheduler.max_num_scheduled_tokens = whole
        shares[tap.arm] = {how: sum(a == b for a, b in zip(first, tokens)) / len(first)
                           for how, tokens in again.items()}
    tap.by_seed = False
    tap.take()
    return shares


def plant(torch, weight):
    """Makes a head of which rows can be language-like or flat; the norm's scale is of no matter, rows are exchanged."""
    V, D = weight.shape
    for piece in weight.split(16384):
        piece.copy_(torch.randn(piece.shape, device=weight.device) * (2.5 / D**0.5))
    weight[:, COLUMNS : COLUMNS + gpu_language.PROFILES] = torch.from_numpy(gpu_language.profiles(V)).to(weight)


def planted(bench, weight):
    """Makes the head; {kind: [POOL, D]} and what the language-like ones are (describe())."""
    plant(bench.torch, weight)
    return pools(bench, weight)


def turned(bench, weight):
    """The same where screens are read: a head without columns that are functions of the token. Those are outliers three
    hundred times as large as the other weights; no trained head has such, and 4 bits cannot hold both."""
    weight.copy_(gpu_screens.weights(bench, *weight.shape))
    found = {kind: bench.torch.cat([gpu_screens.hidden(bench, weight, 128, kind) for _ in range(0, POOL, 128)])
             for kind in ("language", "flat")}
    logits = (found["language"][:16] @ weight.T).float()
    return found, gpu_language.describe(logits.cpu().numpy())


def pools(bench, weight):
    """Rows of a head of plant()."""
    torch, D = bench.torch, weight.shape[1]
    exact = weight.float().T
    pieces, shown = [], None
    for _ in range(0, POOL, 128):
        hidden, logits = gpu_language.hidden(bench, exact, 128)
        shown = shown or gpu_language.describe(logits[:16].cpu().numpy())
        pieces.append(hidden)
    flat = torch.randn(POOL, D, device=weight.device) * gpu_language.RANDOM
    return {"language": torch.cat(pieces), "flat": gpu_language.clear(flat).bfloat16()}, shown
