"""Small models for tests: random Llamas with a real tokenizer, targets that are tables or scripts, and drafters.

The drafters are right, wrong, asleep, noisy, or honest about a law of their own.
"""

import copy
import functools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metasd import MetaSD
from metasd.cache import ModelCache
from metasd.config import EngineConfig
from metasd.core import Coins, Draft, Offer, Position, Request
from metasd.drafters import Drafter, load_drafters
from metasd.drafters.lm import LMDrafter
from metasd.target import Target

VOCAB_SIZE = 320
PROMPT = [70, 71, 300, 72, 70, 71, 300, 72, 70, 71]  # repeats, so that copying drafters wake up
_CORPUS = [
    "the cat sat on the mat. the dog sat on the log.",
    "naïve café 你好 世界 😀👍 русский",
    "a; c! <x> \n\n stop",
]


@functools.cache
def toy_tokenizer() -> Any:
    """Byte-level BPE with an end token and a chat marker; Chinese and emoji are split over several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eos>", "<user>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", additional_special_tokens=["<user>"])


@functools.cache
def _llama(seed: int, vocab_size: int, context_length: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                # Wide enough that greedy text does not fall into a cycle at once.
                scale = 1.0 if "embed" in name else 2.5 / weight.shape[1] ** 0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model


def toy_llama(seed: int = 5, vocab_size: int = VOCAB_SIZE, noise: float = 0.0, context_length: int = 512) -> Any:
    """A random float32 Llama; `noise`: the standard deviation of what is added to each weight, in units of its own.

    Without noise this is one shared model: two caches over it do not disturb each other.
    """
    model = _llama(seed, vocab_size, context_length)
    if noise:
        model = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(1000 + seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * (weight.std() * noise).nan_to_num())
    return model


def toy_target(seed: int = 5, scoring: str = "block", eos: Sequence[int] = (), context_length: int = 512) -> Target:
    """A toy Llama as a target; `eos` are its end tokens, none by default."""
    target = Target(toy_llama(seed, context_length=context_length), toy_tokenizer(), scoring)
    target.eos_token_ids = frozenset(eos)
    return target


def engine_of(target: Target, drafters: Sequence[str | Drafter], **options: Any) -> MetaSD:
    """An engine over ready drafters; five draft tokens unless told otherwise."""
    return MetaSD(target, load_drafters(drafters, target), EngineConfig.build(**{"num_draft_tokens": 5, **options}))


def plain_greedy(
    model: Any, prompt: Sequence[int], num_tokens: int, processors: Sequence[Callable[..., Tensor]] = ()
) -> list[int]:
    """Greedy decoding in a straight line: the whole text through the model for each token, no cache, no engine."""
    ids = torch.tensor([list(prompt)])
    for _ in range(num_tokens):
        with torch.inference_mode():
            row = model(ids).logits[:, -1]
        for processor in processors:
            row = processor(ids, row)
        ids = torch.cat([ids, row.argmax(-1, keepdim=True)], dim=1)
    return ids[0, len(prompt) :].tolist()


def toy_features(tokens: Sequence[int], layer: int = -1) -> Tensor:
    """`[M, 48]`, what a table target "thinks" of each token at a layer."""
    table = torch.randn(VOCAB_SIZE, 48, generator=torch.Generator().manual_seed(100 + layer))
    return table[list(tokens)]


class NoTokenizer:
    """Text for targets without one: each token is a letter."""

    chat_template = None
    all_special_tokens: tuple[str, ...] = ()

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return "".join(chr(97 + token) for token in ids)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in text]}


class TableTarget(Target):
    """A target whose logits are a table row of the last token or the last two; no transformers, microseconds a token.

    Args:
        table: `[V, V]` or `[V, V, V]` fp32 logits, by the last one or two tokens.
    """

    def __init__(self, table: Tensor, tokenizer: Any = None, eos: Sequence[int] = (), context_length: int = 1 << 20):
        self.table = table
        self.source = ""
        self._head_rows = {}
        self.lock = threading.Lock()
        self.model = torch.nn.Linear(1, 1)
        self.tokenizer = tokenizer or NoTokenizer()
        self.device = torch.device("cpu")
        self.vocab_size = table.shape[-1]
        self.eos_token_ids = frozenset(eos)
        self.context_length = context_length
        self.tokens: list[int] = []
        self.num_forwards = 0

    def row(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[V]` behind these tokens."""
        return self.table[tuple(tokens[1 - self.table.dim() :])]

    def start(self, prompt_ids: Sequence[int], feature_layers: tuple[int, ...] = ()) -> dict[int, Tensor]:
        self.tokens, self.layers = list(prompt_ids[:-1]), feature_layers
        return self.features(self.tokens)

    def reserve(self, num_tokens: int) -> None:
        pass

    @property
    def forward_seconds(self) -> float:
        return 0.0

    def take_features(self) -> dict[int, Tensor]:
        return self.features(self.last_read)

    def features(self, tokens: Sequence[int]) -> dict[int, Tensor]:
        """`[1, M, H]` for each layer asked for: a fixed row for each token."""
        return {layer: toy_features(tokens, layer).unsqueeze(0) for layer in self.layers if tokens}

    def score(self, token_ids: Tensor) -> Tensor:
        self.num_forwards += 1
        self.last_read = token_ids[0].tolist()
        rows = []
        for token in token_ids[0].tolist():
            self.tokens.append(token)
            rows.append(self.row(self.tokens))
        return torch.stack(rows).unsqueeze(0)

    def rewind(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    def shallow(self, num_layers: int) -> Any:
        return _FollowingShallow(self, num_layers)

    def memory_bytes(self) -> dict[str, int]:
        return {}


class _FollowingShallow:
    """The first layers of the model beside a table target, whose cache holds what the target has read."""

    def __init__(self, target: TableTarget, num_layers: int) -> None:
        self.target, self.whole = target, ModelCache(target.model, "toy")
        self.shallow = self.whole.shallow(num_layers)
        self.read_anew = self.shallow.read_anew
        self.num_ahead = 0

    def feed(self, token_ids: Tensor, num_logits: int) -> Tensor:
        if self.num_ahead == 0:
            self.whole.clear()
            if self.target.tokens:
                self.whole.feed(torch.tensor([self.target.tokens]), 1)
        self.num_ahead += token_ids.shape[1]
        return self.shallow.feed(token_ids, num_logits)

    def rewind(self, num_tokens: int) -> None:
        self.num_ahead -= num_tokens
        assert self.num_ahead == 0, "what was drafted must go before the target reads on"
        self.shallow.rewind(num_tokens)


class ScriptTarget(TableTarget):
    """Greedily says one fixed text, whatever was said before: the place for stops at chosen offsets.

    Args:
        script: token ids behind a prompt of one token.
    """

    def __init__(self, script: Sequence[int], tokenizer: Any, eos: Sequence[int] = (), vocab_size: int = VOCAB_SIZE):
        super().__init__(torch.zeros(1, vocab_size), tokenizer, eos)
        self.script = list(script)

    def row(self, tokens: Sequence[int]) -> Tensor:
        row = torch.zeros(self.vocab_size)
        row[self.script[(len(tokens) - 1) % len(self.script)]] = 9.0
        return row


class Replay(Drafter):
    """Replays a known answer: an oracle; with `wrong_every` a liar at every so many-th token of the answer."""

    def __init__(self, target: Target, answer: Sequence[int], name: str = "oracle", wrong_every: int = 0) -> None:
        super().__init__(target)
        self.name, self.answer, self.wrong_every = name, list(answer), wrong_every

    def reset(self, request: Request) -> None:
        self.num_done = 0

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        return Offer(tuple(Position(f"depth{k}") for k in range(max_num_draft_tokens)))

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        block = []
        for at in range(self.num_done, self.num_done + num_draft_tokens):
            token = self.answer[at % len(self.answer)]
            is_lie = self.wrong_every and (at + 1) % self.wrong_every == 0
            block.append((token + 1) % self.target.vocab_size if is_lie else token)
        return Draft(torch.tensor([block]))

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self.num_done += len(token_ids)


class Asleep(Drafter):
    """Never has anything to propose; or, with `offers`, says that it has and then drafts nothing."""

    def __init__(self, target: Target, name: str = "asleep", offers: bool = False) -> None:
        super().__init__(target)
        self.name, self._offers = name, offers

    def reset(self, request: Request) -> None:
        pass

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        return Offer(tuple(Position(f"depth{k}") for k in range(max_num_draft_tokens))) if self._offers else None

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        return None

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        pass


class TableDrafter(Drafter):
    """Draws from a table law of its own at the request's temperature and hands exactly that law over.

    Args:
        table: `[V, V]` fp32 logits by the last token.
        claims: a table that it hands over instead: a drafter that lies about its law.
    """

    def __init__(self, target: Target, table: Tensor, name: str = "table", claims: Tensor | None = None) -> None:
        super().__init__(target)
        self.name, self.table, self.claims = name, table, table if claims is None else claims

    def reset(self, request: Request) -> None:
        self._law, self._last = request.law, request.prompt_ids[-1]

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        return Offer(tuple(Position(f"depth{k}") for k in range(max_num_draft_tokens)))

    def uniform(self, coins: Coins, position: int) -> float:
        return random.Random(f"{self.name} {int(coins.seed)} {coins.nonce} {position}").random()

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        block, last = [], self._last
        claimed = []
        for k in range(num_draft_tokens):
            claimed.append(self.claims[last])
            law = (self.table[last].double() / self._law.temperature).softmax(-1)
            last = int((law.cumsum(-1) > self.uniform(coins, k)).int().argmax())
            block.append(last)
        return Draft(torch.tensor([block]), torch.stack(claimed).unsqueeze(0), self._law.temperature)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._last = token_ids[-1] if token_ids else self._last


class Forgetful:
    """The part of a Bandit that one without a state needs not write."""

    def finish(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        pass


def lm(target: Target, model: Any, name: str) -> LMDrafter:
    """A ready model as a drafter."""
    return LMDrafter(target, name, model=model, tokenizer=None)


class Clock:
    """A clock that only moves when it is told, or by noise from a fixed seed whenever it is read."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.now, self._noise, self._random = 0.0, noise, random.Random(seed)

    def perf_counter(self) -> float:
        self.now += self._noise * self._random.random()
        return self.now


def install_clock(monkeypatch: Any, clock: Clock) -> Clock:
    """Let the loop read this clock."""
    import metasd.engine
    import metasd.pool
    import metasd.round

    for module in (metasd.engine, metasd.pool, metasd.round):
        monkeypatch.setattr(module, "time", clock)
    return clock


def blocks(length: int, size: int) -> Iterator[range]:
    """Ranges of at most `size` that cover `length`."""
    return (range(start, min(start + size, length)) for start in range(0, length, size))
