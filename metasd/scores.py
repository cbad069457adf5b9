"""What a drafter would have said to tokens that were emitted, whoever drafted them: the raw material of every reward.

One record for each emitted token and arm asked, (min(1, q(y) / p(y)), 1 - TV(p, q)): acceptance matrices, replay and
counterfactual rewards all come from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metasd.core import Draft, SamplingLaw, TokenScores
from metasd.logits import law_cutoff
from metasd_kernels import verify


def score_round(
    rows: Tensor, laws: Mapping[str, Draft], token_ids: Sequence[int], law: SamplingLaw
) -> dict[str, TokenScores]:
    """The scores of each arm asked, for as many of the round's tokens as it has laws for.

    Args:
        rows: `[1, M, V]`, the target's processed rows of the round.
        laws: by arm, of at least one position.
        token_ids: what the round emitted, at most M.
        law: the target's.
    """
    found = {}
    for arm, draft in laws.items():
        count = min(draft.num_tokens, len(token_ids))
        found[arm] = score_tokens(rows[0, :count], first_tokens(draft, count), token_ids[:count], law)
    return found


def score_tokens(rows: Tensor, laws: Draft, token_ids: Sequence[int], law: SamplingLaw) -> TokenScores:
    """Compare the target's laws with a drafter's at each of m emitted tokens.

    Args:
        rows: `[m, V]`, the target's logits before each token.
        laws: the drafter's, from `Drafter.score`, or those of its draft.
        token_ids: the m tokens y.
        law: the target's temperature and cutoffs.
    """
    emitted = torch.tensor([token_ids], device=rows.device)
    block = torch.cat([rows, rows[-1:]]).unsqueeze(0)  # verify wants a row behind the last draft token
    cutoff = law_cutoff(block, law)
    # The tokens stand in for drafts: TV does not depend on them, and p(y) comes from a draft that is a point mass.
    options: dict[str, Any] = {
        "temperature": law.temperature,
        "target_cutoff": cutoff,
        "seed": torch.zeros_like(emitted[0, :1]),
    }
    p = verify(block, emitted, **options).accept_probability[0]
    if laws.logits is None:
        guessed = verify(block, laws.token_ids.clamp(min=0), **options).accept_probability[0]
        q = (laws.token_ids[0] == emitted[0]).to(p.dtype)
        overlap = guessed
    else:
        made = verify(
            block, emitted, laws.logits, draft_temperature=laws.temperature, draft_cutoff=laws.cutoff,
            draft_to_target=laws.draft_to_target, **options,
        )  # fmt: skip
        overlap = 1 - made.tv_distance[0]
        q = _probabilities(laws, emitted[0])
    is_awake = laws.token_ids[0] >= 0
    ratio = torch.where(is_awake, (q / p).clamp(max=1).nan_to_num(), 0)
    return TokenScores(tuple(ratio.tolist()), tuple(torch.where(is_awake, overlap, 0).tolist()))


def first_tokens(laws: Draft, num_tokens: int) -> Draft:
    """The laws of a draft's first tokens."""
    lists = laws.draft_to_target
    return Draft(
        laws.token_ids[:, :num_tokens],
        None if laws.logits is None else laws.logits[:, :num_tokens],
        laws.temperature,
        None if laws.cutoff is None else laws.cutoff[:, :num_tokens],
        lists[:, :num_tokens] if lists is not None and lists.dim() == 3 else lists,
    )


def _probabilities(laws: Draft, token_ids: Tensor) -> Tensor:
    """q(y) of each token, `[m]`, from a draft's own rows."""
    assert laws.logits is not None
    rows = laws.logits[0].float()
    if laws.cutoff is not None:
        rows = rows.masked_fill(rows < laws.cutoff[0].unsqueeze(-1), -torch.inf)
    q = (rows / laws.temperature).softmax(-1)
    ids = torch.arange(rows.shape[-1], device=rows.device) if laws.draft_to_target is None else laws.draft_to_target
    ids = ids[0] if ids.dim() == 3 else ids.expand(rows.shape)
    return (q * (ids == token_ids.unsqueeze(-1))).sum(-1)
