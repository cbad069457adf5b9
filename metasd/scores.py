"""What a drafter would have said to tokens that were emitted, whoever drafted them: the raw material of every reward.

One record for each emitted token and arm asked, (min(1, q(y) / p(y)), 1 - TV(p, q)): acceptance matrices, replay and
counterfactual rewards all come from it.
"""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from metasd.core import Draft, SamplingLaw, TokenScores
from metasd.logits import law_cutoff


class TargetLaws:
    """The target's laws at m positions, as a lookup: a drafter lists few tokens, and only these are asked for.

    Args:
        rows: `[m, V]`, processed logits.
        law: temperature and cutoffs.
    """

    def __init__(self, rows: Tensor, law: SamplingLaw) -> None:
        self._rows, self._law = rows, law
        if law.is_greedy:
            self._best = rows.argmax(-1, keepdim=True)
            return
        self._cutoff = law_cutoff(rows.unsqueeze(0), law)
        kept = rows.float() if self._cutoff is None else self._kept(rows.float(), self._cutoff[0])
        self._log_total = (kept / law.temperature).logsumexp(-1, keepdim=True)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """p of the tokens `[m, S]`, fp32; the first m positions. Any number for a place in a list that is empty, -1."""
        count = token_ids.shape[0]
        if self._law.is_greedy:
            return (token_ids == self._best[:count]).float()
        found = self._rows[:count].gather(-1, token_ids.clamp(min=0)).float()
        if self._cutoff is not None:
            found = self._kept(found, self._cutoff[0, :count])
        return (found / self._law.temperature - self._log_total[:count]).exp()

    @staticmethod
    def _kept(logits: Tensor, cutoff: Tensor) -> Tensor:
        return logits.masked_fill(logits < cutoff.unsqueeze(-1), -torch.inf)


def score_round(
    rows: Tensor, laws: Mapping[str, Draft], token_ids: Sequence[int], law: SamplingLaw
) -> dict[str, TokenScores]:
    """The scores of each arm asked, for as many of the round's tokens as it has laws for.

    Arms with laws of one form are compared with the target's side by side.

    Args:
        rows: `[1, M, V]`, the target's processed rows of the round.
        laws: by arm, of at least one position.
        token_ids: what the round emitted, at most M.
        law: the target's.
    """
    target = TargetLaws(rows[0, : len(token_ids)], law)
    alike: dict[Hashable, dict[str, Draft]] = {}
    for arm, draft in laws.items():
        count = min(draft.num_tokens, len(token_ids))
        alike.setdefault(_form(draft, count), {})[arm] = first_tokens(draft, count)
    found: dict[str, TokenScores] = {}
    for group in alike.values():
        count = next(iter(group.values())).num_tokens
        found |= zip(group, _score(target, list(group.values()), token_ids[:count]), strict=True)
    return {arm: found[arm] for arm in laws}


def _form(laws: Draft, num_tokens: int) -> Hashable:
    """Equal for drafts whose rows can be laid side by side."""
    if laws.logits is None:
        return num_tokens
    ids = laws.draft_to_target
    if ids is None or ids.dim() != 3 or laws.cutoff is not None:
        return id(laws)
    return num_tokens, laws.logits.shape[-1], laws.temperature


def score_tokens(target: TargetLaws, laws: Draft, token_ids: Sequence[int]) -> TokenScores:
    """Compare the target's laws with a drafter's at each of m emitted tokens.

    Args:
        target: of at least m positions.
        laws: the drafter's, from `Drafter.score`, or those of its draft.
        token_ids: the m tokens y.
    """
    return _score(target, [laws], token_ids)[0]


def _score(target: TargetLaws, arms: Sequence[Draft], token_ids: Sequence[int]) -> list[TokenScores]:
    """The scores of arms whose laws have one form, A arms and m tokens."""
    guessed = torch.cat([laws.token_ids for laws in arms])  # [A, m]
    emitted = torch.tensor(token_ids, device=guessed.device).unsqueeze(-1)
    p_emitted = target(emitted).squeeze(-1)
    if arms[0].logits is None:
        q_emitted = (guessed == emitted.squeeze(-1)).float()
        overlap = target(guessed.T).T
    else:
        ids = torch.stack([_listed_ids(laws) for laws in arms], dim=1)  # [m, A, S]
        q = torch.stack([_listed_law(laws) for laws in arms], dim=1)
        q_emitted = (q * (ids == emitted.unsqueeze(-1))).sum(-1).T
        overlap = torch.minimum(target(ids.flatten(1)).view_as(q), q).sum(-1).T
    ratio = (q_emitted / p_emitted).clamp(max=1).nan_to_num()
    scores = torch.where(guessed >= 0, torch.stack([ratio, overlap]), 0).tolist()
    return [TokenScores(tuple(ratios), tuple(overlaps)) for ratios, overlaps in zip(*scores, strict=True)]


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


def _listed_ids(laws: Draft) -> Tensor:
    """The target's token of each column of the draft's rows, `[m, S]`."""
    assert laws.logits is not None
    _, num_tokens, width = laws.logits.shape
    ids = laws.draft_to_target
    if ids is None:
        ids = torch.arange(width, device=laws.logits.device)
    return ids[0] if ids.dim() == 3 else ids.expand(num_tokens, width)


def _listed_law(laws: Draft) -> Tensor:
    """The probabilities of each column of the draft's rows, `[m, S]` fp32."""
    assert laws.logits is not None
    rows = laws.logits[0].float()
    if laws.temperature == 0:
        return torch.zeros_like(rows).scatter_(-1, rows.argmax(-1, keepdim=True), 1.0)
    if laws.cutoff is not None:
        rows = rows.masked_fill(rows < laws.cutoff[0].unsqueeze(-1), -torch.inf)
    return (rows / laws.temperature).softmax(-1)
