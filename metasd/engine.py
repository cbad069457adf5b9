"""Prompt in, text out: the engine owns the target, the pool and the bandit, and plays rounds until a stop."""

import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from metasd import round as rounds
from metasd.bandits import Bandit, Context, CostTable, check_names, make_bandit, needs_scores
from metasd.config import MAX_CONTEXT, MAX_NUM_DRAFT_TOKENS, EngineConfig, SamplingParams
from metasd.core import NULL_ARM, MetaSDError, Request, RoundRecord, TokenLogprob, refuse
from metasd.drafters import Drafter, check_drafters, load_drafters
from metasd.logits import LogitsPipeline
from metasd.metrics import GenerationResult, collect
from metasd.pool import Pool
from metasd.static_loop import StaticLoop
from metasd.static_round import StaticPlay, is_possible, play_static_round
from metasd.stopping import StopScanner
from metasd.target import Prompt, Target
from metasd_kernels import Status

_SEED_STEP = 0x9E3779B97F4A7C15  # keys of n > 1 answers lie far apart


class TextStream:
    """Pieces of an answer as they become certain; `result` holds the whole once the stream has ended.

    The engine decodes nothing else until then, or until the stream is closed; leaving a loop over it closes it.
    """

    def __init__(self, pieces: Generator[str, None, GenerationResult]) -> None:
        self._pieces = pieces
        self.result: GenerationResult | None = None

    def __iter__(self) -> Iterator[str]:
        result = yield from self._pieces
        self.result = result or self.result  # None: the stream had ended before

    def close(self) -> None:
        """Give the rest of the answer up; the engine is free again."""
        self._pieces.close()


