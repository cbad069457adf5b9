"""The contract of a drafter, over the registry: it says what it could draft, drafts from the law that it hands over,
and what it knows is the committed text, however that came to it."""

import random
from collections.abc import Sequence

import pytest
import torch
from made_drafters import NAMES, made
from scipy.stats import chi2
from torch import Tensor
from toys import TableTarget, engine_of, lm, toy_features, toy_llama

from metasd import SamplingParams
from metasd.core import Coins, Draft, Request, SamplingLaw
from metasd.drafters import Drafter, load_drafters
from metasd.drafters.copying import copied_position
from metasd.target import Target

VOCAB_SIZE = 8
TEXT = random.Random(5).choices(range(4), k=60)  # four tokens only: it repeats, and no copying drafter sleeps
LAWS = {"greedy": SamplingLaw(), "sampled": SamplingLaw(2.5, top_p=0.9), "top-k": SamplingLaw(3.0, top_k=3, min_p=0.02)}


def make_target() -> Target:
    target = TableTarget(torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)))
    target.model = toy_llama(seed=2, vocab_size=VOCAB_SIZE)
    return target


def make(name: str) -> Drafter:
    return made(name, make_target())


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAWS)
def law(request: pytest.FixtureRequest) -> SamplingLaw:
    return LAWS[request.param]


@pytest.fixture(autouse=True)
def no_gradients() -> object:
    with torch.inference_mode():
        yield


def features_behind(drafter: Drafter, last: int, token_ids: Sequence[int]) -> Tensor | None:
    """The target's features of the tokens before each of `token_ids`, the first of which came behind `last`."""
    if not drafter.requires_features or not token_ids:
        return None
    before = [last, *token_ids[:-1]]
    return torch.cat([toy_features(before, layer) for layer in drafter.feature_layers], dim=-1)


def begin(drafter: Drafter, text: Sequence[int], law: SamplingLaw) -> Drafter:
    drafter.reset(Request(tuple(text), law, 1000, features_behind(drafter, text[0], text[1:])))
    drafter.target.tokens = list(text[:-1])
    LAST[id(drafter)] = text[-1]
    commit(drafter, [])
    return drafter


LAST: dict[int, int] = {}
"""The last committed token of each drafter."""


def commit(drafter: Drafter, token_ids: Sequence[int]) -> None:
    drafter.commit(token_ids, features_behind(drafter, LAST[id(drafter)], token_ids))
    read = [LAST[id(drafter)], *token_ids]
    drafter.target.tokens += read[:-1]
    LAST[id(drafter)] = read[-1]


def ids_and_laws(made: Draft) -> tuple[Tensor, Tensor]:
    """Target ids `[K, S]` of a draft's logits, and the probabilities `[K, S]` that it claims for them."""
    assert made.logits is not None
    x = made.logits[0].double()
    if made.cutoff is not None:
        x = x.masked_fill(made.logits[0] < made.cutoff[0].unsqueeze(-1), -torch.inf)
    own = torch.arange(x.shape[-1]) if made.draft_to_target is None else made.draft_to_target
    ids = own[0] if own.dim() == 3 else own.expand(x.shape)
    return ids, (x / made.temperature).softmax(-1)


def law_over_target(made: Draft) -> Tensor:
    """`[K, V]`, what a draft claims to have been drawn from."""
    ids, q = ids_and_laws(made)
    whole = torch.zeros(q.shape[0], VOCAB_SIZE + 1, dtype=torch.float64)
    return whole.scatter_add(1, ids % (VOCAB_SIZE + 1), q)[:, :-1]  # an empty slot, -1, goes to the column that is cut


def coins(nonce: int, seed: int = 3) -> Coins:
    return Coins(torch.tensor([seed]), nonce)


def draft(drafter: Drafter, num_draft_tokens: int, nonce: int = 0, seed: int = 3) -> Draft | None:
    """As a round does: first the offer, then a draft of at most what was offered."""
    offer = drafter.offer(num_draft_tokens)
    length = min(num_draft_tokens, offer.max_num_draft_tokens) if offer else 0
    return drafter.draft(length, coins(nonce, seed)) if length else None


