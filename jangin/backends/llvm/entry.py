"""The entry: one native function that runs a whole plan, straight-line LLVM IR.

Each launch gathers its arguments, computes its sizes and runs its kernel, on the pool or (grain 0)
on the caller. What is called and how is in `runtime.functions`.
"""

from __future__ import annotations

from jangin.backends.llvm.functions import called, declared, head
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var, children
from jangin.ir.plan import ONE, Launch, Plan
from jangin.runtime.functions import ENTRY, KERNEL, POOL_ROUNDS, POOL_RUN

_INFIX = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_COMPARE = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_DIVIDE = frozenset({"div", "rem", "floordiv", "mod"})


def entry_module(plan: Plan, triple: str) -> str:
    """The LLVM IR module of `jangin_entry` for a plan. Raises ValueError for a size that has no
    scalar code (a load, or arithmetic of floats)."""
    emitter = _Emitter(plan)
    body = emitter.run()
    widest_args = max((len(r.args) for r in plan.launches), default=0)
    widest_symbols = max((len(r.symbols) for r in plan.launches), default=0)
    functions = dict.fromkeys(r.function for r in plan.launches)
    declares = [declared(KERNEL, f) for f in functions]
    return "\n".join(
        [
            'source_filename = "jangin_entry"',
            f'target triple = "{triple}"',
            *declares,
            declared(POOL_RUN),
            declared(POOL_ROUNDS),
            "declare i64 @llvm.smin.i64(i64, i64)",
            "declare i64 @llvm.smax.i64(i64, i64)",
            "declare i64 @llvm.abs.i64(i64, i1)",
            f"define {head(ENTRY)} {{",
            f"  %args = alloca [{max(1, widest_args)} x ptr], align 64",
            f"  %sizes = alloca [{widest_symbols + 1} x i64], align 64",
            *body,
            "  ret i32 0",
            "}",
            "",
        ]
    )


class _Emitter:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.index = {b.name: i for i, b in enumerate(plan.buffers)}

    def run(self) -> list[str]:
        for i, (var, _) in enumerate(self.plan.symbols):
            at = self.line(f"getelementptr i64, ptr %symbols, i64 {i}")
            self.names[var] = self.line(f"load i64, ptr {at}")
        for launch in self.plan.launches:
            self.launch(launch)
        return self.lines

    def line(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def launch(self, launch: Launch) -> None:
        if isinstance(launch.tasks, Const) and int(launch.tasks.value) < 1:
            return
        for i, name in enumerate(launch.args):
            source = self.line(f"getelementptr ptr, ptr %bufs, i64 {self.index[name]}")
            pointer = self.line(f"load ptr, ptr {source}")
            at = self.line(f"getelementptr ptr, ptr %args, i64 {i}")
            self.lines.append(f"  store ptr {pointer}, ptr {at}")
        for i, size in enumerate(launch.symbols):
            value = self.value(size)
            at = self.line(f"getelementptr i64, ptr %sizes, i64 {i}")
            self.lines.append(f"  store i64 {value}, ptr {at}")
        tasks = self.value(launch.tasks)
        shared = (
            "%pool", f'@"{launch.function}"', "%args", "%sizes", tasks, launch.grain, "%scratch", "%stride",
        )  # fmt: skip
        if launch.rounds != ONE:
            rounds = self.value(launch.rounds)
            at = self.line(f"getelementptr i64, ptr %sizes, i64 {len(launch.symbols)}")
            call = called(POOL_ROUNDS, "@jangin_pool_rounds", *shared, rounds, at)
        elif launch.grain == 0 and isinstance(launch.tasks, Const):
            call = called(KERNEL, f'@"{launch.function}"', "%args", "%sizes", 0, tasks, "%scratch")
        else:  # the pool checks for no tasks, and runs grain 0 on the caller
            call = called(POOL_RUN, "@jangin_pool_run", *shared)
        self.lines.append(f"  {call}")

    def value(self, e: Expr) -> str:
        """The operand that holds `e`: i64, or i1 for a condition."""
        if isinstance(e, Const):
            return str(int(e.value)) if e.dtype.is_int else str(e.value).lower()
        done = self.names.get(e)
        if done is None:
            done = self.names[e] = self.compute(e)
        return done

    def compute(self, e: Expr) -> str:
        kids = [self.value(k) for k in children(e)]
        if isinstance(e, Binary):
            return self.binary(e, *kids)
        if isinstance(e, Select):
            return self.line(f"select i1 {kids[0]}, {_type(e)} {kids[1]}, {_type(e)} {kids[2]}")
        if isinstance(e, Cast) and e.dtype.name == "i64" and e.a.dtype.name == "bool":
            return self.line(f"zext i1 {kids[0]} to i64")
        if isinstance(e, Call) and e.fn == "neg":
            return self.line(f"sub i64 0, {kids[0]}")
        if isinstance(e, Call) and e.fn == "abs":
            return self.line(f"call i64 @llvm.abs.i64(i64 {kids[0]}, i1 false)")
        if isinstance(e, Call) and e.fn == "not":
            return self.line(f"xor i1 {kids[0]}, true")
        what = f"unknown symbol {e}" if isinstance(e, Var) else f"no scalar code for {e}"
        raise ValueError(f"{what} in a size of plan {self.plan.name!r}")

    def binary(self, e: Binary, a: str, b: str) -> str:
        kind = _type(e.a)
        if e.op in _INFIX:
            return self.line(f"{_INFIX[e.op]} {kind} {a}, {b}")
        if e.op in _COMPARE:
            return self.line(f"icmp {_COMPARE[e.op]} {kind} {a}, {b}")
        if e.op in ("min", "max"):
            return self.line(f"call i64 @llvm.s{e.op}.i64(i64 {a}, i64 {b})")
        if e.op not in _DIVIDE:
            raise ValueError(f"no scalar code for {e} in a size of plan {self.plan.name!r}")
        if not isinstance(e.b, Const):  # a select's unused arm may divide by zero
            zero = self.line(f"icmp eq i64 {b}, 0")
            b = self.line(f"select i1 {zero}, i64 1, i64 {b}")
        quotient = self.line(f"sdiv i64 {a}, {b}")
        if e.op == "div":
            return quotient
        rest = self.line(f"srem i64 {a}, {b}")
        if e.op == "rem":
            return rest
        opposite = self.line(f"xor i64 {rest}, {b}")
        negative = self.line(f"icmp slt i64 {opposite}, 0")
        inexact = self.line(f"icmp ne i64 {rest}, 0")
        correct = self.line(f"and i1 {negative}, {inexact}")
        if e.op == "mod":
            moved = self.line(f"add i64 {rest}, {b}")
            return self.line(f"select i1 {correct}, i64 {moved}, i64 {rest}")
        step = self.line(f"sext i1 {correct} to i64")
        return self.line(f"add i64 {quotient}, {step}")


def _type(e: Expr) -> str:
    return "i1" if e.dtype.name == "bool" else "i64"
