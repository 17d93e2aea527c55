"""FlashSampler, FusedFlashSamplingKernel, VLLMWithFlashSampling: names under which sketches of fused sampling in plain
PyTorch are passed around, on top of this library.

A program written against such a sketch changes its import and draws fused. Names, arguments and their order are those
of the sketches. What is different, and why:

- The draw is from softmax(logits / temperature). Noise belongs beside logits / temperature; the argmax of
  (logits + noise) / temperature is the same for every temperature.
- Every token can be drawn: groups share the vocabulary out, and what does not divide goes to the first of them.
- tile_size changes nothing, neither tokens nor speed: the library chooses its tiles, and no token depends on them.
- temperature 0 is greedy. Seeds come from torch's default generator: torch.manual_seed makes draws repeat.
- A row without a distribution (only NaN or -inf) raises RowError on the CPU. On a GPU, where nothing waits for the
  device, it gets -1, which is no token.
- What else a class does differently is in its own text.

Weights are used as they lie, on the CPU or, with a library built for it, on a GPU (there sample_grouped takes float16
and bfloat16 alone). What cannot be used so is copied in every call: float64, which is drawn from as float32, and views
that are transposed or expanded. For hidden states and logits that costs little; for weights it costs more than the
draw. A program that does so often makes the copy itself, once: weight.float().contiguous().

temperature is a number, or a tensor with one value per row, [B] or [B, 1].
"""
from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ._arrays import check_plain, real
from ._call import Batch, Head
from ._sample import default_context, fresh_seed, sample, sample_logits

__all__ = ["FlashSampler", "FusedFlashSamplingKernel", "VLLMWithFlashSampling"]


def _positive(value: int, what: str) -> int:
    if value != int(value) or value < 1:
        raise ValueError(f"{what}: {value}, expected a positive integer")
    return int(value)


def _temperature(value: float | torch.Tensor, rows: torch.Size) -> float | torch.Tensor:
    """A number, or float32 values of all rows; `rows` is the shape of tokens."""
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        if value.shape not in (rows, (*rows, 1)):
            raise ValueError(f"temperature: shape {list(value.shape)}, expected a number, {list(rows)} or "
                             f"{[*rows, 1]}")
        return value.reshape(-1).float()
    value = real(value, "temperature")
    if not 0 <= value < math.inf:
        raise ValueError(f"temperature: {value}, expected a number from 0 (greedy) up")
    return value


def _check_tensor(value: Any, what: str) -> None:
    """Refuses an argument that is no tensor, or one without rows in memory."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what}: a {type(value).__name__}, expected a tensor")
    if value.is_nested or value.layout is not torch.strided:
        check_plain(value, what)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The matrix with each row in one piece, rows apart, and no float64: a copy where it is not so."""
    if tensor.dtype is torch.float64:
        tensor = tensor.detach().float()
    apart, step = tensor.stride()
    return tensor if step == 1 and apart >= tensor.shape[1] else tensor.detach().contiguous()


