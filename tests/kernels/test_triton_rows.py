"""The Triton kernels against the reference on 2,000 rows, integer for integer: interpreted, or on a GPU."""

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
ROWS_A_CASE = 84  # 2 rules x 6 kinds x 2 forms of the coins: 2,016 rows
TRITON = next((ops for ops in usable() if ops.backend == "triton"), None)


def differing_rows(ops: Ops, seed: int, rule: str, kind: str, is_injected: bool) -> tuple[int, list[str]]:
    """Rows compared, and those that differ although the oracle sees no tie."""
    torch.set_num_threads(1)
    sizes = {"batch_size": ROWS_A_CASE, "num_draft_tokens": 1 + seed % 2, "vocab_size": 1030 if seed % 4 == 0 else 200}
    case = make_case(seed, rule=rule, kind=kind, is_injected=is_injected, use_cutoffs=bool(seed % 3), **sizes)
    have = ops.verify(*case.arguments, **case.options)
    want = Ops("reference", "cpu").verify(*case.arguments, **case.options)
    found = []
    for row, expected in enumerate(case.expected()):
        for name in ("output_token_ids", "num_accepted_tokens", "status"):
            index = VerifyOutput._fields.index(name)
            if not expected.is_tie and not torch.equal(have[index][row], want[index][row]):
                found.append(f"{rule}, {kind}, seed {seed}, row {row}: {name}")
    return len(want.status), found


@pytest.mark.slow
def test_2000_rows() -> None:
    """Catches what single cases miss: rare combinations of lengths, temperatures, cutoffs, and ids that are none."""
    assert TRITON, "the Triton backend can run neither here nor in its interpreter"
    forms = list(enumerate(product(RULES, DRAFT_KINDS, (True, False)), start=1))
    if TRITON.is_interpreted:  # each row takes a tenth of a second
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            jobs = [pool.submit(differing_rows, TRITON, seed, *form) for seed, form in forms]
            results = [job.result() for job in jobs]
    else:
        results = [differing_rows(TRITON, seed, *form) for seed, form in forms]
    assert sum(num_rows for num_rows, _ in results) >= 2000
    assert not [text for _, found in results for text in found]
