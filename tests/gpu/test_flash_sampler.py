"""FlashSampler and FusedFlashSamplingKernel on the device draw what they draw on the CPU, for one seed of torch's."""
import pytest

from draws import hidden, torch, weights

from flashsampling import FlashSampler, FusedFlashSamplingKernel

V, D, B = 5003, 128, 37
SAMPLER, KERNEL = FlashSampler(V, D), {name: FusedFlashSamplingKernel(V, D, device=name) for name in ("cpu", "cuda")}
BIAS = torch.arange(V, device="cuda", dtype=torch.bfloat16) / 64

DRAWS = {
    "stored": lambda h, w: FlashSampler.gumbel_sample(h.float() @ w.float().T, 0.75),
    "tiled": lambda h, w: SAMPLER.sample_tiled(h, w, 0.75),
    "greedy": lambda h, w: SAMPLER.sample_tiled(h, w, 0.0),
    "4 groups": lambda h, w: SAMPLER.sample_grouped(h, w, 0.75),
    "7 groups": lambda h, w: SAMPLER.sample_grouped(h, w, 0.75, 7),
    "kernel": lambda h, w: KERNEL[h.device.type].fused_lm_head_sample(h, w, BIAS.to(h.device), 0.75),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_device_draws_what_the_cpu_draws(name):
    h, w = hidden(B, D), weights(V, D)
    torch.manual_seed(5)
    found = DRAWS[name](h, w)
    torch.manual_seed(5)
    assert found.is_cuda and torch.equal(found.cpu(), DRAWS[name](h.cpu(), w.cpu()))


def test_the_benchmark_runs_on_the_device():
    assert FusedFlashSamplingKernel(V, D).benchmark_vs_standard(8, num_iterations=20) > 0
