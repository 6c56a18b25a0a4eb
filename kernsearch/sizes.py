"""Integer expressions of sizes and strides, as plans hold them: "ceil(M, 64) * B.n"."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache

_FUNCTIONS: dict[str, Callable[..., int]] = {
    "ceil": lambda a, b: -(-a // b),  # number of slabs of b in a
    "up": lambda a, b: -(-a // b) * b,  # a rounded up to a multiple of b
    "min": min,
    "max": max,
}
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BoolOp, ast.And, ast.Or, ast.IfExp,
)  # fmt: skip


class _Dotted(ast.NodeTransformer):
    """`A.m` is one name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not isinstance(node.value, ast.Name):
            raise ValueError("only names of the form array.axis may hold a dot")
        return ast.Subscript(ast.Name("__names", ast.Load()), ast.Constant(f"{node.value.id}.{node.attr}"), ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in _FUNCTIONS:
            return node
        return ast.Subscript(ast.Name("__names", ast.Load()), ast.Constant(node.id), ast.Load())


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> Callable[[Mapping[str, int]], int]:
    tree = ast.parse(expression, mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ValueError(f"size expression {expression!r}: {type(node).__name__} is not allowed")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int):
            raise ValueError(f"size expression {expression!r}: only whole numbers")
    tree = ast.fix_missing_locations(_Dotted().visit(tree))
    code = compile(tree, "<size>", "eval")
    scope = {"__builtins__": {}, **_FUNCTIONS}
    return lambda names: eval(code, {**scope, "__names": names})


def evaluate(expression: str, names: Mapping[str, int]) -> int:
    """The value of an expression. Raises KeyError for an unknown name, ValueError for anything but arithmetic."""
    return int(_compiled(expression)(names))
