"""The target: model, tokenizer and cache of the language model whose law the output has."""

import hashlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from metasd import demo
from metasd.cache import ModelCache, ShallowCache, Window
from metasd.config import MAX_NUM_DRAFT_TOKENS
from metasd.core import MetaSDError, refuse
from metasd.features import FeatureTap
from metasd.slots import DEFAULT_CAPACITY, Slot

_log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """ "auto" is the first GPU, or the CPU where there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise refuse("device", '"auto", "cpu", "cuda" or "cuda:N"', repr(device)) from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise refuse("device", '"auto" or "cpu": torch sees no GPU here', repr(device))
    return resolved


def resolve_dtype(dtype: str) -> torch.dtype | str:
    """ "auto" is the dtype that the checkpoint is stored in."""
    if dtype != "auto" and dtype not in _DTYPES:
        raise refuse("dtype", f"one of auto, {', '.join(_DTYPES)}", repr(dtype))
    return _DTYPES.get(dtype, dtype)


def load_model(source: str, argument: str, device: torch.device, dtype: torch.dtype | str) -> tuple[Any, Any]:
    """A causal model in eval mode and its tokenizer.

    Args:
        source: "demo", a folder, or a hub id.
        argument: the name of the user's argument, for errors.

    Raises:
        MetaSDError: nothing usable is there; the message names the file where one is missing or damaged.
    """
    folder = str(demo.demo_target_folder(_log.info)) if source == "demo" else source
    _check_folder(folder, argument)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except Exception as error:
        damaged = _damaged_file(folder)
        if damaged:
            raise MetaSDError(f"{argument}: the file {damaged} is damaged or incomplete; fetch it again") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise MetaSDError(f"{argument}: cannot load a causal language model from {folder!r}: {reason}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise MetaSDError(
            f"{argument}: {folder!r} lacks {len(missing)} weights of a causal language model, among them {missing[0]}; "
            "expected a complete checkpoint of a causal (decoder-only) model"
        )
    return model.eval().to(device), tokenizer


def _check_folder(folder: str, argument: str) -> None:
    path = Path(folder).expanduser()
    looks_local = folder.startswith((".", "/", "~")) or folder.count("/") > 1
    if not path.is_dir():
        if looks_local or path.exists():
            raise MetaSDError(
                f"{argument}: no folder {folder!r}; expected a folder of a causal transformers model or a hub id"
            )
        return
    for name in ("config.json", "tokenizer_config.json"):
        if not (path / name).is_file():
            raise MetaSDError(
                f"{argument}: the file {path / name} is missing; expected a folder of a transformers model"
            )


def _damaged_file(folder: str) -> str | None:
    """The first file that cannot be what its name says, if the folder is a local one."""
    import json

    for path in sorted(Path(folder).expanduser().glob("*")):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass
        except (ValueError, SafetensorError, OSError):
            return str(path)
    return None


class Target:
    """A causal model with its tokenizer, and the cache of the one sequence that is being decoded.

    Attributes:
        model, tokenizer: the transformers objects.
        source: where they were loaded from; empty for ready ones.
        device: where logits lie.
        eos_token_ids: the tokens that end an answer.
        context_length: the most tokens that prompt and answer may have together.
        lock: held while a request is being decoded; engines that share a target take turns.
    """

    def __init__(self, model: Any, tokenizer: Any, scoring: str = "block") -> None:
        self.model, self.tokenizer = model, tokenizer
        self.source = ""
        self.probes: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}  # for white-box self-checks
        self.lock = threading.Lock()
        self._cache = ModelCache(model, "target")
        self._scoring = scoring
        self._head_rows: dict[bytes, tuple[Tensor, Tensor | None]] = {}
        self._taps: dict[tuple[int, ...], FeatureTap] = {}
        self._tap: FeatureTap | None = None
        self.device = self._cache.device
        config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.context_length: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        ends = config.eos_token_id if ends is None else ends
        self.eos_token_ids = frozenset([ends] if isinstance(ends, int) else ends or ())

    @classmethod
    def load(cls, source: str, *, device: str = "auto", dtype: str = "auto", scoring: str = "block") -> "Target":
        """Load from "demo", a folder or a hub id.

        Raises:
            MetaSDError: see `load_model`.
        """
        target = cls(*load_model(source, "target", resolve_device(device), resolve_dtype(dtype)), scoring)
        target.source = source
        return target

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a raw string, of chat messages (through the chat template), or of ids as they are.

        Raises:
            UsageError: the prompt is empty, a batch, or not one of the three.
        """
        expected = "a string, a list of token ids, or a list of chat messages {'role': ..., 'content': ...}"
        if isinstance(prompt, str):
            ids = list(self.tokenizer(prompt)["input_ids"]) if prompt else []
        elif not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            raise refuse("prompt", expected, type(prompt).__name__)
        elif all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            ids = [item for item in prompt if isinstance(item, int)]
            outside = [item for item in ids if not 0 <= item < self.vocab_size]
            if outside:
                raise refuse("prompt", f"token ids in [0, {self.vocab_size})", outside[0])
        elif all(isinstance(item, dict) for item in prompt):
            ids = self._encode_chat(prompt)
        elif all(isinstance(item, (str, list)) for item in prompt):
            raise refuse(
                "prompt", "one prompt; batches are not supported yet, call once for each", f"{len(prompt)} prompts"
            )
        else:
            raise refuse("prompt", expected, f"a list of {type(prompt[0]).__name__}")
        if not ids:
            raise refuse("prompt", "at least one token", "an empty prompt")
        return ids

    def _encode_chat(self, messages: Any) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise refuse("prompt", "a string: this target's tokenizer has no chat template", "chat messages")
        for message in messages:
            if not {"role", "content"} <= set(message):
                raise refuse("prompt", "messages with 'role' and 'content'", message)
        try:
            text = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates refuse in their own words, e.g. roles that do not alternate
            raise refuse("prompt", "messages that fit the target's chat template", f"its error {error}") from error
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def start(self, prompt_ids: Sequence[int], feature_layers: tuple[int, ...] = ()) -> dict[int, Tensor]:
        """Forget the last sequence and read a prompt, all but its last token: that one begins the first round.

        Args:
            prompt_ids: P of them.
            feature_layers: the hidden states to keep, here and in `score`, in the numbering of `metasd.features`.

        Returns:
            `[1, P-1, H]` for each of these layers.
        """
        self.read(prompt_ids, 1, feature_layers)
        return self.take_features()

    def reserve(self, num_tokens: int) -> None:
        """Memory for so many tokens at least; forgets the last sequence where there is too little."""
        if self._cache.slot is None or self._cache.slot.capacity < num_tokens:
            self._cache.move(Slot(self._cache.shape, num_tokens), self)

    def read(self, token_ids: Sequence[int], num_rows: int, feature_layers: tuple[int, ...] = ()) -> Tensor:
        """Read a text from its beginning, all but its last token; `take_features` has their features then.

        Returns:
            `[num_rows, V]`, the logits before each of the last tokens; `[0, V]` for a text of one token.
        """
        if len(token_ids) + MAX_NUM_DRAFT_TOKENS >= DEFAULT_CAPACITY:
            self.reserve(2 * len(token_ids))
        self._cache.clear()
        self._tap = self._tap_on(feature_layers)
        if len(token_ids) < 2:
            self.take_features()
            return torch.empty(0, self.vocab_size, device=self.device)
        return self._feed(torch.tensor([token_ids[:-1]], device=self.device), num_rows)[0]

    def take_features(self) -> dict[int, Tensor]:
        """`[1, M, H]` for each layer asked for at the start, of the M tokens that were read last."""
        return self._tap.take() if self._tap else {}

    def _tap_on(self, layers: tuple[int, ...]) -> FeatureTap | None:
        if layers and layers not in self._taps:
            self._taps[layers] = FeatureTap(self.model, layers)
        return self._taps.get(layers)

    def _feed(self, token_ids: Tensor, num_logits: int) -> Tensor:
        if self._tap is None:
            return self._cache.feed(token_ids, num_logits)
        self._tap.is_on = True
        try:
            return self._cache.feed(token_ids, num_logits)
        finally:
            self._tap.is_on = False

    def score_window(self, token_ids: Tensor, window: Window) -> Tensor:
        """`score` for captured graphs: the tokens go to places that tensors tell."""
        self.take_features()
        if self._tap is not None:
            self._tap.is_on = True
        try:
            return self._cache.feed_window(token_ids, window, token_ids.shape[1])
        finally:
            if self._tap is not None:
                self._tap.is_on = False

    @property
    def slot(self) -> Slot | None:
        """Where its cache lies."""
        return self._cache.slot

    def move_to(self, num_tokens: int) -> None:
        """So many tokens count as read: for whoever wrote them through windows."""
        self._cache.num_tokens = num_tokens

    def score(self, token_ids: Tensor) -> Tensor:
        """Logits `[1, M, V]` behind each of the new tokens `[1, M]`.

        With `scoring="row"` each position has a forward pass of its own: slower, rounded exactly as in plain decoding.
        """
        num_tokens = token_ids.shape[1]
        self.take_features()  # of a forward pass that nobody asked about
        if self._scoring == "row":
            return torch.cat([self._feed(token_ids[:, k : k + 1], 1) for k in range(num_tokens)], dim=1)
        return self._feed(token_ids, num_tokens)

    @property
    def forward_seconds(self) -> float:
        """What its forward passes have taken so far, on the host's clock."""
        return self._cache.forward.seconds

    def rewind(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` scored tokens."""
        self._cache.rewind(num_tokens)

    def head_rows(self, token_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows `[n, H]` of the head and their bias, for drafters over a reduced vocabulary; those with the same share
        them."""
        key = hashlib.sha256(token_ids.cpu().numpy().tobytes()).digest()
        if key not in self._head_rows:
            head = self.model.get_output_embeddings()
            bias = getattr(head, "bias", None)
            self._head_rows[key] = head.weight.detach()[token_ids], None if bias is None else bias.detach()[token_ids]
        return self._head_rows[key]

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return int(self.model.config.get_text_config(decoder=True).num_hidden_layers)

    def shallow(self, num_layers: int) -> ShallowCache:
        """The first layers, the final norm and the head, on this target's own cache."""
        return self._cache.shallow(num_layers)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of the weights and of the cache."""
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return {"weights": weights, "cache": self._cache.memory_bytes()}
