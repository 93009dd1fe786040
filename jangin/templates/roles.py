"""The roles of axes in a sum of products (rows, columns, batches, terms), and the packing of its right
operand."""

from __future__ import annotations

from jangin.ir import te
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, const, is_const, product_of
from jangin.ir.records import dataclass
from jangin.ir.traversal import children, free_vars, walk
from jangin.ir.words import PAIR_OF_BYTES
from jangin.templates.common import stride
from jangin.templates.scheduled import Packing, Recorder
from jangin.templates.template import Workload


@dataclass(frozen=True)
class Roles:
    """The role of each output axis, by loop names.

    - `k`: the terms, in loop order, the innermost last.
    - `columns`: several are numbered through.
    - `shared`: groups share vectors of columns, whose lanes then read different parts of the left operand.
    - `parts`: the constants of a right operand that is stored in blocks (see `weight_blocks`). The first is
      `right`.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    k: tuple[str, ...]
    left: Load
    right: Load
    groups: int
    shared: bool = False
    parts: tuple[Load, ...] = ()

    @property
    def column(self) -> str:
        """The last column axis."""
        return self.columns[-1]

    @property
    def constants(self) -> list[str]:
        """The names of the right operand's buffers."""
        return list(dict.fromkeys(p.buffer.name for p in self.parts or (self.right,)))


def roles(stage: te.Stage, lanes: int = 1, columns: int = 1, guarded: bool = False) -> Roles | None:
    """Return the roles of the stage's axes, or None if the stage isn't a sum of products with such roles.

    `columns`: the number of axes at the end that are columns. Groups with fewer columns than a vector has
    `lanes` may be taken together. `guarded`: the left operand may be 0 unless a condition holds (padding).
    """
    body = stage.body
    plain = isinstance(body, Binary) and body.op == "mul"
    if stage.combiner != "sum" or not (plain or product_of(body)):
        return None
    factors = children(body)
    operands = _operand(factors[0], guarded), _operand(factors[1])
    pairs = operands, operands[::-1]  # a product of i64 may have its operands in the other order
    candidates = (_roles(stage, *pair, lanes, columns) for pair in pairs)
    return next((r for r in candidates if r is not None), None)


def _roles(stage: te.Stage, left: Load | None, right: Load | None, lanes: int, columns: int) -> Roles | None:
    if left is None or right is None or len(stage.axes) <= columns:
        return None
    outer, inner = stage.axes[:-columns], [a.var for a in stage.axes[-columns:]]
    in_left, in_right = ({v for i in o.index for v in free_vars(i)} for o in (left, right))
    groups = _groups(stage, left, inner[-1], lanes) if columns == 1 and inner[-1] in in_left else (1, False)
    if groups is None or not in_right.issuperset(inner) or (columns > 1 and in_left & set(inner)):
        return None
    batch: list[str] = []
    rows: list[str] = []
    for axis in outer:  # a leading axis of size 1 is neither, and counts as a batch
        unit = axis.extent == const(1) and not rows and axis is not outer[-1]
        (batch if axis.var in in_right or unit else rows).append(axis.var.name)
    if not rows or [*batch, *rows] != [a.var.name for a in outer]:
        return None
    k = tuple(a.var.name for a in stage.reduce_axes)
    return Roles(tuple(batch), tuple(rows), tuple(v.name for v in inner), k, left, right, *groups)


def _operand(e: Expr, guarded: bool = False) -> Load | None:
    inner = e.a if isinstance(e, Cast) else e
    if isinstance(inner, Call) and inner.fn == PAIR_OF_BYTES:
        (inner,) = inner.args
    if guarded and isinstance(inner, Select) and is_const(inner.b, 0):
        inner = inner.a
    return inner if isinstance(inner, Load) else None


def _groups(stage: te.Stage, left: Load, column: Var, lanes: int) -> tuple[int, bool] | None:
    """Return the number of groups, and whether several groups that fill a vector count as one.

    The left operand of groups depends on the column only through column // (N / groups). Return None if it
    doesn't.
    """
    size = stage.axes[-1].extent
    quotients = [p for i in left.index for p in walk(i) if isinstance(p, Binary) and p.op == "floordiv"]
    for q in quotients:
        if q.a == column and isinstance(q.b, Const) and isinstance(size, Const):
            width = int(q.b.value)
            several = width < lanes and lanes % width == 0 and int(size.value) % lanes == 0
            return int(size.value) // (lanes if several else width), several
    return None


def packing_positions(role: Roles) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Return the positions in the right operand's index: of the column, of each k in loop order, and of the
    others.

    The others are batch axes and axes of size 1. Return None if several axes are columns, or an index isn't a
    single variable.
    """
    index = role.right.index
    names = [i.name if isinstance(i, Var) else "" for i in index]
    plain = all(isinstance(i, Var) or i == const(0) for i in index)
    if (
        not plain
        or len(role.columns) > 1
        or role.column not in names
        or len(set(names) - {""}) != len(names) - names.count("")
    ):
        return None
    ks = tuple(names.index(k) for k in role.k if k in names)
    column = names.index(role.column)
    rest = tuple(p for p in range(len(index)) if p != column and p not in ks)
    return column, ks, rest


def pack_right(rec: Recorder, role: Roles, width: int, terms: int = 1) -> None:
    """Pack the constant right operand [.., N, .., k..] to panels [batch.., groups, panels, k.., width].

    Each of its parts [N, k] is packed alike. `terms`: neighbouring terms of a column that stay neighbours.
    """
    if role.parts:
        for name in role.constants:
            rec.pack(name, Packing((0, 1), 0, 1, width))
        return
    positions = packing_positions(role)
    assert positions is not None
    column, ks, lead = positions
    rec.pack(
        role.right.buffer.name, Packing((*lead, column, *ks), len(lead), role.groups, width, terms=terms)
    )


def pack_terms(rec: Recorder, role: Roles, *, rounded: str) -> None:
    """Pack the constant right operand [.., N, .., k..] to [.., N, k..], `rounded` by a function of
    `ROUNDINGS` or as it is.

    The terms of a column are then neighbours."""
    positions, right = packing_positions(role), role.right.buffer
    assert positions is not None
    column, ks, lead = positions
    order = *lead, column, *ks
    size = right.shape[order[-1]]
    assert isinstance(size, Const), "weights have constant sizes"
    rec.pack(right.name, Packing(order, len(order) - 1, 1, int(size.value), rounded=rounded))


def by_lane(role: Roles, stage: te.Stage, workload: Workload) -> bool:
    """Return whether the next terms of a row are loaded as a vector, and the target multiplies by one of its
    lanes.

    All columns of a vector must then read the same term.
    """
    if role.shared:
        return False
    product = product_of(stage.body)
    alike = role.left.dtype is (product.word if product else stage.body.dtype)
    inner = Var(role.k[-1])
    runs = alike and stride(role.left, inner, dict(workload.symbols)) == 1
    return runs and workload.processor.lane_operands
