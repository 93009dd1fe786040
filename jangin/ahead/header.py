"""Write the header of a model's C API, and its example program."""

from __future__ import annotations

import math

import numpy as np

from jangin.ahead.declarations import ERRORS, PARALLEL, TASK, signatures
from jangin.ahead.model import Model, Tensor, identifiers
from jangin.ahead.state import State, Training
from jangin.ahead.threads import START, STOP
from jangin.backends.clike.plain import comment
from jangin.ir.dtype import DType, from_numpy
from jangin.version import __version__

_TYPES = {"f32": "float", "f64": "double"}


def element_type(dtype: DType) -> str:
    """Return the C type of a tensor's elements. A type that C lacks becomes an unsigned integer with the same
    bits."""
    if dtype.name in _TYPES:
        return _TYPES[dtype.name]
    if dtype.is_int:
        return f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"
    return f"uint{8 * dtype.bytes}_t"


def header(model: Model, stack: int | None = None) -> str:
    """Return the text of the model's header for C and C++. `stack` is the most bytes of stack of a run, if
    they are known."""
    p, up = model.prefix, model.prefix.upper()
    rank = max((len(s) for ts in model.structs.values() for t in ts for s in t.shapes), default=0)
    lines = [
        f"/* {comment(model.name)}: compiled by Jangin {__version__} for {model.target.name}. */",
        f"#ifndef {up}_H", f"#define {up}_H", "", "#include <stdint.h>", "",
        f"#define {up}_MAX_RANK {max(1, rank)}",
        *(f"#define {up}_ERROR_{name} ({code})" for code, (name, _) in ERRORS.items() if code),
    ]  # fmt: skip
    if model.state is not None:
        lines += _state(model.state, up)
    if model.symbols:
        lines += ["", "/* Places in the array `sizes`. */"]
        lines += [f"#define {up}_SIZE_{s} {n}" for n, s in enumerate(identifiers(model.symbols))]
    elif model.parts:
        lines += [f"#define {up}_ARENA_BYTES INT64_C({model.typical_bytes()[0]})"]
        lines[-1] += " /* of one thread */"
    if stack is not None:
        lines += [f"#define {up}_STACK_BYTES {stack} /* at most, of a run on one thread */"]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    if model.training is None:
        lines += _quantization(model)
    for name, tensors in model.structs.items():
        lines += _struct(f"{p}_{name}", tensors, "" if name == "outputs" else "const ")
    for signature, doc in signatures(model).values():
        lines += _documented(doc.replace("{p}", p).replace("{P}", up), f"{signature.text};")
    lines += _documented(
        f"Calls `function(context, worker)` for each worker < `count`, side by side or one after the other,\n"
        f"and returns when all have ended. {p}_run calls it for what is worth several threads. Define a\n"
        "function of this name to run them on threads of yours; without one, or the file of threads that\n"
        "comes with this, they run one after the other.",
        TASK.replace("{p}", p),
    )[:-1]
    lines += [f"{PARALLEL.replace('{p}', p)};", ""]
    if model.has_threads:
        lines += _documented(_THREADS, f"{START.replace('{p}', p)};\n{STOP.replace('{p}', p)};")
    lines += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _state(state: State, up: str) -> list[str]:
    """Return the definitions of a state: its bytes, the groups of a training step, and each array's place."""
    lines = [f"#define {up}_STATE_BYTES INT64_C({state.size})"]
    lines += [f"#define {up}_GROUPS {len(state.rates)}"] if isinstance(state, Training) else []
    lines += ["", "/* Places of arrays in the state, in bytes. */"]
    for f, name in zip(state.fields, identifiers(f.name for f in state.fields), strict=True):
        text = f"{f.name} {from_numpy(f.value.dtype)}[{', '.join(map(str, f.value.shape))}]"
        lines.append(f"#define {up}_AT_{name} {f.offset} /* {comment(text)} */")
    return lines


def _quantization(model: Model) -> list[str]:
    """Return the type of a quantization, and the numbers of those of the inputs and outputs as constants."""
    p = model.prefix
    lines = _documented(
        "A real number is (integer - zero) * scale.",
        f"typedef struct {p}_quantization {{\n  float scale;\n  int32_t zero;\n}} {p}_quantization;",
    )
    for kind, tensors in (("INPUT", model.inputs), ("OUTPUT", model.outputs)):
        for t in tensors:
            if t.quantization is not None:
                name = f"{p.upper()}_{kind}_{t.field}"
                lines.append(f"#define {name}_SCALE {float(np.float32(t.quantization.scale))!r}f")
                lines.append(f"#define {name}_ZERO ({t.quantization.zero})")
    return [*lines, ""]


_THREADS = (
    "The file of threads has these. The first starts so many threads, the caller's among them,\n"
    "or returns -1. The second stops them. No run may be going on."
)


