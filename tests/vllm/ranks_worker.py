"""One process of tests/vllm/test_ranks.py: draws a step of every case and prints tokens, counts and gathered bytes."""
import json

import conftest  # noqa: F401  no device, Triton's interpreter, paths
from real_world import World, model_runner
from vllm.distributed import get_tp_group
from vllm_cases import OUTPUT, PROMPT, cases
from vllm_standin import Request

import flashsampling.vllm as fsv

CASES, ROWS = {**cases(300), "logprobs": dict(logprobs=3)}, 5


def draw(rules):
    world = World(slots=ROWS)
    for slot in range(ROWS):
        world.add(slot, Request(PROMPT, OUTPUT, **{**rules, "seed": 7 + slot}))
    hidden, batch = world.batch(range(ROWS))
    world.runner.sample(hidden, batch, None)  # looks at the head first
    fsv._counts.clear()
    sizes.clear()
    output = world.runner.sample(hidden, batch, None)[0]
    best = None if output.logprobs_tensors is None else output.logprobs_tensors.logprob_token_ids.tolist()
    drawer = world.runner.__dict__.get("_flashsampling")
    return {"tokens": output.sampled_token_ids.tolist(), "best": best, "counts": fsv.counts(), "gathered": sizes[:],
            "wire": drawer and drawer.call.result.wire_bytes}


sizes, group = [], get_tp_group()
gather = group.all_gather
group.all_gather = lambda tensor, *more: (sizes.append(tensor.nbytes), gather(tensor, *more))[1]
assert fsv.patch(model_runner)
found = {name: draw(rules) for name, rules in CASES.items()}
fsv.unpatch(model_runner)
found["vLLM's own"] = draw({})
print("\n" + json.dumps(found))
