"""Write the functions between a model's API and Jangin's own thread pool."""

from __future__ import annotations

from jangin.ahead.declarations import PARALLEL
from jangin.ahead.model import Model
from jangin.backends.functions import NULL, FunctionWriter, Signature, i32, i64, signature
from jangin.runtime.functions import KERNEL, POOL_CREATE, POOL_DESTROY, POOL_RUN

START = "int32_t {p}_start_threads(int32_t threads)"
STOP = "void {p}_stop_threads(void)"
_CREATE, _DESTROY, _RUN = map(signature, (POOL_CREATE, POOL_DESTROY, POOL_RUN))


def signatures(model: Model) -> list[Signature]:
    """Return the signatures that the object or file of threads exports: `parallel`, and the functions that
    start and stop the threads."""
    return [Signature(text.replace("{p}", model.prefix)) for text in (PARALLEL, START, STOP)]


def write_threads(model: Model, w: FunctionWriter) -> None:
    """Write the functions of `signatures`, over the pool of `runtime.functions`."""
    parallel, start, stop = signatures(model)
    task = Signature("void task(void *context, int32_t worker)")
    piece = signature(KERNEL, f"{model.prefix}_piece")
    for function in (_CREATE, _DESTROY, _RUN):
        w.declare(function)
    pool = w.variable(f"{model.prefix}_pool")
    with w.define(piece, "internal") as params:
        called, context = w.element(params["args"], 0), w.element(params["args"], 1)
        number = w.local("i64", 1)
        w.store(number, i64(0), params["lo"])
        with w.forever():
            worker = w.load("i64", number, i64(0))
            with w.when(w.compare("ge", worker, params["hi"])):
                w.ret()
            w.call(task, context, w.convert("i32", worker), at=called)
            w.store(number, i64(0), w.arithmetic("add", worker, i64(1)))
    with w.define(parallel) as params:
        pair = w.local("ptr", 2)
        w.store(pair, i64(0), params["function"])
        w.store(pair, i64(1), params["context"])
        count = w.convert("i64", params["count"])
        w.call(_RUN, w.load("ptr", pool, i64(0)), w.address(piece), pair, NULL, count, i64(1), NULL, i64(0))
        w.ret()
    with w.define(stop):
        w.call(_DESTROY, w.load("ptr", pool, i64(0)))
        w.store(pool, i64(0), NULL)
        w.ret()
    with w.define(start) as params:
        w.call(stop)
        handle = w.call(_CREATE, params["threads"], params["threads"])
        w.store(pool, i64(0), handle)
        none = w.compare("eq", handle, NULL)
        w.ret(
            w.select(w.arithmetic("and", none, w.compare("gt", params["threads"], i32(1))), i32(-1), i32(0))
        )
