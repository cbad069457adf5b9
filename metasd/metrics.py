"""What a run's numbers mean, and how they are added up.

acceptance rate = accepted drafts / drafted tokens; acceptance length = tokens a round, so the bonus or recovered token
is included (as in vLLM's metrics), here over all rounds of the arm; acceptance by position = share of the drafts that
reach this length whose token there was accepted. A stop in mid-block does not shorten what was accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from metasd.core import FinishReason, RoundRecord, TokenLogprob


@dataclass(frozen=True)
class ArmStats:
    """Sums over some rounds; seconds are wall-clock."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    block_divergence: float  # mean over rounds with a draft
    acceptance_by_position: tuple[float, ...]
    draft_seconds: float
    verify_seconds: float
    catch_up_seconds: float
    overhead_seconds: float
    engine_seconds: float | None  # of the sum, what is neither a forward pass nor the verify op; None: not timed

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.catch_up_seconds + self.overhead_seconds

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted_tokens / self.num_rounds if self.num_rounds else 0.0


def summarize(rounds: Sequence[RoundRecord]) -> ArmStats:
    """Add up rounds, of one arm or of all."""
    drafted = [record for record in rounds if record.num_draft_tokens]
    longest = max((record.num_draft_tokens for record in drafted), default=0)
    engine = [record.engine_seconds for record in rounds]
    by_position = []
    for k in range(longest):
        reached = [record.num_accepted_tokens > k for record in drafted if record.num_draft_tokens > k]
        by_position.append(sum(reached) / len(reached))
    return ArmStats(
        num_rounds=len(rounds),
        num_draft_tokens=sum(record.num_draft_tokens for record in rounds),
        num_accepted_tokens=sum(record.num_accepted_tokens for record in rounds),
        block_divergence=sum(record.bd for record in drafted) / len(drafted) if drafted else 0.0,
        acceptance_by_position=tuple(by_position),
        draft_seconds=sum(record.draft_seconds for record in rounds),
        verify_seconds=sum(record.verify_seconds for record in rounds),
        catch_up_seconds=sum(record.catch_up_seconds for record in rounds),
        overhead_seconds=sum(record.overhead_seconds for record in rounds),
        engine_seconds=None if None in engine else sum(part for part in engine if part is not None),
    )


@dataclass(frozen=True)
class GenerationStats:
    """Numbers of one answer. Tokens per second leave the prompt's forward pass out."""

    num_prompt_tokens: int
    num_output_tokens: int
    prefill_seconds: float
    decode_seconds: float
    num_switches: int
    total: ArmStats
    arms: dict[str, ArmStats]

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def acceptance_length(self) -> float:
        return self.total.acceptance_length

    @property
    def acceptance_rate(self) -> float:
        return self.total.acceptance_rate


def collect(
    rounds: Sequence[RoundRecord], num_prompt_tokens: int, num_output_tokens: int, prefill_seconds: float
) -> GenerationStats:
    """The stats of an answer, from its rounds."""
    names = list(dict.fromkeys(record.arm for record in rounds))
    return GenerationStats(
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        prefill_seconds=prefill_seconds,
        decode_seconds=sum(record.seconds for record in rounds),
        num_switches=sum(record.switched for record in rounds),
        total=summarize(rounds),
        arms={name: summarize([record for record in rounds if record.arm == name]) for name in names},
    )


@dataclass(frozen=True)
class GenerationResult:
    """An answer. `token_ids` include the token that ended it; `text` ends before a stop string."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    rounds: list[RoundRecord]
    stats: GenerationStats
    logprobs: list[TokenLogprob] | None = None
    alternatives: list["GenerationResult"] = field(default_factory=list)
