"""A serving loop: requests come and go, each has its own rules, seed and slot, and one call per step draws a token for
every running request. docs/guide/replace-your-sampler.md explains it step by step."""
from dataclasses import dataclass, field

import numpy as np
import flashsampling as fs

SLOTS, D, V = 3, 64, 8000
rng = np.random.default_rng(0)
weight = rng.standard_normal((V, D), dtype=np.float32)         # the LM head, [V, D]
embedding = rng.standard_normal((V, D), dtype=np.float32) / 2  # stands for the model


@dataclass
class Request:
    arrives: int                # the step it comes in
    length: int                 # how many tokens it wants
    prompt: int                 # stands for its tokens
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    grammar: bool = False
    logprobs: bool = False
    tokens: list = field(default_factory=list)
    logprob: list = field(default_factory=list)
    error: str = ""


def forward(request):
    """Your model: the hidden state behind the request's last token, or behind its prompt."""
    last = request.tokens[-1] if request.tokens else request.prompt
    return np.tanh(embedding[last] + 0.1 * len(request.tokens))


def allowed(request):
    """Your grammar: only tokens below 100, and after three tokens none at all, as a broken grammar would."""
    mask = np.zeros((1, V), bool)
    mask[0, :100] = len(request.tokens) < 3
    return fs.pack_bits(mask)


# By slot: written when a request arrives, and valid until it leaves.
temperature = np.ones(SLOTS, np.float32)
top_k = np.zeros(SLOTS, np.int32)
top_p = np.ones(SLOTS, np.float32)
seed = np.zeros(SLOTS, np.uint64)
masks = np.zeros((SLOTS, V // 32), np.uint32)  # one bit per token

# By row: written in every step.
slot = np.full(SLOTS, -1, np.int32)
position = np.zeros(SLOTS, np.uint64)
mask_of_row = np.full(SLOTS, -1, np.int32)  # -1: no mask
hidden = np.zeros((SLOTS, D), np.float32)

sampler = fs.Sampler(fs.Head(weight), rows=SLOTS, slot=slot, slots=SLOTS, position=position, temperature=temperature,
                     top_k=top_k, top_p=top_p, seed=seed, allow=masks, allow_index=mask_of_row, outputs=["logprob"],
                     on_error="status")


def admit(request, s):
    temperature[s], top_k[s], top_p[s] = request.temperature, request.top_k, request.top_p
    seed[s] = request.seed


def fill_rows(running):
    rows = 0
    for s, request in running.items():
        slot[rows], position[rows] = s, len(request.tokens)
        mask_of_row[rows] = s if request.grammar else -1
        if request.grammar:
            masks[s] = allowed(request)
        hidden[rows] = forward(request)
        rows += 1
    return rows


def collect(running, rows, result):
    for b in range(rows):
        request = running[int(slot[b])]
        if result.tokens[b] < 0:  # this request fails; the other rows have their tokens
            request.error = "no token allowed" if result.status[b] & fs.Row.EMPTY else "bad request"
            del running[int(slot[b])]
            continue
        request.tokens.append(int(result.tokens[b]))
        request.logprob.append(float(result.logprob[b]))
        if len(request.tokens) == request.length:
            del running[int(slot[b])]


def serve(requests):
    waiting, running, step = list(requests), {}, 0  # running: slot -> request
    while waiting or running:
        for s in range(SLOTS):
            if s not in running and waiting and waiting[0].arrives <= step:
                running[s] = waiting.pop(0)
                admit(running[s], s)
        if rows := fill_rows(running):
            collect(running, rows, sampler(hidden[:rows]))
        step += 1


def make_requests():
    return [Request(arrives=0, length=6, prompt=1, seed=11),
            Request(arrives=0, length=3, prompt=2, seed=12, temperature=0),
            Request(arrives=1, length=5, prompt=3, seed=13, temperature=0.7, top_k=40, top_p=0.9, grammar=True),
            Request(arrives=2, length=4, prompt=4, seed=14, temperature=0.8, top_p=0.95, logprobs=True),
            Request(arrives=2, length=4, prompt=5, seed=15, temperature=1.2, top_k=5)]


requests = make_requests()
serve(requests)
for number, request in enumerate(requests):
    print(f"request {number}: {request.tokens} {request.error}".rstrip())
    if request.logprobs:
        print("  logprobs:", " ".join(f"{value:.2f}" for value in request.logprob))

for number, request in enumerate(make_requests()):
    request.arrives = 0
    serve([request])
    assert request.tokens == requests[number].tokens
print("each request gets the same tokens when it runs alone")
