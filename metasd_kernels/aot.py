"""Compile the Triton kernels ahead of time, without a GPU, and say what came out: `python -m metasd_kernels.aot`.

The launchers themselves are run, on tensors without data, and their launches recorded: what is compiled here is what a
GPU would be asked to run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from metasd_kernels import launch, sass

PROCESSORS = {80: 108, 90: 132, 100: 148}  # A100, H200, B200
SHARED_MEMORY = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
_REGISTERS, _THREADS = 64 << 10, 2048  # of a multiprocessor


@dataclass(frozen=True)
class Launch:
    """One launch as a launcher asked for it."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def specialised(self, capability: int) -> tuple[Any, ...]:
        """What the compiler is given: options, signature, constants, attributes of the arguments."""
        backend = make_backend(GPUTarget("cuda", capability, 32))
        bind = create_function_from_signature(self.kernel.signature, self.kernel.params, backend)
        bound, specialization, options = bind(*self.arguments, **self.options)
        packed: tuple[Any, ...] = self.kernel._pack_args(backend, self.options, bound, specialization, options)
        return packed

    def key(self, capability: int = 90) -> str:
        """Equal for two launches that run the same compiled kernel."""
        options, signature, constants, attributes = self.specialised(capability)
        return repr((self.kernel.__name__, vars(options), signature, sorted(constants.items()), attributes))


@dataclass
class _Recorder:
    kernel: Any
    launches: list[Launch]
    grid: tuple[int, ...] = field(default=())

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.launches.append(Launch(self.kernel, grid, arguments, options))


@contextmanager
def recorded(num_processors: int) -> Iterator[list[Launch]]:
    """Launches made inside are recorded, not run, as on a device of so many multiprocessors."""
    cutoff, sample, verify = (import_module(f"metasd_kernels.triton.{name}") for name in ("cutoff", "sample", "verify"))
    launches: list[Launch] = []
    with (
        mock.patch.object(verify, "verify_kernel", _Recorder(verify.verify_kernel, launches)),
        mock.patch.object(sample, "sample_kernel", _Recorder(sample.sample_kernel, launches)),
        mock.patch.object(cutoff, "cutoff_kernel", _Recorder(cutoff.cutoff_kernel, launches)),
        mock.patch.object(verify, "processors", return_value=num_processors),
    ):
        yield launches


# --------------------------------------------------------------------------------------- the calls that are compiled