class MetaSD:
    """Multi-drafter speculative decoding with one target.

    Attributes:
        target: the target; `target.model` is the transformers model.
        tokenizer: the target's tokenizer.
        pool: the drafters.
        bandit: the policy; `bandit.state()` and `bandit.load()` carry what it learned.
        costs: seconds of each arm and block length.
    """

    def __init__(self, target: Target, drafters: dict[str, Drafter], config: EngineConfig) -> None:
        self.target, self.config = target, config
        self.tokenizer = target.tokenizer
        self.max_context = self._checked_context()
        longest = MAX_NUM_DRAFT_TOKENS if config.num_draft_tokens == "auto" else int(config.num_draft_tokens)
        self._capacity = self.max_context + longest + 1
        self.pool = Pool(drafters, self._capacity, config.kv_budget, is_eager=config.catch_up == "eager")
        self.costs = CostTable({name: drafter.nominal_cost for name, drafter in drafters.items()})
        fixed = None if config.num_draft_tokens == "auto" else int(config.num_draft_tokens)
        self._num_draft_tokens = fixed
        self.bandit = make_bandit(
            config.bandit,
            self.pool.arms,
            reward=config.reward,
            objective=config.objective,
            num_draft_tokens=fixed,
            costs=self.costs,
        )
        self._token_scores = config.token_scores
        if self._token_scores == "auto":
            self._token_scores = "free" if needs_scores(self.bandit) and not self._wants_static() else "off"
        self._plain_pool = Pool({NULL_ARM: drafters[NULL_ARM]})
        self._plain_bandit = make_bandit("fixed", self._plain_pool.arms, costs=self.costs)
        self._loops: dict[bool, StaticLoop] = {}  # by whether it is plain
        self._is_calibrated = False

    @classmethod
    def from_pretrained(
        cls,
        target: str | Target = "demo",
        *,
        drafters: str | Sequence[str | Drafter] = "demo",
        preset: str | None = None,
        **options: Any,
    ) -> "MetaSD":
        """Load a target and a pool of drafters.

        Args:
            target: "demo" (SmolLM2-135M-Instruct), a folder or hub id of a causal transformers model, or a Target.
            drafters: "demo", or a list of registered names (`ngram`, `suffix`, `null`, each also as
                `name:key=value,...`), folders or hub ids of causal models with the target's tokenizer, or Drafters.
            preset: "metasd-paper" (UCB on block divergence, most tokens a round, fresh for each query, 5 draft tokens).
            options: fields of EngineConfig: bandit (a name, also `name:key=value,...`), reward ("auto", "be",
                "bd", "rb", "cf"), objective ("speed": tokens a second; "tokens": tokens a round), num_draft_tokens
                ("auto" or a number), rule ("token", "block"), scoring ("block"; "row": each position in a forward pass
                of its own, rounded as in plain decoding), kv_budget (bytes for the drafters' caches; None: all stay in
                place), max_context (tokens of prompt and answer that memory is taken for; None: the target's context,
                8192 at most), catch_up ("lazy": a drafter reads what it missed when it is picked; "eager": every
                round), loop ("static": rounds at fixed addresses, on a GPU as captured graphs, for requests without
                penalties and logits processors; "host"; "auto": "static" on a GPU), delay (1: the next draft of a
                static round is launched before the host has read this one's verdict; "auto": 1 on a GPU), token_scores
                ("off"; "free": a round records what the drafting arm, and those that cost next to nothing, say to its
                tokens; "all": every arm; "auto": "free" where the bandit learns from it, and rounds are not static),
                device ("auto", "cpu", "cuda"), dtype ("auto": the checkpoint's, or its name).

        Raises:
            UsageError: a name or value is unknown; the known ones are listed.
            MetaSDError: a model cannot be used; the message says which and why.
        """
        config = EngineConfig.build(preset, **options)
        check_names(config.bandit, config.reward)
        check_drafters(drafters)
        if isinstance(target, Target):
            for name in ("device", "dtype", "scoring"):
                if getattr(config, name) != getattr(EngineConfig, name):
                    raise refuse(name, "none beside a ready Target, which has its own", repr(getattr(config, name)))
        else:
            target = Target.load(target, device=config.device, dtype=config.dtype, scoring=config.scoring)
        return cls(target, load_drafters(drafters, target), config)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> GenerationResult:
        """Decode one prompt.

        Args:
            prompt: raw text, token ids, or chat messages (through the target's chat template).
            params: sampling parameters; greedy by default.

        Returns:
            The answer; with `n` above 1 the others are in `alternatives`.

        Raises:
            UsageError: prompt or parameters do not fit; the engine stays usable.
        """
        return self._generate(prompt, params or SamplingParams())

    def generate_plain(self, prompt: Prompt, params: SamplingParams | None = None) -> GenerationResult:
        """Decode without drafts, through the same loop: what `generate` is compared with."""
        return self._generate(prompt, params or SamplingParams(), is_plain=True)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Decode one prompt and yield its text piece by piece; the pieces together are `result.text`.

        Raises:
            UsageError: as `generate`, when the stream is first read; also for `n` above 1.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise refuse("n", "1 for a stream", params.n)
        return TextStream(self._decode(prompt, params, 0))

    def _generate(self, prompt: Prompt, params: SamplingParams, is_plain: bool = False) -> GenerationResult:
        answers = [_exhaust(self._decode(prompt, params, index, is_plain)) for index in range(params.n)]
        answers[0].alternatives.extend(answers[1:])
        return answers[0]

    def _decode(
        self, prompt: Prompt, params: SamplingParams, index: int, is_plain: bool = False
    ) -> Generator[str, None, GenerationResult]:
        prompt_ids = self._checked_prompt(prompt, params)
        if not self.target.lock.acquire(blocking=False):
            raise MetaSDError(
                "the engine's target is busy: finish or close the open stream first; it decodes one request at a time"
            )
        bandit = self._plain_bandit if is_plain else self.bandit
        try:
            bandit.start(params.is_reproducible, Context(tuple(prompt_ids), params.label))
            with torch.inference_mode():
                sequence, prefill_seconds, features = self._start(prompt_ids, params, index, is_plain, bandit)
                play = self._static_play(sequence, prompt_ids, features, is_plain)
            logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
            num_yielded = 0
            while sequence.stops.finish_reason is None:
                with torch.inference_mode():
                    played = play_static_round(sequence, play) if play else rounds.play_round(sequence)
                    if logprobs is not None and params.logprobs is not None:
                        logprobs.extend(_logprobs(played, params.logprobs))
                certain = sequence.stops.certain_text()
                if len(certain) > num_yielded:
                    yield certain[num_yielded:]
                    num_yielded = len(certain)
        finally:
            bandit.finish()
            self.target.lock.release()
        stops = sequence.stops
        assert stops.finish_reason is not None
        _warn_of_broken_logits(sequence.rounds)
        stats = collect(sequence.rounds, len(prompt_ids), len(stops.token_ids), prefill_seconds)
        return GenerationResult(
            stops.text, stops.token_ids, stops.finish_reason, prompt_ids, sequence.rounds, stats, logprobs
        )

    def _checked_prompt(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        prompt_ids = self.target.encode(prompt)
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise refuse("prompt", f"fewer than {self.max_context} tokens, {self._context_name()}", len(prompt_ids))
        if params.max_new_tokens > room:
            context = f"{self._context_name()} holds {self.max_context} tokens and the prompt has {len(prompt_ids)}"
            raise refuse("max_new_tokens", f"at most {room} ({context})", params.max_new_tokens)
        if params.logprobs is not None and params.logprobs > self.target.vocab_size:
            raise refuse("logprobs", f"at most {self.target.vocab_size}, the vocabulary", params.logprobs)
        return prompt_ids

    def _checked_context(self) -> int:
        own, asked = self.target.context_length, self.config.max_context
        if asked is not None and asked > own:
            raise refuse("max_context", f"at most {own}, the target's context", asked)
        return min(own, MAX_CONTEXT if asked is None else asked)

    def _context_name(self) -> str:
        return "the target's context" if self.max_context == self.target.context_length else "the option max_context"

    def _start(
        self, prompt_ids: list[int], params: SamplingParams, index: int, is_plain: bool, bandit: Bandit
    ) -> tuple[rounds.Sequence, float, dict[int, Tensor]]:
        target, pool = self.target, self._plain_pool if is_plain else self.pool
        pipeline = LogitsPipeline(params, prompt_ids, target.vocab_size, target.eos_token_ids, target.device)
        if pipeline.is_stepwise and self.config.rule == "block":
            raise refuse("logits_processors", 'processors with is_stateless = True for rule="block"', "others")
        seed = int(torch.randint(2**63 - 1, ())) if params.seed is None else params.seed
        key = (seed + index * _SEED_STEP) % 2**63
        begin = time.perf_counter()
        target.reserve(self._capacity)
        features = target.start(prompt_ids, pool.feature_layers)
        prefill_seconds = time.perf_counter() - begin
        if not is_plain:
            self._calibrate(prompt_ids[-1], len(prompt_ids))
        pool.reset(Request(tuple(prompt_ids), params.law, len(prompt_ids) + params.max_new_tokens), features)
        sequence = rounds.Sequence(
            target=target,
            pool=pool,
            bandit=bandit,
            pipeline=pipeline,
            stops=StopScanner(params, prompt_ids, self.tokenizer, target.eos_token_ids, target.device),
            seed=torch.tensor([key], device=target.device),
            rule=self.config.rule,
            num_draft_tokens=self._num_draft_tokens,
            max_new_tokens=params.max_new_tokens,
            token_scores="off" if is_plain else self._token_scores,
            last_token=prompt_ids[-1],
        )
        return sequence, prefill_seconds, features

    def _wants_static(self) -> bool:
        return self.config.loop == "static" or (self.config.loop == "auto" and self.target.device.type == "cuda")

    def _static_play(
        self, sequence: rounds.Sequence, prompt_ids: list[int], features: dict[int, Tensor], is_plain: bool
    ) -> StaticPlay | None:
        """How the request is played at fixed addresses; None where it is not."""
        if not self._wants_static() or not is_possible(sequence, len(prompt_ids)):
            return None
        if is_plain not in self._loops:
            self._loops[is_plain] = StaticLoop(self.target, sequence.pool, self._capacity, self.config.rule)
        loop = self._loops[is_plain]
        loop.start(prompt_ids, sequence.seed, sequence.pipeline.law, features)
        delay = self.config.delay
        return StaticPlay(loop, is_late=self.target.device.type == "cuda" if delay == "auto" else delay == 1)

    def _calibrate(self, token: int, num_tokens: int) -> None:
        """Once an engine: measure the target's forward pass for each block length, before the first choice."""
        has_room = num_tokens + MAX_NUM_DRAFT_TOKENS <= self.max_context
        if self._is_calibrated or self._num_draft_tokens is not None or not has_room:
            return
        for _ in range(3):
            for length in range(MAX_NUM_DRAFT_TOKENS + 1):
                block = torch.full((1, length + 1), token, device=self.target.device)
                begin = time.perf_counter()
                self.target.score(block)[0, -1, 0].item()
                self.costs.add_verify(length, time.perf_counter() - begin)
                self.target.rewind(length + 1)
        self._is_calibrated = True


def _warn_of_broken_logits(records: Iterable[RoundRecord]) -> None:
    broken = [record.round_id for record in records if record.status & Status.BAD_LOGITS]
    if broken:
        text = "NaN, +inf or nothing to choose from in the logits of rounds %s; their tokens mean little"
        warnings.warn(text % ", ".join(map(str, broken[:5])), RuntimeWarning, stacklevel=3)


def _exhaust(pieces: Generator[str, None, GenerationResult]) -> GenerationResult:
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: GenerationResult = end.value
            return result


def _logprobs(played: rounds.Round, num_top: int) -> list[TokenLogprob]:
    rows = played.logits[0, : len(played.token_ids)].float().log_softmax(-1)
    chosen = rows.gather(-1, torch.tensor(played.token_ids, device=rows.device).unsqueeze(-1)).squeeze(-1)
    best = rows.topk(num_top, dim=-1)
    return [
        TokenLogprob(token, logprob, dict(zip(ids, values, strict=True)))
        for token, logprob, ids, values in zip(
            played.token_ids, chosen.tolist(), best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]
