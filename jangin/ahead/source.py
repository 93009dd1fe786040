"""Write a model as C: its kernels, the API's functions, the weights as an array, and a thread pool."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from jangin.ahead.elf import code_bytes
from jangin.ahead.header import header
from jangin.ahead.interface import write_api
from jangin.ahead.model import Model
from jangin.ahead.output import Content
from jangin.ahead.stack import stack_bytes
from jangin.backends.clike.dialect import C
from jangin.backends.clike.module import emit_kernels
from jangin.backends.clike.plain import CFunctions
from jangin.ir.records import dataclass
from jangin.targets.target import Target


def compiler_flags(target: Target) -> tuple[str, ...]:
    """Return the flags with which gcc and clang compile the C code of a target."""
    return ("-O2", *C.FLAGS, "-Wno-psabi", *target.c_flags)


def model_source(model: Model) -> str:
    """Return the C text of kernels and API. All its functions except the API's are static."""
    kernels = [replace(func, name=name) for name, func in model.kernels.items()]
    writer = CFunctions(model.target.machine.atomics)
    write_api(model, writer)
    flags = " ".join(compiler_flags(model.target))
    return "\n".join([
        f"/* Compiled by Jangin for {model.target.name}. Compile it with", f"   {flags} */",
        emit_kernels(kernels, model.target, C("static "), model.overlapping),
        f'#include "{model.prefix}.h"',
        writer.text(),
    ])  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """The bytes that a target's compiler makes of a model: its code without the weights, and the stack of a
    run on one thread. Each is None if it isn't known."""

    code: int | None = None
    stack: int | None = None


