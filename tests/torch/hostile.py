"""Heads, hidden states and the ways they may lie, for the tests of what programs do to them."""
import torch

B, D, V = 4, 32, 500
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def tensors(dtype=torch.float32, rows=B):
    g = torch.Generator().manual_seed(1)
    return torch.randn(rows, D, generator=g).to(dtype), torch.randn(V, D, generator=g).to(dtype)


H, W = tensors()


def best(hidden, weight):
    """The greedy tokens in double."""
    return (hidden.double() @ weight.double().T).argmax(1).tolist()


class Named(torch.Tensor):
    """A subclass with a method of its own."""


VIEWS = {
    "packed": lambda t: t.clone(),
    "rows apart": lambda t: torch.cat([t, t], 1)[:, :t.shape[1]],
    "offset": lambda t: torch.cat([t[:1], t])[1:],
    "offset inside a row": lambda t: torch.cat([t[:, :3], t, t[:, :5]], 1)[:, 3:-5],
    "every other row": lambda t: torch.repeat_interleave(t, 2, 0)[::2],
    "last of a sequence": lambda t: torch.stack([t * 0, t], 1)[:, -1],
    "requires grad": lambda t: t.clone().requires_grad_(),
    "of a graph": lambda t: t.clone().requires_grad_() * 1,
    "a parameter": lambda t: torch.nn.Parameter(t.clone()),
    "a subclass": lambda t: t.clone().as_subclass(Named),
    "shared memory": lambda t: t.clone().share_memory_(),
}