class _Sized:
    """The sizes a sampler was made for, and whether tensors have them."""

    def __init__(self, vocab_size: int, hidden_dim: int, tile_size: int) -> None:
        self.vocab_size = _positive(vocab_size, "vocab_size")
        self.hidden_dim = _positive(hidden_dim, "hidden_dim")
        self.tile_size = _positive(tile_size, "tile_size")

    def _checked(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[
            torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """hidden, the vocabulary's rows of the head, and its bias as the library reads it."""
        _check_tensor(hidden, "hidden")
        _check_tensor(weight, "lm_head_weight")
        tokens, width = self.vocab_size, self.hidden_dim
        if hidden.dim() != 2 or hidden.shape[1] != width:
            raise ValueError(f"hidden: shape {list(hidden.shape)}, expected [batch_size, {width}]")
        if weight.dim() != 2 or weight.shape[1] != width or weight.shape[0] < tokens:
            raise ValueError(f"lm_head_weight: shape {list(weight.shape)}, expected [{tokens}, {width}], or more rows "
                             "as padding")
        if weight.device != hidden.device:
            raise ValueError(f"lm_head_weight: on {weight.device}, hidden is on {hidden.device}")
        if bias is not None:
            _check_tensor(bias, "lm_head_bias")
            if bias.device != hidden.device:
                raise ValueError(f"lm_head_bias: on {bias.device}, hidden is on {hidden.device}")
            if bias.dim() != 1 or bias.shape[0] not in (tokens, weight.shape[0]):
                raise ValueError(f"lm_head_bias: shape {list(bias.shape)}, expected [{tokens}]")
            bias = (bias if bias.shape[0] == tokens else bias.detach()[:tokens]).float()
        return _rows(hidden), _rows(weight if weight.shape[0] == tokens else weight.detach()[:tokens]), bias


class FlashSampler(_Sized):
    """Draws the next token of each row from softmax(hidden @ lm_head_weight.T / temperature), without storing logits.

    vocab_size and hidden_dim are what the tensors of every call are held against: hidden is [batch_size, hidden_dim],
    lm_head_weight [vocab_size, hidden_dim]; further rows of it are padding and never drawn. tile_size has no effect.

    lm_head_weight with fewer rows than vocab_size is refused. A sketch draws from the rows that are there until a tile
    has none, and fails then. Such weights are another model's, or a shard, whose draw is no draw of the model.
    """

    def __init__(self, vocab_size: int, hidden_dim: int, tile_size: int = 256) -> None:
        super().__init__(vocab_size, hidden_dim, tile_size)
        self.num_tiles = -(-self.vocab_size // self.tile_size)

    @staticmethod
    def gumbel_sample(logits: torch.Tensor, temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
        """Tokens [...] drawn from softmax(logits / temperature) of stored logits [..., vocabulary]."""
        _check_tensor(logits, "logits")
        if logits.dim() < 1 or logits.shape[-1] < 1:
            raise ValueError(f"logits: shape {list(logits.shape)}, expected [..., vocabulary]")
        rows = _rows(logits if logits.dim() == 2 else logits.reshape(-1, logits.shape[-1]))
        temperature = _temperature(temperature, logits.shape[:-1])
        tokens = sample_logits(rows, temperature=temperature, on_error=None).tokens
        return tokens if logits.dim() == 2 else tokens.view(logits.shape[:-1])

    def sample_tiled(self, hidden: torch.Tensor, lm_head_weight: torch.Tensor,
                     temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
        """Tokens [batch_size], int64, in one pass over lm_head_weight."""
        hidden, weight, _ = self._checked(hidden, lm_head_weight)
        temperature = _temperature(temperature, hidden.shape[:1])
        return sample(hidden, weight, temperature=temperature, on_error=None).tokens

    def sample_grouped(self, hidden: torch.Tensor, lm_head_weight: torch.Tensor,
                       temperature: float | torch.Tensor = 1.0, group_size: int = 4) -> torch.Tensor:
        """Tokens [batch_size], int64, drawn as group_size devices would, each with its share of the vocabulary.

        group_size is the number of groups. Each has vocab_size // group_size tokens, the first vocab_size % group_size
        of them one more, and makes its part of the draw from its rows of lm_head_weight alone; merging the parts gives
        the token. For one seed that is the token of sample_tiled, whatever the number of groups.
        """
        groups = _positive(group_size, "group_size")
        hidden, weight, _ = self._checked(hidden, lm_head_weight)
        each, more = divmod(self.vocab_size, groups)
        ends = [(each + 1) * i if i < more else each * i + more for i in range(groups + 1)]
        heads = [Head(weight[a:b], first_token=a, vocab=self.vocab_size) for a, b in zip(ends, ends[1:]) if a < b]
        context = default_context(str(weight.device))
        temperature = _temperature(temperature, hidden.shape[:1])
        batch = Batch(heads[0], hidden, temperature=temperature, seed=fresh_seed(hidden))
        tokens = torch.empty(hidden.shape[0], 1, dtype=torch.int64, device=hidden.device)
        out = {"tokens": tokens}
        parts = [context.partial(head, batch, out=out) for head in heads]
        context.merge(parts, heads[0], batch, out=out)
        return tokens[:, 0]


class FusedFlashSamplingKernel(_Sized):
    """FlashSampler.sample_tiled with a bias, on one device: its tensors must be there.

    The library's kernel is the fused one, so there is nothing to allocate beforehand. tile_size has no effect;
    tile_buffer and scratch_space are zeros that nothing uses.
    """

    def __init__(self, vocab_size: int, hidden_dim: int, tile_size: int = 256,
                 device: str | torch.device = "cuda") -> None:
        super().__init__(vocab_size, hidden_dim, tile_size)
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"device {str(self.device)!r}: torch sees no CUDA device; device='cpu' runs here")

    @functools.cached_property
    def tile_buffer(self) -> torch.Tensor:
        """Zeros [tile_size, hidden_dim]."""
        return torch.zeros(self.tile_size, self.hidden_dim, device=self.device)

    @functools.cached_property
    def scratch_space(self) -> torch.Tensor:
        """Zeros [tile_size]."""
        return torch.zeros(self.tile_size, device=self.device)

    def fused_lm_head_sample(self, hidden: torch.Tensor, lm_head_weight: torch.Tensor,
                             lm_head_bias: torch.Tensor | None = None,
                             temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
        """Tokens [batch_size], int64, from softmax((hidden @ lm_head_weight.T + lm_head_bias) / temperature)."""
        _check_tensor(hidden, "hidden")
        found = hidden.device
        if found.type != self.device.type or self.device.index not in (None, found.index):
            raise ValueError(f"hidden: on {found}, this sampler is for {self.device}")
        hidden, weight, bias = self._checked(hidden, lm_head_weight, lm_head_bias)
        temperature = _temperature(temperature, hidden.shape[:1])
        return sample(hidden, weight, bias=bias, temperature=temperature, on_error=None).tokens

    def benchmark_vs_standard(self, batch_size: int = 32, hidden_dim: int | None = None,
                              vocab_size: int | None = None, num_iterations: int = 100,
                              dtype: torch.dtype | None = None) -> float:
        """Times the fused draw beside torch's usual ways, prints medians and returns the speedup over the faster one.

        Sizes are those of the sampler unless given. A sketch takes 4096 and 128000 for every sampler: that is 2 GB of
        weights, from which a sampler of other sizes does not draw. All ways get the same tensors: dtype is bfloat16 on
        a GPU and float32 on the CPU unless given. The usual ways are matmul, softmax in float32, then
        torch.multinomial, or the largest of probability / exponential noise. Rounds of calls take turns, after one that
        is not counted; on a GPU a round's calls are queued before they are waited for. First the fused greedy tokens
        are held against the matmul's.
        """
        sizes = (_positive(batch_size, "batch_size"), hidden_dim or self.hidden_dim, vocab_size or self.vocab_size)
        batch_size, hidden_dim, vocab_size = sizes
        dtype = dtype or (torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        fused = FusedFlashSamplingKernel(vocab_size, hidden_dim, self.tile_size, self.device)
        hidden = torch.randn(batch_size, hidden_dim, device=self.device).to(dtype)
        weight = (torch.randn(vocab_size, hidden_dim, device=self.device) / hidden_dim**0.5).to(dtype)
        _check_greedy(fused, hidden, weight)

        def probabilities() -> torch.Tensor:
            return torch.softmax(hidden @ weight.t(), dim=-1, dtype=torch.float32)

        def race() -> torch.Tensor:
            p = probabilities()
            return (p / torch.empty_like(p).exponential_()).argmax(dim=-1)

        with torch.no_grad():
            times = _medians({
                "fused": lambda: fused.fused_lm_head_sample(hidden, weight),
                "matmul, softmax, multinomial": lambda: torch.multinomial(probabilities(), 1),
                "matmul, softmax, noise, argmax": race,
            }, _positive(num_iterations, "num_iterations"), self.device)
        standard = min(value for name, value in times.items() if name != "fused")
        print(f"{batch_size} rows, hidden size {hidden_dim}, vocabulary {vocab_size}, "
              f"{str(dtype).split('.')[-1]} on {self.device}, medians per call")
        for name, value in times.items():
            print(f"  {name:<32}{value * 1e3:10.3f} ms")
        speedup = standard / times["fused"]
        print(f"  speedup over the faster usual way: {speedup:.2f}")
        return speedup


def _check_greedy(fused: FusedFlashSamplingKernel, hidden: torch.Tensor, weight: torch.Tensor) -> None:
    """Raises unless each greedy token's logit is the largest of its row, but for the rounding of the matmul."""
    logits = (hidden @ weight.t()).float()
    tokens = fused.fused_lm_head_sample(hidden, weight, temperature=0.0)
    behind = (logits.amax(1) - logits.gather(1, tokens[:, None])[:, 0]).amax().item()
    if not behind <= 0.05:
        raise RuntimeError(f"greedy tokens are {behind} behind the largest logit of the matmul: not timed")


def _medians(ways: dict[str, Callable[[], Any]], calls: int, device: torch.device) -> dict[str, float]:
    """Seconds per call: medians over rounds in which the ways take turns."""
    rounds = min(calls, 10)
    each = -(-calls // rounds)
    seconds: dict[str, list[float]] = {name: [] for name in ways}

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(rounds + 1):
        for name, way in ways.items():
            wait()
            start = time.perf_counter()
            for _ in range(each):
                way()
            wait()
            seconds[name].append((time.perf_counter() - start) / each)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


class VLLMWithFlashSampling:
    """A model and its tokenizer of transformers in a local directory, and text from them.

    No vLLM is involved, in spite of the name. use_flash_sampling=False draws with transformers' own sampler. There is
    no attribute `sampler`: the model's generate() draws, by its own cache of keys and values.
    """

    def __init__(self, model_name: str, use_flash_sampling: bool = True) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_name, local_files_only=True)
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_name, local_files_only=True).eval()
        # The directory's own sampling rules (top_p, penalties, ...) would come on top of what generate is asked for.
        ids = {name: getattr(self.model.generation_config, name) for name in
               ("bos_token_id", "eos_token_id", "pad_token_id")}
        if ids["pad_token_id"] is None:
            ids["pad_token_id"] = self.tokenizer.pad_token_id
        self.model.generation_config = GenerationConfig(**ids)
        self.use_flash_sampling = use_flash_sampling
        if use_flash_sampling:
            from .transformers import patch

            patch(self.model)

    def generate(self, prompt: str, max_tokens: int = 100, temperature: float = 0.7) -> str:
        """The prompt and up to max_tokens more tokens drawn at this temperature (0: greedy), as text."""
        temperature = float(_temperature(temperature, torch.Size()))
        rules: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            rules = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        inputs = self.tokenizer(prompt, return_tensors="pt").to(self.model.device)
        with torch.no_grad():
            ids = self.model.generate(**inputs, max_new_tokens=_positive(max_tokens, "max_tokens"), **rules)
        text: str = self.tokenizer.decode(ids[0])
        return text
