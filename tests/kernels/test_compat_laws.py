"""The law of the tokens through every adapter, and Transformers' own function beside ours.

Each test errs with probability 1e-9 and has a negative control that must fail.
"""

import copy
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys
from compat_runners import Block, Metadata, chain, generator, v1, v2
from scipy.stats import chi2
from test_verify_laws import ERROR_RATE, fit
from torch import Tensor
from toy_laws import ToyModel
from transformers.generation import utils as theirs

from metasd_kernels.compat import flashinfer, sglang
from metasd_kernels.compat import transformers as ours

TRIALS = 25_000
TARGET, DRAFTER = ToyModel(4, 3, seed=3, temperature=0.6), ToyModel(4, 2, seed=4)


def laws(scale_q: float = 1.0, scale_p: float = 1.0) -> Block:
    """Drafts of the toy drafter; a scale other than 1 tells the adapter a law that is not the true one."""
    coins, index, ids, target, draft = generator(21), torch.zeros(TRIALS, dtype=torch.int64), [], [], []
    for k in range(3):
        target.append(TARGET.tables[k][index] / TARGET.temperature)
        if k < 2:
            draft.append(DRAFTER.tables[k][index])
            ids.append(torch.multinomial(draft[k].softmax(-1), 1, generator=coins).squeeze(-1))
            index = index * 4 + ids[k]
    return Block(scale_p * torch.stack(target, 1), scale_q * torch.stack(draft, 1), torch.stack(ids, 1))


def run_flashinfer(block: Block) -> Tensor:
    return flashinfer.chain_speculative_sampling(block.q, block.ids, block.p)[0]


def run_vllm(block: Block, **options: Any) -> Tensor:
    bonus = torch.multinomial(block.p[:, 2], 1)
    return v1(block, [2] * TRIALS, Metadata(), bonus=bonus, **options)


def run_vllm_v2(block: Block, **options: Any) -> Tensor:
    return v2(block, [2] * TRIALS, torch.ones(TRIALS), **options)[0]


def run_sglang(block: Block, width: int = 3, is_tree: bool = False, **options: Any) -> Tensor:
    name = "tree_speculative_sampling_target_only" if is_tree else "chain_speculative_sampling_triton"
    predicts, _, count = chain(block, torch.rand(TRIALS, width), torch.rand(TRIALS), getattr(sglang, name), **options)
    return predicts.masked_fill(torch.arange(3) > count.unsqueeze(-1), -1)


ADAPTERS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "flashinfer": (run_flashinfer, {}),
    "vllm": (run_vllm, {}),
    "vllm, n-gram": (run_vllm, {"draft_probs": None}),
    "vllm_v2": (run_vllm_v2, {}),
    "vllm_v2, block": (run_vllm_v2, {"use_block_verification": True}),
    "vllm_v2, n-gram": (run_vllm_v2, {"draft_logits": None}),
    "sglang": (run_sglang, {}),
    "sglang, block": (run_sglang, {"block_verification": True}),
    "sglang, K columns": (run_sglang, {"width": 2}),
    "sglang, tree": (run_sglang, {"is_tree": True}),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_law_of_the_tokens(name: str) -> None:
    """Catches tokens in another law than the target's. Control: a wrong q, or where the adapter has none, a wrong p."""
    torch.manual_seed(31)
    run, options = ADAPTERS[name]
    statistic, limit = fit(SimpleNamespace(output_token_ids=run(laws(), **options).long()), TARGET)
    assert statistic < limit
    wrong = laws(scale_p=0.8) if "n-gram" in name or "tree" in name else laws(scale_q=0.6)
    statistic, limit = fit(SimpleNamespace(output_token_ids=run(wrong, **options).long()), TARGET)
    assert statistic > limit


# Transformers

POINTS = 40 * torch.eye(5)  # logits of laws that are points, up to e^-40
IDS = torch.tensor([[4, 4, 1, 2]])  # a prompt of two, a draft of two
CASES = {  # where the target points, what comes out
    "all accepted": ([1, 2, 3], [[1, 2, 3]], 2),
    "second rejected": ([1, 0, 3], [[1, 0]], 1),
    "first rejected": ([0, 2, 3], [[0]], 0),
}


@pytest.mark.parametrize(("target", "tokens", "num_matches"), CASES.values(), ids=CASES)
def test_transformers_same_result_where_it_is_certain(
    target: list[int], tokens: list[list[int]], num_matches: int
) -> None:
    """Catches another shape, dtype or count than the installed function gives."""
    given = IDS, POINTS[None, [1, 2]], 2, POINTS[None, target]
    for function in (theirs._speculative_sampling, ours._speculative_sampling):
        valid_tokens, n_matches = function(*given)
        assert valid_tokens.tolist() == tokens
        assert n_matches == num_matches
        assert (valid_tokens.dtype, n_matches.dtype, n_matches.shape) == (torch.int64, torch.int64, ())