def same(a: Draft | None, b: Draft | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.token_ids.tolist() != b.token_ids.tolist() or (a.logits is None) != (b.logits is None):
        return False
    return a.logits is None or b.logits is None or torch.allclose(a.logits, b.logits, atol=1e-4)


def test_offer_is_kept(name: str, law: SamplingLaw) -> None:
    """At most as many positions as allowed; the draft is at most as long as the offer, and never empty."""
    drafter = begin(make(name), TEXT, law)
    for most in (0, 1, 3, 8):
        offer = drafter.offer(most)
        if offer is None:
            continue
        assert offer.max_num_draft_tokens <= most
        assert all(0 <= position.prior <= 1 and position.prior_weight >= 0 for position in offer.positions)
        for length in range(1, offer.max_num_draft_tokens + 1):
            drafter.offer(most)
            made = drafter.draft(length, coins(0))
            assert made is not None
            assert made.token_ids.shape == (1, made.num_tokens)
            assert 1 <= made.num_tokens <= length
            assert made.token_ids.dtype == torch.int64
            assert 0 <= made.token_ids.min() <= made.token_ids.max() < VOCAB_SIZE
            drafter.rewind(made.num_tokens)


def test_every_drafter_but_null_drafts_here(name: str) -> None:
    """Guards the suite: a drafter that sleeps on this text is not tested by it."""
    assert (draft(begin(make(name), TEXT, LAWS["sampled"]), 4) is None) == (name == "null")


def test_draft_is_a_function_of_text_and_coins(name: str, law: SamplingLaw) -> None:
    first, again = (draft(begin(make(name), TEXT, law), 5, nonce=4) for _ in range(2))
    assert same(first, again)


def test_other_coins_other_draws(name: str) -> None:
    """A sampling drafter uses the nonce and the seed; one without logits is a point mass, so it uses neither."""
    drafter = begin(make(name), TEXT, SamplingLaw(3.0))
    drafts = []
    for nonce, seed in [(n, 3) for n in range(8)] + [(0, s) for s in range(4, 12)]:
        made = draft(drafter, 4, nonce, seed)
        if made is None:
            return
        drafts.append(made)
        drafter.rewind(made.num_tokens)
    distinct = {tuple(made.token_ids[0].tolist()) for made in drafts}
    assert len(distinct) == 1 if drafts[0].logits is None else len(distinct) > 8


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3, 4])
def test_rewind_and_commit_equal_fresh(name: str, law: SamplingLaw, num_accepted: int) -> None:
    """Behind each number of accepted tokens the drafter is where one is that read the same text at once."""
    drafter = begin(make(name), TEXT, law)
    text = list(TEXT)
    for nonce in range(5):
        made = draft(drafter, 4, nonce)
        drafted = made.token_ids[0].tolist() if made else []
        count = min(num_accepted, len(drafted))
        tokens = [*drafted[:count], (nonce + 2) % 4]
        if len(drafted) > count:
            drafter.rewind(len(drafted) - count)
        commit(drafter, tokens)
        text += tokens
        fresh = begin(make(name), text, law)
        assert drafter.offer(4) == fresh.offer(4)
        a, b = draft(drafter, 4, nonce=50), draft(fresh, 4, nonce=50)
        assert same(a, b)
        if a is not None:
            drafter.rewind(a.num_tokens)


@pytest.mark.parametrize("sizes", [[1] * 20, [20], [7, 1, 1, 11], [2] * 10])
def test_catch_up_after_a_gap_equals_fresh(name: str, law: SamplingLaw, sizes: list[int]) -> None:
    drafter, at = begin(make(name), TEXT[:10], law), 10
    draft(drafter, 3)
    drafter.rewind(3)
    for size in sizes:
        commit(drafter, TEXT[at : at + size])
        at += size
    fresh = begin(make(name), TEXT[:at], law)
    assert drafter.offer(5) == fresh.offer(5)
    assert same(draft(drafter, 5, nonce=9), draft(fresh, 5, nonce=9))