@dataclass(frozen=True)
class Call:
    """A call of an op, by what decides how it is compiled."""

    name: str
    vocab_size: int
    kind: str  # "dense", "point", "reduced", "sparse"; or the op, for the others
    dtype: torch.dtype = torch.bfloat16
    rule: str = "token"
    batch_size: int = 4
    num_draft_tokens: int = 5

    def run(self) -> None:
        """Launch it, inside `recorded`, on tensors that hold nothing."""
        from metasd_kernels import triton as kernels
        from metasd_kernels.inputs import CutoffInputs, PerRow, SampleInputs, VerifyInputs
        from metasd_kernels.outputs import empty_output

        size, width, vocab = self.batch_size, self.num_draft_tokens, self.vocab_size
        device = torch.device("cpu")

        def empty(*shape: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype)

        seeds, warmth = empty(size, dtype=torch.int64), empty(size, dtype=torch.float32)
        settings = PerRow(0.0, warmth), PerRow(0, seeds), PerRow(0, empty(1, dtype=torch.int64))
        temperature, seed, offset = settings
        if self.kind == "sample":
            row = SampleInputs(empty(size, vocab), temperature, None, seed, offset, PerRow(3), None)
            return kernels.sample(row, empty(size, dtype=torch.int64))
        if self.kind == "logit_cutoff":
            limits = PerRow(50), PerRow(0.9), PerRow(0.0)
            return kernels.logit_cutoff(CutoffInputs(empty(size, vocab), temperature, *limits), warmth)
        draft_width = {"point": None, "dense": vocab, "reduced": vocab // 4, "sparse": 64}[self.kind]
        mapping = None
        if self.kind == "reduced":
            mapping = torch.arange(vocab // 4)
        if self.kind == "sparse":
            mapping = empty(size, width, 64, dtype=torch.int64)
        inputs = VerifyInputs(
            size, width, empty(size, width + 1, vocab), empty(size, width, dtype=torch.int64),
            None if draft_width is None else empty(size, width, draft_width), temperature, temperature, None, None,
            None, None, mapping, None, self.rule, seed, offset, None, True, None, None,
        )  # fmt: skip
        return kernels.verify(inputs, empty_output(size, width, torch.float32, device, True))


CALLS = (
    Call("verify, dense", 128256, "dense"),
    Call("verify, dense, fp32", 49152, "dense", torch.float32),
    Call("verify, dense, block rule", 128256, "dense", rule="block"),
    Call("verify, point mass", 128256, "point"),
    Call("verify, reduced vocabulary", 128256, "reduced"),
    Call("verify, sparse", 128256, "sparse"),
    Call("verify, odd vocabulary", 50257, "dense"),
    Call("verify, middle vocabulary", 32000, "dense"),
    Call("verify, small vocabulary", 1024, "dense", torch.float32),
    Call("verify, small vocabulary, block rule", 1024, "dense", torch.float32, rule="block"),
    Call("verify, two launches", 151936, "dense", rule="block", num_draft_tokens=15),
    Call("sample", 128256, "sample"),
    Call("logit_cutoff", 128256, "logit_cutoff"),
)


# ------------------------------------------------------------------------------------------------------ what came out


@dataclass(frozen=True)
class Report:
    """One compiled kernel."""

    name: str
    capability: int
    num_launches: int  # of the call that this is a part of
    registers: int  # a thread
    spilled_bytes: int  # a thread
    programs_per_processor: int  # that a multiprocessor holds at once
    promised_programs: int  # what launch.py says of that
    wide_loads: int  # 128-bit loads from global memory
    narrow_loads: int  # 16-bit ones: what unaligned tiles come down to
    instructions_per_element: float | None  # from start to arrival, of a tile that has a draft; the decision is apart


def _waypoints(call: Call) -> list[str]:
    """What a tile that has a draft goes through: its loads, its residual, its arrival at the request's counter."""
    source = Path(__file__).parent / "triton" / "verify.py"
    lines = source.read_text().splitlines()

    def line_of(text: str) -> str:
        return f"verify.py:{next(i for i, line in enumerate(lines, 1) if text in line)}:"

    draft = [] if call.kind == "point" else ["draft.py:", line_of("p, q = e * p_factor")]
    return [*draft, line_of("num_arrived = ")]


def report(call: Call, capability: int) -> list[Report]:
    """Compile a call's launches for one architecture."""
    with recorded(PROCESSORS[capability]) as launches:
        call.run()
    return [_compiled(call, launch_, len(launches), capability) for launch_ in launches]


def _compiled(call: Call, launch_: Launch, num_launches: int, capability: int) -> Report:
    options, signature, constants, attributes = launch_.specialised(capability)
    source = ASTSource(launch_.kernel, signature, constants, attributes)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=vars(options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("nvdisasm", "-g", "-c", file.name)
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
    shared = kernel.metadata.shared
    threads = 32 * kernel.metadata.num_warps
    per_processor = min(
        _REGISTERS // (threads * -(-registers // 8) * 8),
        _THREADS // threads,
        SHARED_MEMORY[capability] // (shared + 1024),
    )
    program = sass.read(code)
    loads = [one.opcode for one in program if one.opcode.startswith("LDG")]
    length = sass.shortest_path(program, _waypoints(call)) if "verify" in call.name else None
    return Report(
        call.name,
        capability,
        num_launches,
        registers,
        stack,
        per_processor,
        _promised(call),
        sum(".128" in text for text in loads),
        sum(".U16" in text for text in loads),
        None if length is None else length * threads / launch_.options["TILE"],
    )


def _promised(call: Call) -> int:
    if call.kind == "logit_cutoff":
        return 1
    is_heavy = call.rule == "block" or call.kind == "sparse"
    return launch.verify_settings(call.vocab_size, is_heavy).programs_per_processor


def _tool(name: str, *arguments: str) -> str:
    """Run one of the binary tools that come with Triton."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *arguments], check=True, capture_output=True, text=True).stdout


def report_all(capabilities: list[int]) -> list[Report]:
    """Every call for every architecture, on all processors of this machine."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(report, call, capability) for call, capability in product(CALLS, capabilities)]
        return [one for job in jobs for one in job.result()]


def main() -> None:
    """Print the table; exit status 1 if something spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", default="80,90,100", help="compute capabilities, as in sm_90")
    parser.add_argument("--json", type=Path, help="write the table there")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: the interpreter compiles nothing; unset it")
    reports = report_all([int(one) for one in options.capabilities.split(",")])
    columns = ("registers", "spilled_bytes", "programs_per_processor", "wide_loads", "narrow_loads")
    head = ("kernel", "sm", "launches", *(name.replace("_", " ") for name in columns), "instructions an element")
    rows = [
        (
            one.name,
            str(one.capability),
            str(one.num_launches),
            *(str(getattr(one, name)) for name in columns),
            "" if one.instructions_per_element is None else f"{one.instructions_per_element:.1f}",
        )
        for one in reports
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        sys.stdout.write("  ".join(cells) + "\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in reports], indent=1))
    sys.exit(any(one.spilled_bytes for one in reports))


if __name__ == "__main__":
    main()
