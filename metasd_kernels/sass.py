"""Reads disassembled GPU code (nvdisasm -g -c), as far as counting the instructions of a path needs it."""

import re
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """One machine instruction."""

    opcode: str
    source: str  # "file.py:line:" of the Triton code it came from
    successors: tuple[int, ...]  # indices of the instructions that may follow


def read(code: str) -> list[Instruction]:
    """The instructions of one function, in the order of their addresses."""
    lines: list[tuple[bool, str, str, str]] = []
    labels: dict[str, int] = {}
    source = ""
    for line in code.splitlines():
        if found := re.search(r'//## File "(?:[^"]*/)?([^"/]+)", line (\d+)', line):
            source = f"{found[1]}:{found[2]}:"
        elif found := re.match(r"(\.L_\w+):", line):
            labels[found[1]] = len(lines)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)", line):
            lines.append((bool(found[1]), found[2], found[3], source))
    program = []
    for index, (is_conditional, opcode, rest, source) in enumerate(lines):
        # A branch may also test a predicate of its own: `BRA P1, label`, `BRA.DIV`.
        target = re.search(r"`\((\.L_\w+)\)", rest) if opcode.startswith("BRA") else None
        falls = is_conditional or not opcode.startswith(("BRA", "EXIT")) or bool(re.search(r"\bU?P\d", rest))
        after = [index + 1] if falls and index + 1 < len(lines) else []
        if target:
            after.append(labels[target[1]])
        program.append(Instruction(opcode, source, tuple(after)))
    return program


def shortest_path(program: list[Instruction], waypoints: list[str]) -> int | None:
    """Instructions on the shortest way from the start through one instruction of each waypoint in turn.

    A waypoint is the beginning of a source: "file.py:line:", or "file.py:" for any line of it.

    None if a waypoint is not in the program, or cannot be reached.
    """
    at, length = 0, 1
    for waypoint in waypoints:
        found = _distance(program, at, waypoint)
        if found is None:
            return None
        at, steps = found
        length += steps
    return length


def _distance(program: list[Instruction], start: int, waypoint: str) -> tuple[int, int] | None:
    """The first instruction of a waypoint behind `start`, breadth first, and how many steps away it is."""
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        index, steps = queue.popleft()
        if steps and program[index].source.startswith(waypoint):
            return index, steps
        for after in program[index].successors:
            if after not in seen:
                seen.add(after)
                queue.append((after, steps + 1))
    return None
