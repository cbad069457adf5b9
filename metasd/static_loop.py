"""Rounds at fixed addresses: draft steps, catch-up and verification as functions of tensors, captured on a GPU.

Three families of graphs: a draft step of an arm; the ingestion of 16, 64 or 256 tokens that an arm missed; the
verification of K tokens: the target's forward pass, cutoffs, the verify op, and the commit. All that crosses them is a
`StaticSequence`. The host reads once a round, and may be half a round late: the next arm is chosen, and its draft
launched, before this round's verdict is read. A stop then wastes one draft, and nothing is undone.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from metasd.cache import Window
from metasd.core import Draft, SamplingLaw
from metasd.drafters import StaticDrafter
from metasd.drafters.drawing import own_law
from metasd.graph import Graphs
from metasd.pool import Pool
from metasd.static import BUCKETS, StaticLaw, StaticSequence
from metasd.target import Target
from metasd.verification import Verdict, pack, unpack
from metasd_kernels import VerifyOutput, Workspace, make_workspace, verify
from metasd_kernels.outputs import empty_output

WIDTHS = (16, 64, 256)
"""Tokens that a catch-up reads at a time; those that are known already are read again."""


@dataclass
class _Law:
    """What the verify op is told of a draft: tensors that a graph may hold on to. All None: each token a point mass."""

    form: tuple[object, ...] = ()
    logits: Tensor | None = None
    cutoff: Tensor | None = None
    draft_to_target: Tensor | None = None
    temperature: float | Tensor | None = None


class StaticLoop:
    """Plays the rounds of one request after the other.

    Args:
        target, pool: of the engine.
        capacity: the most tokens of a sequence, its draft among them.
        rule: "token" or "block".
    """

    def __init__(self, target: Target, pool: Pool, capacity: int, rule: str) -> None:
        self._target, self._pool, self._rule, self._capacity = target, pool, rule, capacity
        self.sequence = StaticSequence(capacity, target.device)
        self.graphs = Graphs(target.device, self.sequence.moving)
        self._slot = target.slot
        self._law = StaticLaw(target.device)
        self._static: dict[str, StaticDrafter | None] = {}
        self._host_laws: dict[tuple[object, ...], _Law] = {}
        self._workspaces: dict[int, Workspace] = {}
        self._outputs: dict[int, tuple[VerifyOutput, Tensor]] = {}  # by K, with all of it packed for the one read
        self._logits: dict[Hashable, Tensor] = {}  # of each verification's graph
        self._last: Hashable = None

    def is_static(self, arm: str) -> bool:
        """Whether an arm drafts on the device alone, so that the host may be late."""
        return self._static_drafter(arm) is not None

    def _static_drafter(self, arm: str) -> StaticDrafter | None:
        if arm not in self._static:
            self._static[arm] = self._pool.drafters[arm].static
        return self._static[arm]

    def start(self, prompt_ids: Sequence[int], seed: Tensor, law: SamplingLaw, features: dict[int, Tensor]) -> None:
        """A new sequence; the target has read the prompt but for its last token.

        Args:
            prompt_ids: at least 2.
            seed: `[1]` int64.
            law: of the request.
            features: the target's `[1, P-1, H]` by layer.
        """
        if self._target.slot is not self._slot:  # another engine took more memory: what was captured writes elsewhere
            self._slot, self.graphs = self._target.slot, Graphs(self._target.device, self.sequence.moving)
        self.sequence.start(prompt_ids, seed)
        self.sequence.store_features(torch.arange(len(prompt_ids) - 1, device=seed.device), features)
        self._law.set(law)
        self._most = len(prompt_ids)  # the host's upper bound of the sequence's length
        for arm, drafter in self._pool.drafters.items():
            static = self._static_drafter(arm)
            if static is not None:
                static.drawing.law.set(own_law(law, drafter.temperature_scale))
        self._pool.forget(arm for arm, static in self._static.items() if static is not None)

    def _bucket(self, num_tokens: int) -> int:
        return min(next(size for size in BUCKETS if size >= num_tokens), self._capacity)

    def catch_up(self, arm: str, gap: int) -> None:
        """An arm reads what it missed, `gap` tokens at most."""
        static = self._static_drafter(arm)
        assert static is not None
        width = next((width for width in WIDTHS if width >= gap), None)
        bucket = self._bucket(self._most)
        if width is None:  # once in a long while: not worth a graph
            static.ingest(self.sequence, gap, bucket)
        elif gap > 1:
            self.graphs.run(("ingest", arm, width, bucket), partial(static.ingest, self.sequence, width, bucket))

    def draft(self, arm: str, num_draft_tokens: int) -> None:
        """Launch a draft."""
        static = self._static_drafter(arm)
        assert static is not None
        bucket = self._bucket(self._most + num_draft_tokens)
        for k in range(num_draft_tokens):
            key = "draft", arm, k == 0, bucket, static.drawing.law.form
            self.graphs.run(key, partial(static.step, self.sequence, bucket, k == 0))

    def place(self, draft: Draft) -> None:
        """Take a draft that was made on the host."""
        at = self.sequence.length + torch.arange(draft.num_tokens, device=self.sequence.length.device)
        self.sequence.tokens.index_copy_(0, at, draft.token_ids[0].to(at.device))

    def verify(self, arm: str, num_draft_tokens: int, draft: Draft | None = None) -> None:
        """Launch the target's forward pass, the verify op and the commit of a draft of so many tokens."""
        law = self._law_of(arm, num_draft_tokens, draft)
        bucket = self._bucket(self._most + num_draft_tokens + 1)
        key = "verify", num_draft_tokens, bucket, self._law.form, law.form
        self.graphs.run(key, partial(self._verify, key, num_draft_tokens, bucket, law))
        self._last = key
        self._most += num_draft_tokens + 1

    def _law_of(self, arm: str, count: int, draft: Draft | None) -> _Law:
        static = self._static_drafter(arm)
        if count == 0 or (draft is not None and draft.logits is None):
            return _Law()
        if draft is not None:
            return self._host_law(arm, draft)
        assert static is not None
        drawing = static.drawing
        if drawing.law.is_greedy:
            return _Law()
        has_cutoff = drawing.law.form[1]
        return _Law(
            (arm, has_cutoff),
            drawing.logits[:, :count],
            drawing.cutoff[:, :count] if has_cutoff else None,
            drawing.draft_to_target,
            drawing.law.temperature,
        )

    def _host_law(self, arm: str, draft: Draft) -> _Law:
        """The law of a draft from the host, copied to where the graphs of its shape look for it."""
        assert draft.logits is not None
        lists = draft.draft_to_target
        is_listed = lists is not None and lists.dim() == 3
        form = arm, tuple(draft.logits.shape), draft.cutoff is not None, is_listed
        if form not in self._host_laws:
            device = self.sequence.length.device
            with torch.inference_mode(False):
                self._host_laws[form] = _Law(
                    form,
                    torch.zeros_like(draft.logits, device=device),
                    None if draft.cutoff is None else torch.zeros_like(draft.cutoff, device=device),
                    torch.zeros_like(lists, device=device) if lists is not None and is_listed else lists,
                    torch.zeros(1, device=device),
                )
        law = self._host_laws[form]
        for own, given in ((law.logits, draft.logits), (law.cutoff, draft.cutoff)):
            if own is not None and given is not None:
                own.copy_(given)
        if is_listed and law.draft_to_target is not None and lists is not None:
            law.draft_to_target.copy_(lists)
        assert isinstance(law.temperature, Tensor)
        law.temperature.fill_(draft.temperature)
        return law

    def _verify(self, key: Hashable, count: int, bucket: int, law: _Law) -> None:
        sequence, target = self.sequence, self._target
        places = sequence.length - 1 + torch.arange(count + 1, device=sequence.length.device)
        token_ids = sequence.tokens[places].unsqueeze(0)
        logits = target.score_window(token_ids, Window(places, bucket))
        sequence.store_features(places, target.take_features())
        cutoff = self._law.cutoff(logits[0])
        output, packed = self._output(count, logits)
        verify(
            logits,
            token_ids[:, 1:],
            law.logits,
            temperature=self._law.temperature,
            draft_temperature=law.temperature,
            target_cutoff=None if cutoff is None else cutoff.unsqueeze(0),
            draft_cutoff=law.cutoff,
            draft_to_target=law.draft_to_target,
            rule=self._rule,
            seed=sequence.seed,
            offset=sequence.nonce,
            out=output,
            workspace=self._workspaces[count],
        )
        packed.copy_(pack(output))
        self._logits[key] = logits
        sequence.tokens.index_copy_(0, places + 1, output.output_token_ids[0].clamp(min=0))
        sequence.length.add_(output.num_accepted_tokens + 1)
        sequence.nonce.add_(1)
        sequence.step.zero_()

    def _output(self, count: int, logits: Tensor) -> tuple[VerifyOutput, Tensor]:
        if count not in self._outputs:
            with torch.inference_mode(False):
                output = empty_output(1, count, torch.float32, logits.device, compute_tv=True)
                packed = torch.zeros(sum(field.numel() for field in output), dtype=torch.float64, device=logits.device)
                self._outputs[count] = output, packed
                self._workspaces[count] = make_workspace(1, count, logits.shape[-1], device=logits.device)
        return self._outputs[count]

    def read(self, num_draft_tokens: int) -> Verdict:
        """The one read of a round: waits for the verification that was launched last."""
        _, packed = self._outputs[num_draft_tokens]
        return unpack(packed.tolist(), num_draft_tokens)

    def know(self, num_tokens: int) -> None:
        """The host knows the sequence's length, so that it need not assume the worst."""
        self._most = num_tokens

    @property
    def logits(self) -> Tensor:
        """The target's raw rows `[1, K+1, V]` of the verification that was launched last."""
        return self._logits[self._last]
