"""Draws mutants by chance, for the list of scripts/mutants.py: no hand chooses what the tests must notice.

    python scripts/draw_mutants.py core/adapt.py runs/tasks.py --count 4 --seed 0

prints ``count`` entries for every file: comparisons moved by one, operators exchanged, conditions turned round, numbers
changed. Messages, docstrings, annotations and assertions are left alone, and so are lines that occur twice in a file.
"""

import argparse
import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "e3bm"
SKIPPED = (ast.Raise, ast.Assert, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.arg)
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


def edits(parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Expressions, and what may stand in their place."""
    for child in ast.iter_child_nodes(parent):
        aside = [parent.returns, *parent.decorator_list] if isinstance(parent, ast.FunctionDef) else []
        aside += parent.decorator_list if isinstance(parent, ast.ClassDef) else []
        if isinstance(child, SKIPPED) or child in aside:
            continue
        # An axis or an index that is out by one only ends in torch's own error.
        plain = isinstance(parent, ast.Call | ast.Subscript | ast.Slice | ast.Tuple | ast.UnaryOp)
        plain |= isinstance(parent, ast.keyword) and parent.arg in ("axis", "dim", "keepdim", "strict")
        if not (plain and isinstance(child, ast.Constant | ast.UnaryOp)):
            yield from ((child, other) for other in _instead_of(child))
        yield from edits(child)


def _instead_of(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right) if type(operator) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(operator)]()], right)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=ast.Div(), right=ast.JoinedStr() | ast.Constant(value=str())):
            return  # a path
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.IfExp(test=test, body=body, orelse=other):
            yield ast.IfExp(test, other, body)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value if value else 1.0)
        case ast.Call(func=ast.Attribute(value=value, attr="detach"), args=[]):
            yield value


def drawn(path: str, wanted: int, seed: int) -> list[tuple[str, str]]:
    """So many changes of one file, as the text before and after; single lines that occur once."""
    source = (PACKAGE / path).read_text()
    rows, found = source.splitlines(), {}
    for node, other in edits(ast.parse(source)):
        start, stop = node.lineno - 1, node.end_lineno - 1
        row = rows[start]
        if start != stop or source.count(row.strip()) != 1:
            continue
        # Columns count bytes.
        before, after = row.encode()[: node.col_offset].decode(), row.encode()[node.end_col_offset :].decode()
        found[row.strip(), f"{before}{ast.unparse(other)}{after}".strip()] = None
    return random.Random(f"{seed}/{path}").sample(list(found), min(wanted, len(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="below src/e3bm")
    parser.add_argument("--count", type=int, default=4, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    for path in settings.files:
        print(f'\n[[file]]\npath = "{path}"\ntests = []\nmutants = [')
        for old, new in drawn(path, settings.count, settings.seed):
            print(f"  {{ old = {json.dumps(old, ensure_ascii=False)}, new = {json.dumps(new, ensure_ascii=False)} }},")
        print("]")


if __name__ == "__main__":
    main()
