"""Time per output token under load, as servers are measured: requests come by chance (a Poisson process), B at most are
in work at once, prompts of some are read while others draw. In the process of make tpot, so that arms can take turns
(python bench/tpot.py --serve 16,64). A request's time per token is that between its first token and its last, over the
tokens behind the first; a run's is the median of its requests, as `vllm bench serve` has it.
"""
import itertools
import random
import statistics
import time

LOAD = 1.25  # requests come faster by this than they are done, so that B are in work all the time


def serve(engine, prompt, params, B, requests, rate, seed, clock=time.perf_counter, sleep=time.sleep):
    """One run of an engine (add_request, step, has_unfinished_requests); prompt(random) makes one. Medians of ms."""
    rng = random.Random(seed)
    due = list(itertools.accumulate(rng.expovariate(rate) for _ in range(requests)))
    sent, first, last, tokens, done = {}, {}, {}, {}, 0
    began = clock()
    while done < requests:
        now = clock() - began
        while len(sent) < requests and due[len(sent)] <= now and len(sent) - done < B:
            name = "%d-%d" % (seed, len(sent))
            sent[name] = clock()
            engine.add_request(name, prompt(rng), params)
        if not engine.has_unfinished_requests():
            sleep(max(0.0, due[len(sent)] - (clock() - began)))
            continue
        for output in engine.step():
            name, now = output.request_id, clock()
            first.setdefault(name, now)
            last[name] = now
            tokens[name] = tokens.get(name, 0) + len(output.outputs[0].token_ids)
            done += output.finished
    each = [(last[name] - first[name]) / (tokens[name] - 1) for name in sent]
    return {"tpot_ms": 1e3 * statistics.median(each), "ttft_ms": 1e3 * statistics.median(
                first[name] - sent[name] for name in sent), "tokens_s": sum(tokens.values()) / (clock() - began)}


def cells(run, sizes, rules):
    """Rounds of runs of every arm, for each B: {"B", "rules", "rounds": {arm: [...]}}, added to run.results."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    arguments, engine = run.arguments, run.llm.llm_engine
    params = SamplingParams(max_tokens=arguments.new, ignore_eos=True, detokenize=False,
                            output_kind=RequestOutputKind.DELTA, **rules)
    run.tap.pool, seed = run.pools["language"], itertools.count(1)

    def prompt(rng):
        return {"type": "token", "prompt_token_ids": [rng.randrange(1000, 150000) for _ in range(arguments.prompt)]}

    def one(arm, B, waves, rate):
        run.tap.arm = arm
        found = serve(engine, prompt, params, B, waves * B, rate, next(seed))
        run.tap.take()
        return found

    for B in sizes:
        waves = max(2, 16 // B)
        for arm in run.arms:  # kernels are compiled when they are first used
            one(arm, B, 1, 1e9)
        rate = LOAD * B / (arguments.new * one("stock", B, 1, 1e9)["tpot_ms"] / 1e3)
        cell = {"B": B, "rules": rules, "rate": rate, "rounds": {arm: [] for arm in run.arms}}
        for number in range(arguments.rounds):
            for arm in list(cell["rounds"])[:: -1 if number % 2 else 1]:
                cell["rounds"][arm].append(one(arm, B, waves, rate))
        run.results.setdefault("serve", []).append(cell)
        run.say(line(cell))
        run.save()


def line(cell):
    """Medians of the runs, and their standard deviation."""
    texts = []
    for arm, turns in cell["rounds"].items():
        values = [turn["tpot_ms"] for turn in turns]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        texts.append("%s %.3f +- %.3f" % (arm, statistics.median(values), spread))
    gains = [1 - y["tpot_ms"] / x["tpot_ms"] for x, y in zip(cell["rounds"]["stock"], cell["rounds"]["ours"])]
    return "served, B = %d, %.0f requests/s: ms a token %s; ours takes %.1f %% less" % (
        cell["B"], cell["rate"], ", ".join(texts), 100 * statistics.mean(gains))
