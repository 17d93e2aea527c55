"""The tests of every rule on the device (tests/gpu/test_rules*.py), tested: with the reference in the device's place
they accept it, and they reject one that makes one mistake."""
import os
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy.stats")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

STANDIN = "FLASHSAMPLING_TEST_STANDIN"
before = os.environ.get(STANDIN)
os.environ[STANDIN] = "reference"  # read when rules_cases is imported
try:
    import rules_cases
    import test_rules
    import test_rules_edges
    import test_rules_invariance
    import test_rules_law
finally:
    del os.environ[STANDIN]
    if before is not None:
        os.environ[STANDIN] = before

# Some of each file, collected here.
test_stored_random_cases = test_rules.test_stored_random_cases
test_weights_random_cases = test_rules.test_weights_random_cases
test_an_edge = test_rules_edges.test_an_edge
test_a_row_in_other_slots = test_rules_invariance.test_a_row_in_other_slots
test_replays_see_what_their_arrays_hold = test_rules_invariance.test_replays_see_what_their_arrays_hold
test_draws_follow_the_renormalised_law = test_rules_law.test_draws_follow_the_renormalised_law
test_kept_sets_are_the_engines_own = test_rules_law.test_kept_sets_are_the_engines_own


def changed(name, change):
    """Rules of which an array is not what the case says."""
    def plant(head, rules):
        if isinstance(rules.get(name), torch.Tensor):
            rules[name] = change(rules[name])
    return plant


def also(**more):
    return lambda head, rules: rules.update(more)


PLANTED = {
    "k one more": changed("top_k", lambda k: k + (k > 0).int()),
    "k one less": changed("top_k", lambda k: k - (k > 1).int()),
    "p a little more": changed("top_p", lambda p: torch.where(p < 1, p * 1.01, p)),
    "min-p a little less": changed("min_p", lambda p: p * 0.9),
    "masks shifted by a word": changed("allow", lambda a: a.roll(1, 1).contiguous()),
    "masks of other rows": changed("allow", lambda a: a.roll(1, 0).contiguous()),
    "counts of other slots": changed("counts", lambda a: a.roll(1, 0).contiguous()),
    "bits of other slots": changed("seen", lambda a: a.roll(1, 0).contiguous()),
    "logits one place on": lambda head, rules: head.update(logits=head["logits"].roll(1, 1).contiguous()),
    "ties kept": also(keep_ties=True),
    "joint": also(joint_top_p=True),
    "min-p last": also(min_p_last=True),
    "cuts before temperature": also(cut_before_temperature=True),
    "ties ranked": also(rank_of_ties=True),
    "fast noise": also(noise="fast"),
}


def every_rule():
    """Rows of every kind, from logits that have ties."""
    rng = np.random.default_rng(1)
    for logits in ("processed", "cut"):
        x = np.round(test_rules.language(rng, 66, 1000) * 8) / 8
        yield logits, test_rules.mixed_case(rng, dict(logits=x.astype(np.float32)), None, 66, 1000, logits_mode=logits,
                                            counts="counts", samples=4)


def test_rows_of_every_kind_are_accepted():
    rules_cases.check(every_rule())


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_is_seen(mistake, monkeypatch):
    moved = rules_cases.moved

    def wrong(case, seed=0):
        head, hidden, rules = moved(case, seed)
        PLANTED[mistake](head, rules)
        return head, hidden, rules

    monkeypatch.setattr(rules_cases, "moved", wrong)
    with pytest.raises(pytest.fail.Exception) as seen:
        rules_cases.check(every_rule())
    text = str(seen.value)
    print(text)
    assert "cases differ" in text and "got" in text and len(text) < 4000


@pytest.mark.parametrize("name", ["tokens", "status", "noisy_logit", "rank", "log_z", "top_logprob", "watch_logit"])
def test_one_wrong_element_is_seen(name):
    case = next(every_rule())[1]
    got, want = rules_cases.on_device(case), rules_cases.on_cpu(case)
    assert rules_cases.differences(case, got, want) == ([], 0)
    got[name].reshape(-1)[40] += got[name].dtype.type(1)
    found, excuses = rules_cases.differences(case, got, want)
    assert len(found) == 1 and found[0].startswith(name) and not excuses


def test_what_is_written_outside_the_results_is_seen():
    call = rules_cases.Call(next(every_rule())[1]).run()
    call.whole["tokens"][-1] = 0
    with pytest.raises(AssertionError, match="tokens: written outside"):
        call.taken()


def test_what_is_not_written_is_seen():
    call = rules_cases.Call(next(every_rule())[1]).run()
    call.whole["log_z"].view(torch.uint8)[4 * rules_cases.BAND :][:4] = rules_cases.SENTINEL
    with pytest.raises(AssertionError, match="log_z: not every element"):
        call.taken()


def test_a_p_at_which_the_mass_lies_may_move_one_token():
    """700 equal tokens and p = 1/2: 350 of them, or 351, and not 352."""
    x = np.zeros((1, 700), np.float32)
    case = rules_cases.Case(dict(logits=x), logits_mode="cut", top_p=0.5, top=400, samples=2)
    want = rules_cases.on_cpu(case)
    for kept, good in ((350, True), (351, True), (352, False)):
        other = case.copy()
        other.rules["top_p"] = (kept - 0.5) / 700
        got = rules_cases.on_cpu(other)
        assert (got["top_token"] >= 0).sum() == kept
        assert (not rules_cases.differences(case, got, want)[0]) == good
