"""The Triton kernels in the interpreter against the reference, integer for integer."""

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import pytest
import torch
from cases import DRAFT_KINDS, make_case
from op_runner import Ops, usable

from metasd_kernels.outputs import VerifyOutput

RULES = ("token", "block")
ROWS_A_CASE = 14  # 2 rules x 6 kinds x 2 forms of the coins: 336 rows, and about a second each in the interpreter


def differing_rows(seed: int, rule: str, kind: str, is_injected: bool) -> tuple[int, list[str]]:
    """Rows compared, and those that differ although the oracle sees no tie."""
    torch.set_num_threads(1)
    sizes = {"batch_size": ROWS_A_CASE, "num_draft_tokens": 2, "vocab_size": 1030 if seed % 4 == 0 else 200}
    case = make_case(seed, rule=rule, kind=kind, is_injected=is_injected, use_cutoffs=bool(seed % 3), **sizes)
    have = Ops("triton", "cpu").verify(*case.arguments, **case.options)
    want = Ops("reference", "cpu").verify(*case.arguments, **case.options)
    found = []
    for row, expected in enumerate(case.expected()):
        for name in ("output_token_ids", "num_accepted_tokens", "status"):
            index = VerifyOutput._fields.index(name)
            if not expected.is_tie and not torch.equal(have[index][row], want[index][row]):
                found.append(f"{rule}, {kind}, seed {seed}, row {row}: {name}")
    return len(want.status), found


@pytest.mark.slow
@pytest.mark.skipif(not any(ops.is_interpreted for ops in usable()), reason="on a GPU the contract tests run compiled")
def test_many_rows() -> None:
    """Catches what single cases miss: rare combinations of lengths, temperatures, cutoffs, and ids that are none."""
    forms = list(enumerate(product(RULES, DRAFT_KINDS, (True, False)), start=1))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        jobs = [pool.submit(differing_rows, seed, *form) for seed, form in forms]
        results = [job.result() for job in jobs]
    assert sum(num_rows for num_rows, _ in results) >= 300
    assert not [text for _, found in results for text in found]
