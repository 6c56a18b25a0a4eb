"""What the compiler made of a kernel, read from its assembly: vector width and stack traffic of the hot loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"^([.\w$]+):")
_INSTRUCTION = re.compile(r"^\s+([a-z][\w.]*)\s*([^#]*)")
_X86_JUMP = re.compile(r"^(j[a-z]+|loop[a-z]*)$")
_ARM_JUMP = re.compile(r"^(b|b\.?[a-z]{2}|cbn?z|tbn?z)$")
_X86_ARITHMETIC = re.compile(r"^v?(fn?m(add|sub)[a-z0-9]*|add|sub|mul|div|max|min|sqrt)(\d{3})?[ps][sdh]$|^vdpbf16ps$")
_ARM_ARITHMETIC = re.compile(r"^(fml[as]|fn?madd|fadd|fsub|fmul|fdiv|fmax|fmin|fmaxnm|fminnm|bfdot|bfmmla)$")
_TILE_ARITHMETIC = re.compile(r"^tdp[a-z0-9]+$")  # AMX: 16 rows of 64 bytes
_WIDTHS = ((re.compile(r"%zmm\d"), 64), (re.compile(r"%ymm\d"), 32), (re.compile(r"%xmm\d"), 16))
_ARM_VECTOR = re.compile(r"\b(?:v\d+\.|q\d+)")
_ARM_SCALAR = re.compile(r"\b[sdh]\d+\b")


@dataclass(frozen=True)
class _Instruction:
    name: str
    operands: str
    x86: bool

    def width(self) -> int:
        """Bytes of the widest vector register it names, 0 when it names none."""
        if self.x86:
            return next((width for pattern, width in _WIDTHS if pattern.search(self.operands)), 0)
        return 16 if _ARM_VECTOR.search(self.operands) else 8 if _ARM_SCALAR.search(self.operands) else 0

    def lanes_bytes(self) -> int:
        """Bytes of results (of one row, where it computes a tile) when it is floating-point arithmetic, else 0."""
        if self.x86:
            if _TILE_ARITHMETIC.match(self.name):
                return 64
            if not _X86_ARITHMETIC.match(self.name):
                return 0
            return {"s": 4, "d": 8, "h": 2}[self.name[-1]] if self.name[-2] == "s" else self.width()
        return self.width() if _ARM_ARITHMETIC.match(self.name) else 0

    def on_stack(self, frame: bool) -> bool:
        """It reads or writes the stack with a vector register. `frame`: the frame register points into the stack."""
        if self.width() == 0:
            return False
        if self.x86:
            return "(%rsp" in self.operands or (frame and "(%rbp" in self.operands)
        return "[sp" in self.operands or (frame and "[x29" in self.operands)


@dataclass(frozen=True)
class _Loop:
    body: tuple[_Instruction, ...]
    frame: bool

    def work(self) -> int:
        return sum(i.lanes_bytes() * (16 if _TILE_ARITHMETIC.match(i.name) else 1) for i in self.body)


def read(assembly: str) -> dict[str, int | float | str]:
    """Facts of the hot loop: of all innermost loops, the one that computes most in a pass.

    vector_bytes             widest vector register of its arithmetic, 0 when that is scalar
    hot_loop_instructions    instructions of one pass
    hot_loop_stack_accesses  vector reads and writes of the stack in one pass: spills, or arrays on the stack

    A kernel without loops is looked at as a whole.
    """
    functions = list(_functions(assembly))
    loops = [loop for lines in functions for loop in _innermost(lines)]
    whole = [_Loop(tuple(i for i in lines if isinstance(i, _Instruction)), _has_frame(lines)) for lines in functions]
    candidates = [loop for loop in loops if loop.work()] or [loop for loop in whole if loop.work()] or loops or whole
    hot = max(candidates, key=lambda loop: (loop.work(), len(loop.body)), default=_Loop((), False))
    return {
        "vector_bytes": max((width for i in hot.body if (width := i.lanes_bytes()) >= 16), default=0),
        "hot_loop_instructions": len(hot.body),
        "hot_loop_stack_accesses": sum(i.on_stack(hot.frame) for i in hot.body),
    }


def _functions(assembly: str) -> Iterator[list[str | _Instruction]]:
    """Labels and instructions of each function, in order."""
    x86 = "%r" in assembly
    lines: list[str | _Instruction] = []
    names = set(re.findall(r"^\s+\.type\s+([\w.$]+)\s*,\s*[@%]function", assembly, re.MULTILINE))
    for line in assembly.splitlines():
        if label := _LABEL.match(line):
            if label.group(1) in names and any(isinstance(item, _Instruction) for item in lines):
                yield lines
                lines = []
            lines.append(label.group(1))
        elif (found := _INSTRUCTION.match(line)) and not found.group(1).startswith("."):
            operands = found.group(2) if x86 else found.group(2).split("//")[0]
            lines.append(_Instruction(found.group(1), operands.strip(), x86))
    if lines:
        yield lines


def _innermost(lines: Sequence[str | _Instruction]) -> Iterator[_Loop]:
    """Loops of a function that hold no other loop. A loop is what lies between a label and a jump back to it."""
    at = {item: index for index, item in enumerate(lines) if isinstance(item, str)}
    spans: dict[int, int] = {}  # start to end; several jumps back to one label are one loop
    for index, item in enumerate(lines):
        if isinstance(item, _Instruction) and (_X86_JUMP if item.x86 else _ARM_JUMP).match(item.name):
            start = at.get(item.operands.split(",")[-1].strip(), index)
            if start < index:
                spans[start] = max(index, spans.get(start, 0))
    frame = _has_frame(lines)
    for start, end in spans.items():
        if not any(start <= other and last <= end for other, last in spans.items() if (other, last) != (start, end)):
            yield _Loop(tuple(item for item in lines[start : end + 1] if isinstance(item, _Instruction)), frame)


def _has_frame(lines: Sequence[str | _Instruction]) -> bool:
    """The frame register is one: it is set from the stack pointer."""
    for item in lines:
        if isinstance(item, _Instruction):
            words = item.operands.replace(" ", "")
            if words in ("%rsp,%rbp", "x29,sp") or (item.name == "leaq" and words.endswith("(%rsp),%rbp")):
                return True
    return False