@pytest.mark.parametrize("is_done", [True, torch.tensor([True])])
def test_transformers_a_draft_that_ends_the_text(is_done: bool | Tensor) -> None:
    """Catches a bonus token behind the end of the text, and an end that counts though it was rejected."""
    valid_tokens, n_matches = ours._speculative_sampling(IDS, POINTS[None, [1, 2]], 2, POINTS[None, [1, 2, 3]], is_done)
    assert (valid_tokens.tolist(), n_matches) == ([[1, 2]], 1)
    valid_tokens, n_matches = ours._speculative_sampling(IDS, POINTS[None, [1, 2]], 2, POINTS[None, [1, 0, 3]], is_done)
    assert (valid_tokens.tolist(), n_matches) == ([[1, 0]], 1)
    valid_tokens, n_matches = ours._speculative_sampling(IDS, torch.zeros(1, 0, 5), 0, POINTS[None, [3]])
    assert (valid_tokens.tolist(), n_matches) == ([[3]], 0)


REFUSED: dict[str, dict[str, Any]] = {
    "new_logits": {"new_logits": torch.zeros(2, 3, 5)},
    "candidate_length": {"candidate_length": -1},
    "candidate_input_ids": {"candidate_input_ids": torch.tensor([[1]])},
    "is_done_candidate": {"is_done_candidate": 0.5},
    "assistant_ensemble_weight": {"assistant_ensemble_weight": 0.5},
}


@pytest.mark.parametrize("argument", REFUSED)
def test_transformers_what_cannot_be_honoured_is_refused(argument: str) -> None:
    """Catches a batch, a lossy weight or a wrong length that is taken for something else."""
    given = {
        "candidate_input_ids": IDS, "candidate_logits": POINTS[None, [1, 2]], "candidate_length": 2,
        "new_logits": POINTS[None, [1, 2, 3]],
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"^{argument}: expected .*, got "):
        ours._speculative_sampling(**given | REFUSED[argument])


def histogram(
    function: Callable[..., tuple[Tensor, Tensor]], seed: int, believed: float = 1.0
) -> Counter[tuple[int, ...]]:
    """Results of 2,000 drafts of two, each with its prompt of one."""
    torch.manual_seed(seed)
    target, draft = (
        torch.tensor([[[1.0, 0.0, -0.5]]]).expand(1, 3, 3),
        torch.tensor([[[-0.5, 0.8, 0.0]]]).expand(1, 2, 3),
    )
    ids = torch.multinomial(draft[0, 0].softmax(-1), 4_000, replacement=True).view(-1, 1, 2)
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    results = (function(torch.cat([prompt, row], 1), draft * believed, 2, target)[0][0].tolist() for row in ids)
    return Counter(tuple(result) for result in results)


def distance(some: Counter[tuple[int, ...]], others: Counter[tuple[int, ...]]) -> tuple[float, float]:
    """The chi-square of two samples of one size, and its limit. Results met fewer than 20 times are one."""
    together = some + others
    rare = [key for key in together if together[key] < 20]
    cells = [(some[key], others[key]) for key in together if together[key] >= 20]
    cells.append((sum(some[key] for key in rare), sum(others[key] for key in rare)))
    cells = [cell for cell in cells if sum(cell)]
    return sum((a - b) ** 2 / (a + b) for a, b in cells), float(chi2.isf(ERROR_RATE, len(cells) - 1))


def test_transformers_same_law() -> None:
    """Catches results in another law than the installed function's, token counts included. Control: a wrong q."""
    reference = histogram(theirs._speculative_sampling, seed=1)
    statistic, limit = distance(histogram(ours._speculative_sampling, seed=2), reference)
    assert statistic < limit
    statistic, limit = distance(histogram(ours._speculative_sampling, seed=3, believed=0.0), reference)
    assert statistic > limit


def test_transformers_in_assisted_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a call that Transformers makes and the adapter cannot take. A duplicate of the target is always right."""
    model, calls = toys.toy_llama(), []

    def noted(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        calls.append((given[2], ours._speculative_sampling(*given, **options)))
        return calls[-1][1]

    monkeypatch.setattr(theirs, "_speculative_sampling", noted)
    torch.manual_seed(5)
    out = model.generate(
        torch.tensor([toys.PROMPT]),
        assistant_model=copy.deepcopy(model),
        do_sample=True,
        max_new_tokens=24,
        pad_token_id=0,
    )
    assert out.shape[1] > len(toys.PROMPT)
    assert calls
    assert all(n_matches == length for length, (_, n_matches) in calls)
