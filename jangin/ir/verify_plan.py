"""Verify an execution plan: its buffers, launches, updates in place and checks."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ir.checks import Check
from jangin.ir.dtype import I64
from jangin.ir.expr import Const
from jangin.ir.graph import static_shape
from jangin.ir.loop import (
    Func,
)
from jangin.ir.plan import ALIGN, ZERO, Launch, Plan, PlanBuffer
from jangin.ir.traversal import substitute
from jangin.ir.verify import MAX_BYTES, Scope, may_equal


def verify_plan(plan: Plan) -> None:
    """Verify a plan. Buffers must exist and fit, and must not overlap while both are live. Launches must
    match their kernels (if the plan still has them), and read only given or written values."""
    scope = Scope(f"plan {plan.name}", {}, {})
    scope.ranges(plan.symbols)
    buffers: dict[str, PlanBuffer] = {}
    for b in plan.buffers:
        if b.name in buffers:
            scope.fail(f"buffer {b.name!r} is defined twice")
        buffers[b.name] = b
    for b in plan.buffers:
        _verify_buffer(plan, b, buffers, scope)
    for name in (*plan.inputs, *plan.outputs):
        if name not in buffers:
            scope.fail(f"{name!r} is an input or output, but no buffer")
    if sorted(plan.inputs) != sorted(b.name for b in plan.buffers if b.kind == "input"):
        scope.fail(f"the inputs {', '.join(plan.inputs)} are not the buffers of that kind")
    for rule in plan.constraints:
        scope.expr(rule)
    _verify_arena(plan, scope)
    written = {b.name for b in plan.buffers if b.kind in ("input", "constant")}
    for n, launch in enumerate(plan.launches):
        _verify_launch(plan, n, launch, buffers, written, scope)
    if plan.updates:
        _verify_updates(plan, buffers, scope)
    _verify_overwritten(plan, buffers, scope)
    for check in plan.checks:
        _verify_check(plan, check, buffers, written, scope)
    for name in plan.outputs:
        root = buffers[name].base or name
        if plan.kernels and root not in written:
            scope.fail(f"output {name!r} is never written")


def _verify_buffer(plan: Plan, b: PlanBuffer, buffers: Mapping[str, PlanBuffer], scope: Scope) -> None:
    for d in b.shape:
        scope.expr(d, I64, f"the shape of {b.name}")
        if isinstance(d, Const) and not 0 <= d.value < MAX_BYTES:
            scope.fail(f"buffer {b.name!r} has a dimension of {d}")
    if not 0 <= b.live[0] <= b.live[1] <= len(plan.launches):
        scope.fail(f"buffer {b.name!r} lives from launch {b.live[0]} to {b.live[1]} of {len(plan.launches)}")
    if b.kind not in ("input", "output", "constant", "arena", "alias"):
        scope.fail(f"buffer {b.name!r} is of unknown kind {b.kind}")
    if (b.kind == "alias") != bool(b.base):
        scope.fail(f"buffer {b.name!r} of kind {b.kind} has base {b.base!r}")
    if b.base:
        base = buffers.get(b.base)
        if base is None or base.kind == "alias":
            scope.fail(f"alias {b.name!r} is of {b.base!r}, which is {'an alias' if base else 'no buffer'}")
        mine, room = b.bytes, base.bytes
        if mine is not None and room is not None and mine > room:
            scope.fail(f"alias {b.name!r} has {mine} bytes, its base {b.base!r} only {room}")
    if b.kind == "constant":
        data = plan.constants.get(b.name)
        if data is None:
            scope.fail(f"constant {b.name!r} has no data")
        if data.dtype != b.dtype.numpy or data.shape != static_shape(b.shape):
            shape = ", ".join(map(str, b.shape))
            scope.fail(f"constant {b.name!r} is {b.dtype}[{shape}], its data {data.dtype}{list(data.shape)}")
    if b.offset is not None and (b.kind != "arena" or b.offset < 0 or b.offset % ALIGN):
        scope.fail(f"{b.kind} buffer {b.name!r} can't be at offset {b.offset}")
    if b.kind == "arena" and plan.is_static and b.offset is None:
        scope.fail(f"arena buffer {b.name!r} of a static plan has no offset")


def _verify_arena(plan: Plan, scope: Scope) -> None:
    placed = [
        (b.offset, b.offset + n, b)
        for b in plan.buffers
        if b.offset is not None and (n := b.bytes) is not None and n > 0
    ]
    if max((end for _, end, _ in placed), default=0) > sum(
        -(-(e - s) // ALIGN) * ALIGN for s, e, _ in placed
    ):
        scope.fail("an arena buffer lies beyond all that they need together")
    placed.sort(key=lambda entry: entry[:2])
    below: list[tuple[int, int, PlanBuffer]] = []
    for start, end, b in placed:
        below = [entry for entry in below if entry[1] > start]
        for _, _, other in below:
            apart = b.live[0] > other.live[1] or other.live[0] > b.live[1]
            if not apart and not _may_overlap(plan, other, b):
                scope.fail(f"live arena buffers {other.name!r} and {b.name!r} overlap at offset {start}")
        below.append((start, end, b))


def _may_overlap(plan: Plan, a: PlanBuffer, b: PlanBuffer) -> bool:
    """Return whether one launch alone touches both buffers, and writes one over the other as it reads it."""
    from jangin.ir.overlaps import distances

    first, last = max(a.live[0], b.live[0]), min(a.live[1], b.live[1])
    if first != last or first == len(plan.launches) or plan.launches[first].grain != ZERO:
        return False
    starts = {x.name: x.offset or 0 for x in (a, b)}
    return any(
        starts.keys() == {*pair} and starts[pair[0]] - starts[pair[1]] >= least
        for pair, least in distances(plan, first).items()
    )


def _verify_launch(
    plan: Plan, n: int, launch: Launch, buffers: Mapping[str, PlanBuffer], written: set[str], outer: Scope
) -> None:
    scope = Scope(f"{outer.where}: launch {n} of {launch.kernel}", outer.variables, {})
    for e in (
        *launch.symbols,
        launch.rounds,
        launch.tasks,
        launch.grain,
        launch.scratch,
        launch.common,
        launch.flops,
        launch.bytes,
    ):
        scope.expr(e, I64)
    if isinstance(launch.grain, Const) and not 0 <= launch.grain.value < MAX_BYTES:
        scope.fail(f"grain {launch.grain} can't be")
    if not all(0 < n < MAX_BYTES for n in launch.local):
        scope.fail(f"groups of {launch.local} work-items can't be")
    for e in (launch.rounds, launch.tasks, launch.scratch, launch.common):
        if isinstance(e, Const) and not 0 <= e.value < MAX_BYTES:
            scope.fail(f"{e} rounds, tasks or bytes of scratch can't be")
    for arg in launch.args:
        if arg not in buffers:
            scope.fail(f"{arg!r} is no buffer")
        root = buffers[buffers[arg].base or arg]
        if root.kind == "arena" and not root.live[0] <= n <= root.live[1]:
            scope.fail(f"{arg!r} is used outside its live range {root.live[0]}..{root.live[1]}")
    func = plan.kernels.get(launch.kernel)
    if func is None:
        if plan.kernels:
            scope.fail("no such kernel")
        return
    if (len(launch.args), len(launch.symbols)) != (len(func.params), len(func.symbols)):
        scope.fail(
            f"{len(launch.args)} buffers and {len(launch.symbols)} symbols for "
            f"{len(func.params)} parameters and {len(func.symbols)} symbols"
        )
    sizes = {var: e for (var, _), e in zip(func.symbols, launch.symbols, strict=True)}
    for i, (arg, param) in enumerate(zip(launch.args, func.params, strict=True)):
        b = buffers[arg]
        root = buffers[b.base or arg]
        shape = tuple(substitute(d, sizes) for d in param.shape)
        if b.dtype != param.dtype or not may_equal(b.shape, shape):
            scope.fail(f"{arg!r} doesn't have the type of parameter {param.name!r}")
        if i >= len(func.inputs):
            if root.kind in ("input", "constant") and arg not in plan.updates:
                scope.fail(f"{arg!r} is written, but it is an {root.kind} buffer")
            written.add(root.name)
        elif root.name not in written:
            scope.fail(f"{arg!r} is read before it is written")


def _verify_updates(plan: Plan, buffers: Mapping[str, PlanBuffer], scope: Scope) -> None:
    """Verify the outputs that lie in inputs. All other readers of an input are launched before its only
    writer, and so is whatever makes a value that is checked."""
    if len({*plan.updates.values()}) < len(plan.updates):
        scope.fail("two outputs update one input")
    for out, state in plan.updates.items():
        a, b = buffers.get(out), buffers.get(state)
        if a is None or b is None or out not in plan.outputs or b.kind != "input":
            scope.fail(f"{out!r} can't update {state!r}: they must be an output and an input")
        if a.base != state or (a.dtype, a.shape) != (b.dtype, b.shape):
            scope.fail(f"output {out!r} doesn't lie in the input {state!r}, or has another type")
        writer = next((n for n, launch in enumerate(plan.launches) if out in launch.args), None)
        if writer is None:
            scope.fail(f"output {out!r} is never written")
        for n, launch in enumerate(plan.launches[writer:], writer):
            for arg in launch.args:
                if arg != out and state in (arg, buffers[arg].base):
                    scope.fail(f"launch {n} reads {arg!r}, but launch {writer} writes its next state over it")
            if plan.kernels and out in launch.args:
                _verify_writer(plan.kernels[launch.kernel], launch, out, n == writer, scope)
    for check in plan.checks:
        if any(check.buffer in launch.args for launch in plan.launches[plan.tested :]):
            scope.fail(f"{check.buffer!r}, which a check reads, is made after an input is updated")


def _verify_overwritten(plan: Plan, buffers: Mapping[str, PlanBuffer], scope: Scope) -> None:
    """Verify the results that lie in the memory of values of earlier launches. No later launch reads these
    values, and the writer reads each element before it writes it."""
    last: dict[str, int] = {}
    for n, launch in enumerate(plan.launches):
        last |= dict.fromkeys(launch.args, n)
    touched: dict[str, set[str]] = {}
    for n, launch in enumerate(plan.launches):
        func = plan.kernels.get(launch.kernel)
        for arg in () if func is None else launch.args[len(func.inputs) :]:
            base = buffers[arg].base
            if not base or buffers[base].kind != "arena" or not (older := touched.get(base, set()) - {arg}):
                continue
            if late := sorted(name for name in older if last[name] >= n):
                scope.fail(f"{late[0]!r} is read when launch {n} has written {arg!r} over it")
            _verify_writer(plan.kernels[launch.kernel], launch, arg, True, scope)
        for arg in launch.args:
            touched.setdefault(buffers[arg].base or arg, set()).add(arg)


def _verify_writer(func: Func, launch: Launch, out: str, writes: bool, outer: Scope) -> None:
    """Verify that a kernel reads each element of `out` before it writes it, and that no other kernel writes
    it."""
    from jangin.ir.updates import clash

    scope = Scope(f"{outer.where}: {launch.kernel}", outer.variables, {})
    for place, (arg, param) in enumerate(zip(launch.args, func.params, strict=True)):
        if arg == out and (place >= len(func.inputs)) != writes:
            scope.fail(f"{out!r} must be written by one launch, and then only be read")
        if arg == out and writes and (why := clash(func, param.name)) is not None:
            scope.fail(f"it can't update {out!r} in place: {why}")


def _verify_check(
    plan: Plan, check: Check, buffers: Mapping[str, PlanBuffer], written: set[str], scope: Scope
) -> None:
    for size in check.sizes:
        scope.expr(size, I64, "the size of a checked axis")
    b = buffers.get(check.buffer)
    if b is None or (b.kind, b.dtype, b.shape) != ("arena", I64, ()):
        scope.fail(f"{check.buffer!r}, which a check reads, is no arena buffer i64[]")
    if b.live[1] < len(plan.launches) - 1 or (plan.kernels and b.name not in written):
        scope.fail(f"{check.buffer!r}, which a check reads, isn't there at the end")
    if not check.sizes:
        scope.fail(f"the check of {check.buffer!r} is of no axis")