def test_committing_nothing_changes_nothing(name: str) -> None:
    drafter = begin(make(name), TEXT, LAWS["sampled"])
    for _ in range(3):
        commit(drafter, [])
    assert same(draft(drafter, 4), draft(begin(make(name), TEXT, LAWS["sampled"]), 4))


@pytest.mark.parametrize("start", [1, 2, 20])
def test_score_gives_the_laws_of_single_drafts(name: str, law: SamplingLaw, start: int) -> None:
    """Teacher-forced, each position has the law that a draft of one token would have been drawn from there."""
    scorer, walker = begin(make(name), TEXT[:start], law), begin(make(name), TEXT[:start], law)
    tokens = TEXT[start : start + 9]
    scored = scorer.score(tokens, features_behind(scorer, TEXT[start - 1], tokens))
    for k, token in enumerate(tokens):
        made = draft(walker, 1)
        if made is None:
            assert scored.token_ids[0, k] == -1
        elif made.logits is None:
            assert scored.token_ids[0, k] == made.token_ids
        else:
            assert scored.token_ids[0, k] >= 0
            assert torch.allclose(law_over_target(scored)[k], law_over_target(made)[0], atol=1e-5)
        if made is not None:
            walker.rewind(1)
        commit(walker, [token])
    scorer.target.tokens, LAST[id(scorer)] = TEXT[: start + 8], tokens[-1]
    assert same(draft(scorer, 3, nonce=2), draft(walker, 3, nonce=2))


def test_reset_forgets_everything(name: str) -> None:
    """Also when the request before ended in the middle of a draft, and had another law."""
    used = begin(make(name), TEXT[::-1], LAWS["greedy"])
    draft(used, 4)
    commit(used, TEXT[:5])
    draft(used, 4)
    begin(used, TEXT, LAWS["sampled"])
    fresh = begin(make(name), TEXT, LAWS["sampled"])
    assert used.offer(4) == fresh.offer(4)
    assert same(draft(used, 4, nonce=7), draft(fresh, 4, nonce=7))


def test_one_token_of_text(name: str, law: SamplingLaw) -> None:
    drafter = begin(make(name), [2], law)
    made = draft(drafter, 3)
    if made is not None:
        drafter.rewind(made.num_tokens)
    commit(drafter, [1])
    assert same(draft(drafter, 3, nonce=1), draft(begin(make(name), [2, 1], law), 3, nonce=1))


def test_q_is_the_law_of_the_draws(name: str, law: SamplingLaw) -> None:
    """Chi-square of the first two draft tokens against the law handed over, error rate 1e-9: catches a cutoff or a
    temperature that is used on one side only, and the same coin used for both tokens."""
    drafter = begin(make(name), TEXT, law)
    made = draft(drafter, 2)
    if made is None or made.logits is None:
        return  # a point mass: its law is what it drafted
    temperature, num_draws = made.temperature, 1500
    seen = torch.zeros(VOCAB_SIZE, VOCAB_SIZE, dtype=torch.float64)
    expected = torch.zeros_like(seen)
    for nonce in range(num_draws):
        drafter.rewind(made.num_tokens)
        made = draft(drafter, 2, nonce)
        assert made is not None
        assert made.logits is not None
        assert made.temperature == temperature == law.temperature
        assert (made.cutoff is not None) == law.has_cutoff
        q = law_over_target(made)
        first, second = made.token_ids[0].tolist()
        assert q[0, first] > 0
        assert q[1, second] > 0
        seen[first, second] += 1
        expected[first] += q[1]  # given the first token
        if nonce == 0:
            law_of_first = q[0]
    cells = expected >= 5
    statistic = ((seen - expected) ** 2 / expected)[cells].sum()
    assert statistic < chi2.isf(1e-9, int(cells.sum()))
    firsts, wanted = seen.sum(1), law_of_first * num_draws
    cells = wanted > 0
    assert ((firsts - wanted) ** 2 / wanted)[cells].sum() < chi2.isf(1e-9, int(cells.sum()) - 1)


