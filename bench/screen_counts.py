"""How many logits a draw by a screen computes from W: heads that are hard for one, and a trained model's.

    python bench/screen_counts.py                                  synthetic heads, 151,936 x 4,096; wants 8 GB
    python bench/screen_counts.py --model DIR --text FILE          a checkpoint's head and its hidden states over a text
    python bench/screen_counts.py --real build/real                what `make real` has written, every text

One row a call, with every screen and without, at every rule below; the tokens must be the same. Numbers are the median,
the 95 % quantile and the largest of all rows that the screen has decided; rows that were given up, and read W, are counted in brackets.

Synthetic rows of W are normal, of norm 1 +- 15 %, one in twenty with a column 20 times as large; hidden states are
normal, of norm 145 to 198, every other one with 16 columns 10 times as large. They have nothing to do with any token,
so rows are far flatter than a language model's. Then one head each with rows that are 8 times as large (one in a
hundred), with 16 columns that are 10 times as large, with every row twice, and with hidden states ten times longer.
"""
import argparse
import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import flashsampling as fs  # noqa: E402

RULES = {"T = 1": {}, "T = .7": dict(temperature=0.7), "T = .1": dict(temperature=0.1), "T = 5": dict(temperature=5.0),
         "greedy": dict(temperature=0.0), "min-p .05": dict(min_p=0.05), "top-k 50": dict(top_k=50),
         "top-k 20, top-p .95": dict(top_k=20, top_p=0.95),
         "top-k 40, top-p .95, min-p .05": dict(top_k=40, top_p=0.95, min_p=0.05)}
BITS = (8, 4, "4+8", "4+8 by H")  # the last: columns chosen by hidden states of the text, which are then left out
CHOOSING = 8  # hidden states that choose


def of_norm(rows, norms):
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None].astype(np.float32)
    return rows


def synthetic_weights(V, D, rng):
    W = rng.standard_normal((V, D), dtype=np.float32)
    some = np.arange(0, V, 20)
    W[some, rng.integers(0, D, len(some))] *= 20
    return of_norm(W, 1 + 0.15 * rng.standard_normal(V))


def synthetic_hidden(n, D, rng):
    H = rng.standard_normal((n, D), dtype=np.float32)
    H[::2, rng.integers(0, D, 16)] *= 10
    return of_norm(H, rng.uniform(145, 198, n))


