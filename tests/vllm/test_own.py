"""What own_tests.py puts in the place of vLLM's functions, on the CPU: it draws from the logits that it is given."""
import math

import numpy as np
import own_tests
import torch
from vllm_cases import LEAST

DRAWS = 20000


def p_value(tokens, law):
    from scipy import stats

    seen = np.bincount(tokens, minlength=len(law))
    assert not seen[law == 0].any()
    return stats.chisquare(seen[law > 0], law[law > 0] / law.sum() * len(tokens)).pvalue


def logits(rows=1, vocab=40):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(9)) * 2 + 11


def test_three_columns_are_the_logits():
    X = torch.cat([logits(3), torch.full((1, 40), 1e-30)])
    weight, hidden = own_tests.made(X, X.device)
    assert torch.allclose((hidden.float() @ weight.float().T), X, rtol=2**-22, atol=0)


def test_draws_follow_the_logits_and_not_others():
    """1e-6 of false alarms, with seeds that are fixed; a logit that is wrong by .2 is found."""
    X = logits()
    X[0, 5] = -math.inf
    slots = torch.zeros(DRAWS, dtype=torch.int32)
    tokens = own_tests.gumbel_sample(X.expand(DRAWS, -1), slots, torch.tensor([0.8]), torch.tensor([7]),
                                     torch.arange(DRAWS), apply_temperature=True).numpy()
    law = (X[0].double() / 0.8).softmax(0).numpy()
    assert p_value(tokens, law) > LEAST
    law[law.argmax()] *= math.exp(0.2)
    assert p_value(tokens, law) < LEAST


def test_cuts_and_rows_of_their_own():
    """Neighbours of a row with NaN draw as they do without it; no token is left in a row of -inf, so it has 0."""
    X = logits(4)
    k = torch.full((4,), 3)
    bad = X.clone()
    bad[0, :] = math.nan
    bad[3, :] = -math.inf
    for given in (X, bad):
        tokens = own_tests.flashinfer_sample(given, k, None).tolist()
        assert all(token in X[row].topk(3).indices for row, token in enumerate(tokens) if given is X or row in (1, 2))
    assert tokens[0] == tokens[3] == 0
    greedy = own_tests.gumbel_sample(X, torch.arange(4), torch.zeros(4), torch.arange(4), torch.arange(4), True)
    assert greedy.tolist() == X.argmax(1).tolist()
