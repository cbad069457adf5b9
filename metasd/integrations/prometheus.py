"""Counters of an engine for Prometheus: what each arm drafted, what was accepted, and where the seconds went.

Names and meanings are those of vLLM's metrics where it has the quantity; `prefix="vllm"` lets dashboards made for vLLM
read them. What is of a pool has the label `arm`; sums over it are what vLLM counts.
"""

from typing import TYPE_CHECKING

from metasd.core import NULL_ARM, MetaSDError, RoundRecord, refuse
from metasd.metrics import GenerationResult

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_PHASES = ("draft", "verify", "catch_up", "overhead")
_TOKEN_BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
_SECOND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)


class PrometheusMetrics:
    """Metrics of everything that `observe` is told.

    Args:
        registry: where they are registered; None: one of their own, so that two engines do not collide.
        prefix: before each name and a colon.

    Raises:
        MetaSDError: the package prometheus-client is not installed.
        UsageError: the prefix is empty or no name.

    Example:
        >>> metrics = PrometheusMetrics()
        >>> metrics.observe(engine.generate("Once upon a time"))
        >>> print(metrics.text())
    """

    def __init__(self, registry: "CollectorRegistry | None" = None, prefix: str = "metasd") -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ImportError as error:
            raise MetaSDError("metrics need prometheus-client: pip install 'metasd[metrics]'") from error
        if not prefix.isidentifier():
            raise refuse("prefix", "a name such as metasd or vllm", repr(prefix))
        self.registry = CollectorRegistry() if registry is None else registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{prefix}:{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{prefix}:{name}", text, registry=self.registry, buckets=buckets)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self._output_tokens = counter("generation_tokens", "Tokens of answers.")
        self._requests = counter("request_success", "Answers, by why they ended.", "finished_reason")
        self._prefill = histogram("request_prefill_time_seconds", "Forward pass of a prompt.", _SECOND_BUCKETS)
        self._decode = histogram("request_decode_time_seconds", "Rounds of an answer.", _SECOND_BUCKETS)
        self._drafts = counter("spec_decode_num_drafts", "Rounds with a draft.", "arm")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Drafted tokens.", "arm")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", "arm")
        self._by_position = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens, by place in the block.",
            "arm",
            "position",
        )
        self._rounds = counter("rounds", "Rounds, also those without a draft.", "arm")
        self._switches = counter("switches", "Rounds of another arm than the one before.", "arm")
        self._overlap = counter("block_divergence", "Sum of 1 - TV, the mean over a block, of drafted rounds.", "arm")
        self._seconds = counter("round_seconds", "Wall-clock seconds of rounds, by phase.", "arm", "phase")
        self._length = histogram("acceptance_length", "Tokens of a round, the target's own included.", _TOKEN_BUCKETS)

    def observe(self, result: GenerationResult) -> None:
        """Count an answer; with `n` above 1 its alternatives as well."""
        for answer in (result, *result.alternatives):
            stats = answer.stats
            self._prompt_tokens.inc(stats.num_prompt_tokens)
            self._output_tokens.inc(stats.num_output_tokens)
            self._requests.labels(answer.finish_reason).inc()
            self._prefill.observe(stats.prefill_seconds)
            self._decode.observe(stats.decode_seconds)
            for record in answer.rounds:
                self._observe_round(record)

    def _observe_round(self, record: RoundRecord) -> None:
        arm = record.arm
        self._rounds.labels(arm).inc()
        self._switches.labels(arm).inc(record.switched)
        for phase in _PHASES:
            self._seconds.labels(arm, phase).inc(getattr(record, f"{phase}_seconds"))
        self._length.observe(1 + record.num_accepted_tokens)
        if arm == NULL_ARM or not record.num_draft_tokens:
            return
        self._drafts.labels(arm).inc()
        self._draft_tokens.labels(arm).inc(record.num_draft_tokens)
        self._accepted.labels(arm).inc(record.num_accepted_tokens)
        for position in range(record.num_accepted_tokens):
            self._by_position.labels(arm, str(position)).inc()
        self._overlap.labels(arm).inc(record.bd)

    def text(self) -> str:
        """All metrics in Prometheus' text format, for a file or an endpoint of the user's own."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()