def synthetic_heads(V, D, n, seed):
    """A name, W [V, D] and H [n, D] in float for each; W is changed for the next one when it has been used."""
    rng = np.random.default_rng(seed)
    W, H = synthetic_weights(V, D, rng), synthetic_hidden(n, D, rng)
    yield "as said", W, H
    yield "h ten times longer", W, 10 * H
    large = rng.integers(0, V, V // 100)
    kept = W[large]
    W[large] = 8 * kept
    yield "outlier rows", W, H
    W[large] = kept
    columns = rng.choice(D, 16, replace=False)
    kept = W[:, columns]
    W[:, columns] = 10 * kept
    yield "outlier columns", W, H
    W[:, columns] = kept
    W[1::2] = W[: V // 2 * 2 : 2]
    yield "every row twice", W, H


def model_head(folder, text, n, seed):
    """The output head of a checkpoint, and hidden states at n places of a text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    with open(text, encoding="utf-8") as file:
        tokens = torch.tensor(tokenizer(file.read(), add_special_tokens=False)["input_ids"])
    context = min(model.config.max_position_embeddings, len(tokens))
    windows = tokens[: len(tokens) // context * context].view(-1, context)[:512]
    with torch.inference_mode():
        hidden = torch.cat([model.base_model(window[None]).last_hidden_state[0] for window in windows]).numpy()
        weights = model.get_output_embeddings().weight.numpy()
    if len(hidden) < n:
        sys.exit("--text %s: %d tokens, and %d rows are asked for" % (text, len(hidden), n))
    yield "trained", weights, hidden[np.random.default_rng(seed).choice(len(hidden), n, replace=False)]


def real_heads(folder, n, seed):
    """The head and every text that scripts/real_model.py has written, n positions of each."""
    read = {name: np.load(os.path.join(folder, name + ".npy")) for name in ("head", "prose", "code", "chat")}
    read = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in read.items()}
    for name in ("prose", "code", "chat"):
        places = np.random.default_rng(seed).permutation(len(read[name]))[:n]
        yield name, read["head"], read[name][places]


def drawn(context, head, hidden, rules, seed):
    return context.sample(head, hidden, hidden_dtype="bf16", seed=seed, **rules).tokens


class Count:
    """Of one head, screen and rule: logits of every row that was decided, and how many were not."""

    def __init__(self):
        self.dots, self.given_up, self.differ = [], 0, 0

    def add(self, got, want, counters):
        self.differ += not np.array_equal(got, want)
        if counters.screened_rows:
            self.dots.append(counters.screened_dots)
        else:
            self.given_up += 1

    def __str__(self):
        decided = ""
        if self.dots:
            decided = "{:,} / {:,} / {:,}".format(*(int(q) for q in np.quantile(self.dots, (0.5, 0.95, 1.0))))
        return " ".join(filter(None, (decided, "(%d)" % self.given_up if self.given_up else "")))


def count(context, weights, hidden, seed, counts):
    """Every row by every rule, from W and by screens; `counts` has a Count for each of BITS and RULES."""
    W, H = fs.to_bf16(weights), fs.to_bf16(hidden)
    plain = fs.Head(W, dtype="bf16")
    some = {"4+8 by H": dict(hidden=H[:CHOOSING])}
    heads = {bits: fs.Head(W, dtype="bf16", screen=context.screen(plain, str(bits).split(" ")[0], **some.get(bits, {})))
             for bits in BITS}
    H = H[CHOOSING:]
    for name, rules in RULES.items():
        for i in range(len(H)):
            want = drawn(context, plain, H[i : i + 1], rules, seed + i)
            for bits in BITS:
                got = drawn(context, heads[bits], H[i : i + 1], rules, seed + i)
                counts[bits, name].add(got, want, context.counters)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", metavar="DIR", help="a checkpoint, in place of synthetic heads; needs torch and transformers")
    add("--text", metavar="FILE", help="what the checkpoint reads")
    add("--real", metavar="DIR", help="the folder of scripts/real_model.py, in place of synthetic heads")
    add("--vocab", type=int, default=151936, help="rows of synthetic heads (151936)")
    add("--dim", type=int, default=4096, help="their columns (4096)")
    add("--rows", type=int, help="hidden states for each seed (16; of a checkpoint 256)")
    add("--seeds", type=int, default=2, help="how many (2)")
    add("--threads", type=int, default=0, help="0: every core (0)")
    o = parser.parse_args()
    o.rows = (o.rows or (256 if o.model else 64 if o.real else 16)) + CHOOSING
    if bool(o.model) != bool(o.text):
        parser.error("--model and --text: both or neither")
    for name, least in (("vocab", 100), ("dim", 16), ("rows", 1), ("seeds", 1), ("threads", 0)):
        if getattr(o, name) < least:
            parser.error("--%s %d: must be %d at least" % (name, getattr(o, name), least))
    return o


def main():
    o = arguments()
    began, tables, shape = time.monotonic(), {}, None
    os.environ["FLASHSAMPLING_SCREEN_ROWS"] = "1"  # in every call, whatever has become of the last one
    with fs.Context("cpu", threads=o.threads) as context:
        for seed in range(o.seeds):
            heads = model_head(o.model, o.text, o.rows, seed) if o.model else \
                real_heads(o.real, o.rows, seed) if o.real else synthetic_heads(o.vocab, o.dim, o.rows, seed)
            for name, weights, hidden in heads:
                shape = weights.shape
                counts = tables.setdefault(name, {(bits, rule): Count() for bits in BITS for rule in RULES})
                count(context, weights, hidden, 1000 * seed, counts)
                print("%6.0f s  seed %d: %s" % (time.monotonic() - began, seed, name), file=sys.stderr, flush=True)
        print("%s; %d x %d, bf16; %d rows of each head\n" % (context.text, *shape, (o.rows - CHOOSING) * o.seeds))
    print("| head | bits | %s |\n|---|---|%s" % (" | ".join(RULES), "---|" * len(RULES)))
    for name, counts in tables.items():
        for bits in BITS:
            print("| %s | %s | %s |" % (name, bits, " | ".join(str(counts[bits, rule]) for rule in RULES)))
    differ = sum(one.differ for counts in tables.values() for one in counts.values())
    print("\n%d tokens differ from those of W" % differ)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