def test_cutoffs_of_a_sampling_drafter(name: str) -> None:
    """The request's top-k, top-p and min-p hold for the drafter too: a token outside is never accepted."""
    made = draft(begin(make(name), TEXT, SamplingLaw(1.0, top_k=2)), 3)
    if made is not None and made.logits is not None:
        assert made.cutoff is not None
        assert (made.logits >= made.cutoff.unsqueeze(-1)).sum(-1).tolist() == [[2, 2, 2]]


def test_followers_hear_of_every_round(name: str) -> None:
    """A drafter that follows gets each token once and in order, whoever drafts; others when they are chosen."""
    target = make_target()
    drafter = made(name, target)
    heard: list[int] = []
    take = drafter.commit
    drafter.commit = lambda ids, features=None: (heard.extend(ids), take(ids, features))[1]
    other = lm(target, toy_llama(seed=3, vocab_size=VOCAB_SIZE), "other")
    arms = [drafter, other] if name != "null" else [drafter, other, "ngram"]
    engine = engine_of(target, arms, bandit="fixed:arm=other", num_draft_tokens=3)
    result = engine.generate(TEXT[:9], SamplingParams(max_new_tokens=20, temperature=1.0))
    for read in (TEXT[:9], TEXT[1:9]):  # some read the prompt through `commit` as well
        heard = heard[len(read) :] if heard[: len(read)] == read else heard
    assert heard == (result.token_ids if drafter.follows else [])


def test_ngram_prefers_the_longest_then_the_latest_match() -> None:
    drafter = begin(
        load_drafters(["ngram:max_match=3"], make_target())["ngram"], [1, 2, 3, 5, 2, 3, 6, 1, 2, 3], LAWS["greedy"]
    )
    made = draft(drafter, 2)
    assert made is not None
    assert made.token_ids.tolist() == [[5, 2]]
    begin(drafter, [4, 2, 3, 5, 0, 2, 3, 6, 1, 2, 3], LAWS["greedy"])
    made = draft(drafter, 2)
    assert made is not None
    assert made.token_ids.tolist() == [[6, 1]]


@pytest.mark.parametrize("name", ["ngram", "suffix"])
@pytest.mark.parametrize("agree", [1, 2, 3, 6, 9])
def test_priors_know_how_long_the_match_is(name: str, agree: int) -> None:
    """Tokens that agree before each position, the drafted ones included, also beyond the n-gram that was looked up."""
    same, share = [7 - k % 7 for k in range(agree)], None if name == "ngram" else 1.0
    text = [0, *same, 0, 0, 0, 0, 0, 0, *same] if agree % 2 else [*same, 0, 0, 0, 0, 0, *same]
    offer = begin(make(name), text, LAWS["greedy"]).offer(3)
    longest = agree + 1 if agree % 2 else agree
    assert offer is not None
    assert offer.positions == tuple(copied_position(longest + k, share) for k in range(3))


def test_ngram_goes_on_periodically() -> None:
    made = draft(begin(make("ngram"), [7, 1, 2, 1, 2], LAWS["greedy"]), 5)
    assert made is not None
    assert made.token_ids.tolist() == [[1, 2, 1, 2, 1]]


@pytest.mark.parametrize("spec", ["ngram:min_match=3", "suffix:min_match=3"])
def test_arms_sleep_below_their_shortest_match(spec: str) -> None:
    drafter = load_drafters([spec], make_target())[spec.partition(":")[0]]
    assert begin(drafter, [1, 2, 5, 1, 2], LAWS["greedy"]).offer(4) is None
    assert begin(drafter, [1, 2, 3, 5, 1, 2, 3], LAWS["greedy"]).offer(4) is not None


def test_lm_drafter_reads_with_the_targets_tokenizer_only_where_it_has_one() -> None:
    drafter = lm(make_target(), toy_llama(seed=1, vocab_size=VOCAB_SIZE), "folder/of/lm")
    assert drafter.name == "lm"
    assert set(drafter.memory_bytes()) == {"weights", "cache"}