def _documented(doc: str, declaration: str) -> list[str]:
    if not doc:
        return [declaration, ""]
    return ["/* " + doc.replace("\n", "\n   ") + " */", declaration, ""]


def _struct(name: str, tensors: tuple[Tensor, ...], const: str) -> list[str]:
    fields = [
        f"  {const}{element_type(t.dtype)} *{t.field}; /* {comment(t.name)} [{_shape(t)}] */" for t in tensors
    ]
    return [f"typedef struct {name} {{", *(fields or ["  const void *none;"]), f"}} {name};", ""]


def _shape(tensor: Tensor) -> str:
    return " or ".join(dict.fromkeys(", ".join(map(str, s)) for s in tensor.shapes))


def example(model: Model) -> str:
    """Return the C text of a program that runs the model on files of raw numbers, or on zeros. A training
    step's program trains on such files."""
    p = model.prefix
    text = _EXAMPLE if model.training is None else _TRAINING
    text = text.replace("<WEIGHTS>\n", _MAPPED if model.beside else "")
    kept = model.state is not None
    text = text.replace("<STATE>\n", _KEPT if kept else "").replace("<STATE, >", "state, " if kept else "")
    text = text.replace("<FREED>\n", "  free(state);\n" if kept else "")
    stop = "  <P>_stop_threads();\n" if model.has_threads else ""
    text = text.replace("<ENDED>", stop + ("  free(memory);\n" if model.beside else "")).replace("<P>", p)
    text = text.replace("<THREADS>", f"{p}_start_threads(threads)" if model.has_threads else "0")
    text = text.replace("<U>", p.upper())
    if model.training is not None:
        sizes = (math.prod(int(str(d)) for d in t.shapes[0]) * t.dtype.bytes for t in model.structs["batch"])
        text = text.replace("<BATCH>", ", ".join(map(str, sizes))).replace("<L>", model.training.loss_type)
    return text.replace("<SIZES>", "".join(f" {s}" for s in identifiers(model.symbols)))


_EXAMPLE = r"""/* Runs the model: example<SIZES> INPUT... OUTPUT...
   A number for each size that is known only at run time; a file of raw numbers for each input ("-": zeros)
   and output.
   The environment's THREADS is how many threads to use, REPEAT how many runs to time. */
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "<P>.h"

static int64_t sure(int64_t code) {
  if (code < 0) {
    fprintf(stderr, "error %d: %s\n", (int)code, <P>_error_text((int32_t)code));
    exit(1);
  }
  return code;
}

static void *filled(const char *path, int64_t bytes) {
  void *data = calloc((size_t)bytes + 1, 1);
  FILE *file = data && path[0] != '-' ? fopen(path, "rb") : NULL;
  if (!data || (path[0] != '-' && (!file || fread(data, 1, (size_t)bytes, file) != (size_t)bytes))) {
    fprintf(stderr, "%s: not the %lld bytes of an input\n", path, (long long)bytes);
    exit(1);
  }
  if (file) fclose(file);
  return data;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int main(int argc, char **argv) {
  int32_t inputs = <P>_input_count(), outputs = <P>_output_count(), symbols = <P>_size_count();
  if (argc != 1 + symbols + inputs + outputs) {
    fprintf(stderr, "usage: %s<SIZES> INPUT... OUTPUT...  (%d inputs, %d outputs)\n", argv[0], (int)inputs,
            (int)outputs);
    return 2;
  }
  int64_t sizes[16];
  const void *in[256];
  void *out[256];
  if (symbols > 16 || inputs > 256 || outputs > 256) return 2;
  for (int32_t n = 0; n < symbols; ++n) sizes[n] = strtoll(argv[1 + n], NULL, 10);
  char **files = argv + 1 + symbols;
  for (int32_t n = 0; n < inputs; ++n) in[n] = filled(files[n], sure(<P>_input_bytes(n, sizes)));
  for (int32_t n = 0; n < outputs; ++n) out[n] = filled("-", sure(<P>_output_bytes(n, sizes)));
<WEIGHTS>
  const char *asked = getenv("THREADS"), *repeat = getenv("REPEAT");
  int32_t threads = asked ? atoi(asked) : 1;
  if (<THREADS>) return 1;
  int64_t bytes = sure(<P>_arena_bytes(sizes, threads));
  void *arena = malloc((size_t)bytes);
<STATE>
  double start = now(), best = 1e30;
  for (int runs = repeat ? atoi(repeat) : 1; runs > 0; --runs) {
    start = now();
    sure(<P>_run(<STATE, >(const void *)in, (const void *)out, sizes, arena, bytes, threads));
    if (now() - start < best) best = now() - start;
  }
  printf("%s, %s: %.3f ms, %lld bytes of arena\n", <P>_version(), <P>_licence(), best, (long long)bytes);
  for (int32_t n = 0; n < outputs; ++n) {
    FILE *file = files[inputs + n][0] == '-' ? NULL : fopen(files[inputs + n], "wb");
    size_t size = (size_t)sure(<P>_output_bytes(n, sizes));
    int64_t shape[<U>_MAX_RANK];
    int32_t rank = (int32_t)sure(<P>_output_shape(n, sizes, shape));
    printf("%s %s [", <P>_output_name(n), <P>_output_type(n));
    for (int32_t axis = 0; axis < rank; ++axis) printf(axis ? ", %lld" : "%lld", (long long)shape[axis]);
    printf("]\n");
    if (file && (fwrite(out[n], 1, size, file) != size || fclose(file))) return 1;
    free(out[n]);
  }
  for (int32_t n = 0; n < inputs; ++n) free((void *)in[n]);
  free(arena);
<FREED>
<ENDED>  return 0;
}
"""