def compiled(model: Model) -> Compiled:
    """Compile a model's C by the target's compiler, if it is installed. A failure's message becomes a
    warning, because the files are made nevertheless."""
    compiler = shutil.which(model.target.c_compiler) if model.target.c_compiler else None
    if compiler is None:
        return Compiled()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _compiled(model, compiler, Path(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        warnings.warn(_failure(compiler, error), RuntimeWarning, stacklevel=4)
        return Compiled()


def _compiled(model: Model, compiler: str, folder: Path) -> Compiled:
    """Compile a model's C in a folder. Raises CalledProcessError if the compiler fails with and without the
    target's library."""
    p, parallel = model.prefix, f"{model.prefix}_parallel"
    object_file = folder / "model.o"
    (folder / f"{p}.c").write_text(model_source(model))
    (folder / f"{p}.h").write_text(header(model))
    flags = (*compiler_flags(model.target), "-fcallgraph-info=su")
    command = [compiler, *flags, "-c", "-o", object_file.name, f"{p}.c"]
    for library in dict.fromkeys(((), model.target.c_library)):
        done = subprocess.run([*command, *library], cwd=folder, capture_output=True, text=True)
        if not done.returncode:
            break
    done.check_returncode()
    graph = object_file.with_suffix(".ci").read_text()
    by_address = {parallel: [f"{p}_take"], "": [*model.kernels]}
    return Compiled(code_bytes(object_file.read_bytes()), stack_bytes(graph, f"{p}_run", by_address))


def _failure(compiler: str, error: OSError | subprocess.CalledProcessError) -> str:
    """Return what a compiler that failed says, from its first error on."""
    lines = str(error if isinstance(error, OSError) else error.stderr).strip().splitlines()
    first = next((n for n, line in enumerate(lines) if "error" in line), 0)
    said = "\n".join(lines[first : first + SHOWN]) or "it says nothing"
    return f"{compiler} doesn't compile the model, so its code and its stack aren't known: {said}"


SHOWN = 5
"""Lines of a compiler's message that are shown. The first error has some five lines, and the others follow
from it."""
LARGE = 16 << 20
"""Weights of more bytes than this are written for the assembler, not as C. gcc 12 takes 10 s and 3.8 GB for
175 MB of weights in C."""


def weights_name(model: Model) -> str:
    """Return the name of the file with the weights. It is C, or assembly if they have more than LARGE
    bytes."""
    return f"{model.prefix}_weights.{'S' if model.weights.bytes > LARGE else 'c'}"


def weights_files(model: Model) -> dict[str, Content]:
    """Return the files of the weights by name, in a form that gcc and clang compile."""
    name = weights_name(model)
    if name.endswith(".c"):
        return {name: _array(model)}
    text = _ASSEMBLER.replace("<P>", model.prefix)
    return {name: [text.encode()], f"{model.prefix}.bin": model.weights.chunks()}


_ASSEMBLER = """/* The weights, from the file <P>.bin, which lies in a folder of the include path (-I). */
.section .rodata
.balign 64
.globl <P>_weights
<P>_weights:
.incbin "<P>.bin"
.section .note.GNU-stack, "", %progbits
"""


def _array(model: Model) -> list[bytes]:
    """Return C text that defines the weights as a string literal. Compilers read strings much faster than
    lists of numbers."""
    array = f"const unsigned char {model.prefix}_weights[{max(1, model.weights.bytes)}]"
    head = f"{_NO_END}\nextern {array};\n_Alignas(64) {array} =\n"
    return [head.encode(), *_lines(model), b";\n"]


_NO_END = """#if defined __GNUC__ && (__GNUC__ >= 15 || (defined __clang__ && __clang_major__ >= 20))
#pragma GCC diagnostic ignored "-Wunterminated-string-initialization"
#endif"""
"""The string literal is as long as the array, without room for the terminating zero."""


_OCTAL = np.array([f"\\{n:03o}".encode() for n in range(256)], "S4")
_LINE = 1 << 10
"""Bytes of weights in a line of C. A byte takes four characters, and compilers must accept lines of 4,095
characters only (C11, 5.2.4.1); those in use accept longer ones."""


def _lines(model: Model) -> Iterator[bytes]:
    """Yield lines of C string literals that together are the weights."""
    if not model.weights.bytes:
        yield b'""'
    for piece in model.weights.chunks():
        for at in range(0, len(piece), _LINE):
            yield b'"' + _OCTAL[piece[at : at + _LINE]].tobytes() + b'"\n'


def threads_source(model: Model) -> str:
    """Return the C text of a pool of POSIX threads. A program that links it runs the model on several
    threads."""
    return _THREADS.replace("<P>", model.prefix).replace("<U>", model.prefix.upper())


_THREADS = r"""/* Threads for <P>_run: call <P>_start_threads first. One run at a time uses them.
   A thread that waits spins for a short time, then it sleeps. -D<U>_SPINS=0 switches spinning off. */
#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#include "<P>.h"

#ifndef <U>_SPINS
#define <U>_SPINS 2000
#endif

enum { MOST = 256 };
static pthread_t threads[MOST];
static int32_t started;
static <P>_task job;
static void *job_context;
static int32_t workers;
/* Everything below is read and written in one order that all threads see. */
static int32_t generation, next_worker, left, is_open, inside, sleepers, is_waiting, stopping, number;
static int32_t claimed[MOST]; /* the last job of which each worker's part was taken */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, running = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;

static int32_t get(int32_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static void set(int32_t *at, int32_t to) { __atomic_store_n(at, to, __ATOMIC_SEQ_CST); }
static int32_t add(int32_t *at, int32_t by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }

/* Waits a moment. Sometimes another thread may have this one's processor. */
static void relax(int32_t spins) {
  if (spins % 64 == 63) sched_yield();
#if defined __x86_64__ || defined __i386__
  __builtin_ia32_pause();
#elif defined __aarch64__ || defined __arm__
  __asm__ volatile("yield");
#endif
}

/* Returns whether the caller is the one to do a worker's part. */
static int claim(int32_t worker) {
  int32_t now = get(&number), last = get(&claimed[worker]);
  return last != now &&
         __atomic_compare_exchange_n(&claimed[worker], &last, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void do_part(int32_t worker) {
  job(job_context, worker);
  if (add(&left, -1) == 1 && get(&is_waiting)) {
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
  }
}

/* Does workers' parts until there is none left. A thread begins with its own, whose memory it knows. */
static void take(int32_t worker) {
  if (worker < workers && claim(worker)) do_part(worker);
  while ((worker = add(&next_worker, 1)) < workers)
    if (worker >= MOST || claim(worker)) do_part(worker);
}

/* Waits for a job after number `seen`. */
static void await_job(int32_t seen) {
  for (int32_t spins = 0; spins < <U>_SPINS; ++spins) {
    if (get(&generation) != seen || get(&stopping)) return;
    relax(spins);
  }
  pthread_mutex_lock(&lock);
  add(&sleepers, 1);
  while (get(&generation) == seen && !get(&stopping)) pthread_cond_wait(&begun, &lock);
  add(&sleepers, -1);
  pthread_mutex_unlock(&lock);
}

static void *work(void *own) {
  int32_t seen = get(&generation);
  while (!get(&stopping)) {
    await_job(seen);
    seen = get(&generation);
    add(&inside, 1);
    if (get(&is_open)) take((int32_t)(intptr_t)own);
    add(&inside, -1);
  }
  return NULL;
}

/* Wakes the threads that sleep. */
static void wake(void) {
  if (get(&sleepers) == 0) return;
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&begun);
  pthread_mutex_unlock(&lock);
}

/* Waits until all parts of the job are done. */
static void await_end(void) {
  for (int32_t spins = 0; spins < <U>_SPINS; ++spins) {
    if (get(&left) == 0) return;
    relax(spins);
  }
  pthread_mutex_lock(&lock);
  set(&is_waiting, 1);
  while (get(&left)) pthread_cond_wait(&ended, &lock);
  set(&is_waiting, 0);
  pthread_mutex_unlock(&lock);
}

void <P>_parallel(<P>_task function, void *context, int32_t count) {
  if (started == 0 || count < 2 || pthread_mutex_trylock(&running)) {
    for (int32_t worker = 0; worker < count; ++worker) function(context, worker);
    return;
  }
  job = function, job_context = context, workers = count;
  set(&next_worker, 0);
  set(&left, count);
  set(&number, (int32_t)((uint32_t)get(&number) + 1));
  set(&is_open, 1);
  __atomic_store_n(&generation, (int32_t)((uint32_t)get(&generation) + 1), __ATOMIC_SEQ_CST);
  wake();
  take(0);
  await_end();
  set(&is_open, 0); /* a thread that comes late takes nothing, and the others leave at once */
  for (int32_t spins = 0; get(&inside); ++spins) relax(spins & 63);
  pthread_mutex_unlock(&running);
}

void <P>_stop_threads(void) {
  set(&stopping, 1);
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&begun);
  pthread_mutex_unlock(&lock);
  while (started) pthread_join(threads[--started], NULL);
  set(&stopping, 0);
}

int32_t <P>_start_threads(int32_t count) {
  <P>_stop_threads();
  while (started < count - 1 && started < MOST - 1)
    if (pthread_create(&threads[started], NULL, work, (void *)(intptr_t)(started + 1))) return -1;
    else ++started;
  return 0;
}
"""
