"""Models built for other machines give right results there, under QEMU's user mode.

A program consists of a model's objects, as the loader links them, and of a main function. It calls the entry,
and counts the elements that differ by more than 1e-6 from float64. Elements are at most 1, and a float32 sum
of 24 products with its softmax is off by less.

Debian's packages: qemu-user-static, and, for armv7, which the loader doesn't link, gcc-arm-linux-gnueabihf.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from programs import run_program

import jangin
from jangin.backends.llvm.objects import compile_modules
from jangin.ir.plan import Plan
from jangin.runtime.artifact import Artifact
from jangin.runtime.elf import Linker
from jangin.runtime.layout import Frame, Layout
from jangin.runtime.sizes import Evaluator
from jangin.targets import NAMED

V = "rv64,v=true,vlen={},vext_spec=v1.0"
MACHINES = [
    ("x86-64-v2", ""), ("aarch64", "cortex-a53"), ("neoverse-n1", "cortex-a76"), ("neoverse-v1", "max"),
    ("riscv64", "rv64"), ("riscv64-v", V.format(128)), ("riscv64-v", V.format(256)),
]  # fmt: skip
AT = 0x10000000
ROWS, TERMS, COLUMNS = 5, 24, 37
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((ROWS, TERMS), np.float32), RNG.standard_normal((TERMS, COLUMNS), np.float32)


def model() -> onnx.ModelProto:
    """Return y = Softmax(Relu(x w)), with sizes that no vector divides."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]  # fmt: skip
    sizes = {"x": (ROWS, TERMS), "y": (ROWS, COLUMNS)}
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    return helper.make_model(
        helper.make_graph(nodes, "m", ends[:1], ends[1:], [numpy_helper.from_array(W, "w")])
    )


def wanted() -> np.ndarray:
    r = np.exp(np.maximum(X.astype(np.float64) @ W, 0))
    return (r / r.sum(1, keepdims=True)).astype(np.float32)


def main_module(plan: Plan, threads: int) -> str:
    """Return LLVM IR of `main`, which returns the number of wrong elements of a second run, or 200 if the
    entry fails."""
    layout = Layout(Frame(plan), (), Evaluator({}))
    data = {name: array.tobytes() for name, array in plan.constants.items()} | {plan.inputs[0]: X.tobytes()}
    globals_, places = [], []
    for n, content in enumerate(data.values()):
        text = "".join(f"\\{byte:02X}" for byte in content)
        globals_.append(f'@data{n} = internal global [{len(content)} x i8] c"{text}", align 64')
    numbers = {name: n for n, name in enumerate(data)}
    for b in plan.buffers:
        base = b.base or b.name
        if base in numbers:
            places.append(f"ptr @data{numbers[base]}")
        elif base in layout.placement.offsets:
            places.append(f"ptr getelementptr (i8, ptr @arena, i64 {layout.placement.offsets[base]})")
        else:
            places.append("ptr @made")
    want = ", ".join(f"i32 {bits}" for bits in wanted().ravel().view(np.int32))
    count = wanted().size
    pool = f"call ptr @jangin_pool_create(i32 {threads}, i32 {threads})" if threads > 1 else "freeze ptr null"
    entry = f"call i32 @jangin_entry(ptr @table, ptr @arena, ptr %pool, ptr @scratch, i64 {layout.stride})"
    return f"""
{chr(10).join(globals_)}
@arena = internal global [{layout.placement.arena + 64} x i8] zeroinitializer, align 64
@scratch = internal global [{threads * layout.stride + 64} x i8] zeroinitializer, align 64
@made = internal global [{count} x float] zeroinitializer, align 64
@want = internal global [{count} x i32] [{want}], align 64
@table = internal global [{len(places)} x ptr] [{", ".join(places)}]
declare i32 @jangin_entry(ptr, ptr, ptr, ptr, i64)
declare ptr @jangin_pool_create(i32, i32)
define i32 @main() {{
entry:
  %pool = {pool}
  %one = {entry}
  %two = {entry}
  %failed = or i32 %one, %two
  %fine = icmp eq i32 %failed, 0
  br i1 %fine, label %next, label %no
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %wrong = phi i32 [ 0, %entry ], [ %wrong1, %next ]
  %got.at = getelementptr float, ptr @made, i64 %i
  %want.at = getelementptr float, ptr @want, i64 %i
  %got = load float, ptr %got.at
  %want = load float, ptr %want.at
  %off = fsub float %got, %want
  %far = call float @llvm.fabs.f32(float %off)
  %near = fcmp ole float %far, 0x3EB0C6F7A0000000
  %bad = select i1 %near, i32 0, i32 1
  %wrong1 = add i32 %wrong, %bad
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, {count}
  br i1 %more, label %next, label %out
out:
  %top = call i32 @llvm.umin.i32(i32 %wrong1, i32 100)
  ret i32 %top
no:
  ret i32 200
}}
"""


def objects(name: str, threads: int) -> list[bytes]:
    made = jangin.build(model(), name, cache=False)
    assert isinstance(made, Artifact)
    main = compile_modules([("main", main_module(made.plan, threads))], NAMED[name])
    return [*map(bytes, made.objects), main]


@pytest.mark.parametrize(("name", "processor"), MACHINES)
def test_answers_of_what_the_loader_links(name: str, processor: str, tmp_path: Path) -> None:
    machine = NAMED[name].triple.split("-")[0]
    linker = Linker(objects(name, 1), machine)
    image = bytearray(linker.bytes)
    # there is one thread, so that nothing of libc is called
    main = linker.link(image, AT, lambda _: 0)["main"]
    assert run_program([(AT, bytes(image))], main, machine, tmp_path, processor) == 0


def test_answers_of_armv7(tmp_path: Path) -> None:
    """Debian's compiler links the program. It runs with two threads."""
    compiler, emulator = shutil.which("arm-linux-gnueabihf-gcc"), shutil.which("qemu-arm-static")
    if compiler is None or emulator is None:
        pytest.skip("there is no arm-linux-gnueabihf-gcc to link with, or no qemu-arm-static to run with")
    files = []
    for n, content in enumerate(objects("armv7", 2)):
        files.append(tmp_path / f"{n}.o")
        files[-1].write_bytes(content)
    subprocess.run([compiler, "-static", "-pthread", "-o", tmp_path / "m", *files], check=True)
    assert subprocess.run([emulator, "-cpu", "cortex-a7", tmp_path / "m"], timeout=600).returncode == 0


def test_a_machine_that_there_is_no_target_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown machine's code is never taken as another machine's."""
    monkeypatch.setattr(sys.modules["jangin.targets.host"], "architecture", lambda: "sparc64")
    with pytest.raises(ValueError, match="there is no target for sparc64; known: x86_64, aarch64, riscv64"):
        jangin.build("model.onnx", "cpu", cache=False)