_KEPT = r"""  void *state = aligned_alloc(64, <U>_STATE_BYTES);
  if (!state || <P>_reset(state)) return 1;
"""
_MAPPED = r"""  size_t size = (size_t)<P>_weights_bytes();
  char *memory = malloc(size + 64);
  void *weights = memory ? memory + (64 - (uintptr_t)memory % 64) : NULL;
  FILE *bin = fopen("<P>.bin", "rb");
  if (!weights || !bin || fread(weights, 1, size, bin) != size || fclose(bin)) return 1;
  sure(<P>_use_weights(weights, <P>_weights_bytes()));
"""

_TRAINING = r"""/* Trains the model: example STEPS RATE STATE FILE...
   A file of raw numbers for each input of a batch, and for the target; it has the batches one after another,
   and the first comes again after the last. RATE "-" is the rate that was compiled.
   STATE is the file with the state, which is made by the first call and gone on with by all others.
   The environment's THREADS is how many threads to use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "<P>.h"

static const int64_t batch_bytes[] = {<BATCH>};
enum { ARRAYS = sizeof batch_bytes / sizeof batch_bytes[0] };

static int64_t sure(int64_t code) {
  if (code < 0) {
    fprintf(stderr, "error %d: %s\n", (int)code, <P>_error_text((int32_t)code));
    exit(1);
  }
  return code;
}

/* Gives the bytes of a file, at a multiple of 64. */
static char *contents(FILE *file, int64_t *bytes) {
  if (!file || fseek(file, 0, SEEK_END) || (*bytes = ftell(file)) < 0) exit(1);
  rewind(file);
  char *data = aligned_alloc(64, ((size_t)*bytes + 64) / 64 * 64);
  if (!data || fread(data, 1, (size_t)*bytes, file) != (size_t)*bytes) exit(1);
  fclose(file);
  return data;
}

int main(int argc, char **argv) {
  if (argc != 4 + ARRAYS) {
    fprintf(stderr, "usage: %s STEPS RATE STATE FILE...  (%d files)\n", argv[0], (int)ARRAYS);
    return 2;
  }
<WEIGHTS>
  char *data[ARRAYS];
  int64_t held[ARRAYS], bytes;
  for (int n = 0; n < ARRAYS; ++n) {
    data[n] = contents(fopen(argv[4 + n], "rb"), &held[n]);
    if (held[n] < batch_bytes[n]) return 2;
  }
  const char *asked = getenv("THREADS");
  int32_t threads = asked ? atoi(asked) : 1;
  if (<THREADS>) return 1;
  double rates[<U>_GROUPS];
  for (int n = 0; n < <U>_GROUPS; ++n) rates[n] = atof(argv[2]);
  int64_t arena_bytes = sure(<P>_arena_bytes(threads));
  void *arena = malloc((size_t)arena_bytes), *state = aligned_alloc(64, <U>_STATE_BYTES);
  if (!arena || !state) return 1;
  FILE *file = fopen(argv[3], "rb");
  if (file) {
    char *saved = contents(file, &bytes);
    sure(<P>_restore(state, saved, bytes));
    free(saved);
  } else {
    sure(<P>_init(state));
  }
  for (int64_t left = atoll(argv[1]); left > 0; --left) {
    const void *batch[ARRAYS];
    int64_t step = sure(<P>_steps(state));
    for (int n = 0; n < ARRAYS; ++n) batch[n] = data[n] + step % (held[n] / batch_bytes[n]) * batch_bytes[n];
    <L> loss;
    const double *given = argv[2][0] == '-' ? NULL : rates;
    sure(<P>_step(state, (const void *)batch, given, &loss, arena, arena_bytes, threads));
    printf("%.17g\n", (double)loss);
  }
  file = fopen(argv[3], "wb");
  if (!file || fwrite(state, 1, <U>_STATE_BYTES, file) != <U>_STATE_BYTES || fclose(file)) return 1;
  for (int n = 0; n < ARRAYS; ++n) free(data[n]);
  free(state);
  free(arena);
<ENDED>  return 0;
}
"""
