"""Random inputs of `verify`, as the tensors of the op and, row by row, as requests of the oracle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import oracles
import torch
from oracles import Request, Verdict, law
from torch import Tensor

from metasd_kernels import VerifyOutput

DRAFT_KINDS = ("point", "dense", "wider", "narrower", "reduced", "sparse")
FLOAT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """Padded tensors; `packed` gives the other form of the same block."""

    target_logits: Tensor
    draft_token_ids: Tensor
    draft_logits: Tensor | None
    options: dict[str, Any]
    coins: np.ndarray  # the oracle's

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.target_logits, self.draft_token_ids, self.draft_logits

    def request(self, row: int) -> Request:
        def at(name: str) -> Any:
            value = self.options.get(name)
            if not isinstance(value, Tensor):
                return value
            return value.numpy() if name == "draft_to_target" and value.dim() == 1 else value[row].double().numpy()

        ids = at("draft_to_target")
        return Request(
            target_logits=self.target_logits[row].double().numpy(),
            draft_token_ids=self.draft_token_ids[row].tolist(),
            draft_logits=None if self.draft_logits is None else self.draft_logits[row].double().numpy(),
            coins=self.coins[row],
            rule=self.options["rule"],
            temperature=float(at("temperature")),
            draft_temperature=float(at("draft_temperature")),
            target_cutoff=at("target_cutoff"),
            draft_cutoff=at("draft_cutoff"),
            num_draft_tokens=int(at("num_draft_tokens")),
            draft_to_target=None if ids is None else ids.astype(np.int64),
            reward_length=float(at("reward_length")),
        )

    def expected(self) -> list[Verdict]:
        return [oracles.verify_row(self.request(row)) for row in range(len(self.target_logits))]

    def packed(self) -> tuple[tuple[Tensor, Tensor, Tensor | None], dict[str, Any]]:
        """The packed form; inert rows have no packed form and become empty blocks."""
        lengths = self.options["num_draft_tokens"].clamp(0, self.draft_token_ids.shape[1]).tolist()

        def pack(value: Tensor, extra: int) -> Tensor:
            return torch.cat([value[row, : length + extra] for row, length in enumerate(lengths)])

        options = {name: value for name, value in self.options.items() if name != "num_draft_tokens"}
        for name, extra in (("target_cutoff", 1), ("draft_cutoff", 0), ("draft_to_target", 0)):
            if isinstance(options.get(name), Tensor) and options[name].dim() > 1:
                options[name] = pack(options[name], extra)
        options["cu_num_draft_tokens"] = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        options["max_num_draft_tokens"] = self.draft_token_ids.shape[1]
        draft = None if self.draft_logits is None else pack(self.draft_logits, 0)
        return (pack(self.target_logits, 1), pack(self.draft_token_ids, 0), draft), options


def make_case(
    seed: int,
    *,
    rule: str = "token",
    kind: str = "dense",
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    use_cutoffs: bool = False,
    is_injected: bool = True,
    batch_size: int = 24,
    num_draft_tokens: int = 4,
    vocab_size: int = 1500,
) -> Case:
    """Every row has its own temperatures (greedy and point mass among them), length, and reward length."""
    rng = np.random.default_rng(seed)
    block = (batch_size, num_draft_tokens)
    target = torch.tensor(3.0 * rng.standard_normal((batch_size, num_draft_tokens + 1, vocab_size))).to(dtypes[0])
    options: dict[str, Any] = {
        "rule": rule,
        "temperature": torch.tensor(rng.choice([0.0, 0.3, 0.7, 1.0, 1.5], batch_size), dtype=torch.float32),
        "draft_temperature": torch.tensor(rng.choice([0.0, 0.5, 1.0, 1.0, 2.0], batch_size), dtype=torch.float32),
        "num_draft_tokens": torch.tensor(
            rng.choice([-1, 0, 1, num_draft_tokens, num_draft_tokens, num_draft_tokens], batch_size), dtype=torch.int32
        ),
        "reward_length": torch.tensor(rng.integers(0, 8, batch_size), dtype=torch.int64),
    }
    where = _slots(rng, kind, block, vocab_size)
    if kind in ("reduced", "sparse"):
        options["draft_to_target"] = torch.tensor(where)
    seen = np.broadcast_to(where, (*block, where.shape[-1]))
    noise = 0.7 * rng.standard_normal(seen.shape)
    near = np.take_along_axis(target[:, :-1].double().numpy(), np.clip(seen, 0, vocab_size - 1), -1)
    draft = torch.tensor(near + noise).to(dtypes[1])
    if use_cutoffs:
        options["target_cutoff"] = target.float().quantile(0.9, -1)
        options["draft_cutoff"] = draft.float().quantile(0.8, -1)

    ids = np.zeros(block, dtype=np.int64)
    for row, k in np.ndindex(block):
        cutoff = float(options["draft_cutoff"][row, k]) if use_cutoffs else -np.inf
        logits = np.where(seen[row, k] < 0, -np.inf, draft[row, k].double().numpy())
        temperature = max(float(options["draft_temperature"][row]), 0.1)
        q = np.exp(law(logits, temperature, cutoff)[0])
        ids[row, k] = seen[row, k][rng.choice(len(q), p=q)]
    _spoil(rng, ids, vocab_size)

    if is_injected:
        coins = torch.tensor(rng.random((batch_size, num_draft_tokens + 2)), dtype=torch.float32)
        options["uniform_samples"] = coins.clamp(max=1 - 2.0**-24)
        own = options["uniform_samples"].double().numpy()
    else:
        options["seed"] = torch.tensor(rng.integers(-(2**63), 2**63 - 1, batch_size))
        options["offset"] = torch.tensor(rng.integers(-(2**63), 2**63 - 1, batch_size))
        keys = zip(options["seed"].tolist(), options["offset"].tolist(), strict=True)
        own = np.stack([oracles.verify_coins(seed, offset, num_draft_tokens) for seed, offset in keys])
    token_dtype = torch.int32 if seed % 2 else torch.int64
    return Case(target, torch.tensor(ids).to(token_dtype), None if kind == "point" else draft, options, own)


def _slots(rng: np.random.Generator, kind: str, block: tuple[int, int], vocab_size: int) -> np.ndarray:
    """Target ids of the columns of the draft logits."""
    if kind == "wider":  # ids beyond the target's vocabulary, which hold mass
        return np.arange(vocab_size + 7)
    if kind == "narrower":
        return np.arange(vocab_size - vocab_size // 3)
    if kind == "reduced":
        return rng.permutation(vocab_size)[: vocab_size // 2]
    if kind == "sparse":
        slots = np.stack([rng.permutation(vocab_size)[:40] for _ in range(block[0] * block[1])]).reshape(*block, 40)
        return np.where(rng.random(slots.shape) < 0.1, -1, slots)
    return np.arange(vocab_size)


def _spoil(rng: np.random.Generator, ids: np.ndarray, vocab_size: int) -> None:
    """A few ids that are none, and a few that are too large."""
    ids[rng.random(ids.shape) < 0.03] = -1
    ids[rng.random(ids.shape) < 0.02] = vocab_size + 3


def assert_agrees(
    out: VerifyOutput, expected: list[Verdict], ties: dict[str, int], rows: list[int] | None = None
) -> None:
    """Integers equal outside the tie band, floats within the tolerance everywhere."""
    num_positions = out.tv_distance.shape[1]
    for row in rows if rows is not None else range(len(expected)):
        want = expected[row]
        ties["rows"] += 1
        ties["ties"] += want.is_tie
        if not want.is_tie:
            assert out.output_token_ids[row].tolist() == want.output_token_ids, f"row {row}"
            assert int(out.num_accepted_tokens[row]) == want.num_accepted_tokens, f"row {row}"
            assert int(out.status[row]) == want.status, f"row {row}"
        for name, terms in (
            ("tv_distance", 1),
            ("accept_probability", 1),
            ("expected_num_accepted", num_positions),
            ("block_divergence", num_positions),
        ):
            have, wanted = getattr(out, name)[row].double().numpy(), np.array(getattr(want, name))
            np.testing.assert_allclose(
                have, wanted, rtol=0, atol=FLOAT_TOLERANCE * max(terms, 1), err_msg=f"{name}[{row}]"
            )


def assert_same(have: VerifyOutput, want: VerifyOutput) -> None:
    """Integers equal, floats up to the order of their sums."""
    for name, left, right in zip(VerifyOutput._fields, have, want, strict=True):
        atol = FLOAT_TOLERANCE * max(have.accept_probability.shape[1], 1) if left.is_floating_point() else 0
        torch.testing.assert_close(left, right, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
