"""Declare a model's C API: its functions, its errors, and their documentation in the header."""

from __future__ import annotations

from jangin.ahead.model import Model
from jangin.backends.functions import Signature

NULL_POINTER, SMALL_ARENA, TOO_LARGE, BAD_THREADS, BAD_INDEX, NO_WEIGHTS, BAD_STATE = range(-1, -8, -1)
ERRORS = {
    0: ("OK", "success"),
    NULL_POINTER: ("NULL_POINTER", "a pointer is null"),
    SMALL_ARENA: ("SMALL_ARENA", "the arena is too small"),
    TOO_LARGE: ("TOO_LARGE", "the sizes are so large that memory can't hold what they need"),
    BAD_THREADS: ("BAD_THREADS", "the number of threads must be 1 to 4096"),
    BAD_INDEX: ("BAD_INDEX", "there is no input, output or size of this number or name"),
    NO_WEIGHTS: ("NO_WEIGHTS", "the weights are not set, or are not this model's"),
    BAD_STATE: ("BAD_STATE", "the state was not reset, is not this model's, or is not at a multiple of 64"),
}
"""Codes of errors that every model has, with their names in C. A model's own codes begin at FIRST_OWN."""
FIRST_OWN = -16
MAX_THREADS = 4096
"""The first code of a model's own errors, behind those of all models, and the most threads of a run. Sizes of
scratch memory for so many threads are checked not to overflow."""

TASK = "typedef void (*{p}_task)(void *context, int32_t worker);"
PARALLEL = "void {p}_parallel({p}_task function, void *context, int32_t count)"

FUNCTIONS = {
    "run": (
        "int32_t {p}_run(const {p}_inputs *inputs, const {p}_outputs *outputs, const int64_t *sizes, "
        "void *arena, int64_t arena_bytes, int32_t threads)",
        "Runs the model and gives 0, or an error (see {p}_error_text).\n"
        "`inputs` and `outputs`: pointers to the caller's memory, in the order of the model's inputs and\n"
        "outputs, so that an array of pointers does as well; `sizes`: the value of each size, in order\n"
        "(null where there is none); `arena`: {p}_arena_bytes of memory, for the time of the run only.\n"
        "Runs with different arenas may go on at the same time.",
    ),
    "arena_bytes": (
        "int64_t {p}_arena_bytes(const int64_t *sizes, int32_t threads)",
        "Bytes of working memory that a run takes (wherever it begins), or an error.",
    ),
    "input_count": ("int32_t {p}_input_count(void)", ""),
    "output_count": ("int32_t {p}_output_count(void)", ""),
    "size_count": ("int32_t {p}_size_count(void)", "Returns how many sizes are known only at run time."),
    "input_name": (
        "const char *{p}_input_name(int32_t index)",
        "Returns an input's name, or null if there is no such input.",
    ),
    "output_name": ("const char *{p}_output_name(int32_t index)", ""),
    "size_name": ("const char *{p}_size_name(int32_t index)", ""),
    "input_index": ("int32_t {p}_input_index(const char *name)", "Returns an input's number, or an error."),
    "output_index": ("int32_t {p}_output_index(const char *name)", ""),
    "size_index": ("int32_t {p}_size_index(const char *name)", ""),
    "input_type": (
        "const char *{p}_input_type(int32_t index)",
        "Returns the type of its elements: f32, f64, f16 and bf16 (bits), i8 to i64, u8 to u64, bool\n"
        "(a byte, 0 or 1), ...",
    ),
    "output_type": ("const char *{p}_output_type(int32_t index)", ""),
    "input_quantization": (
        "const {p}_quantization *{p}_input_quantization(int32_t index)",
        "Returns the real numbers that its integers stand for, or null if they stand for themselves.",
    ),
    "output_quantization": ("const {p}_quantization *{p}_output_quantization(int32_t index)", ""),
    "input_shape": (
        "int32_t {p}_input_shape(int32_t index, const int64_t *sizes, int64_t *shape)",
        "Returns the number of dimensions, or an error. `shape` gets them unless it is null,\n"
        "{P}_MAX_RANK at most.",
    ),
    "output_shape": ("int32_t {p}_output_shape(int32_t index, const int64_t *sizes, int64_t *shape)", ""),
    "input_bytes": (
        "int64_t {p}_input_bytes(int32_t index, const int64_t *sizes)",
        "Returns its bytes, or an error.",
    ),
    "output_bytes": ("int64_t {p}_output_bytes(int32_t index, const int64_t *sizes)", ""),
    "error_text": ("const char *{p}_error_text(int32_t code)", "Returns the text of an error."),
    "version": (
        "const char *{p}_version(void)",
        "Returns the compiler's version, and the machine that it compiled for.",
    ),
    "licence": (
        "const char *{p}_licence(void)",
        "Returns the licence of the generated code. The weights are their author's.",
    ),
    "weights_bytes": ("int64_t {p}_weights_bytes(void)", "Returns the bytes of constants."),
    "use_weights": (
        "int32_t {p}_use_weights(const void *weights, int64_t bytes)",
        "Tells where {p}.bin lies in memory, before the first run. It lies at a multiple of 64,\n"
        "as long as runs go on.",
    ),
}
"""The functions that a model exports, by their names without the prefix: the declaration in C, and the
comment above it in the header."""

STATEFUL = {
    "state_bytes": (
        "int64_t {p}_state_bytes(void)",
        "Bytes of the state that the model keeps from run to run. It is a block of the caller's memory at a\n"
        "multiple of 64, one for each stream, and has no pointers inside: copy or save it by its bytes.",
    ),
    "reset": ("int32_t {p}_reset(void *state)", "Fills a state as it is before the first run."),
    **FUNCTIONS,
    "run": (
        FUNCTIONS["run"][0].replace("_run(", "_run(void *state, "),
        FUNCTIONS["run"][1].replace(
            "Runs with different arenas",
            "`state`: {p}_state_bytes of memory that {p}_reset has filled. An error leaves it as it was.\n"
            "Runs with different states and arenas",
        ),
    ),
}
"""The functions of a model that keeps a state between runs, as FUNCTIONS has them."""

_STATE_RUN = "void *arena, int64_t arena_bytes, int32_t threads)"
TRAINING = {
    "state_bytes": (
        "int64_t {p}_state_bytes(void)",
        "Bytes of the state: the trained weights, what the model changes, the optimizer's state, the number\n"
        "of steps. It is a block of the caller's memory at a multiple of 64, and has no pointers inside:\n"
        "save it by writing its bytes.",
    ),
    "init": ("int32_t {p}_init(void *state)", "Fills a state as it is before the first step."),
    "restore": (
        "int32_t {p}_restore(void *state, const void *saved, int64_t bytes)",
        "Fills a state with the saved bytes of another. An error changes nothing.",
    ),
    "steps": ("int64_t {p}_steps(const void *state)", "The steps that a state has seen, or an error."),
    "step": (
        "int32_t {p}_step(void *state, const {p}_batch *batch, const double *rates, {L} *loss, " + _STATE_RUN,
        "Makes one step in place, and gives the loss before it. `rates` has a learning rate for each group\n"
        "of parameters ({P}_GROUPS), for this step and all later ones; null leaves them as they are.\n"
        "An error changes no weight.",
    ),
    "evaluate": (
        "int32_t {p}_evaluate(const void *state, const {p}_batch *batch, {L} *loss, " + _STATE_RUN,
        "Gives the loss in evaluation mode.",
    ),
    "infer": (
        "int32_t {p}_infer(const void *state, const {p}_inputs *inputs, const {p}_outputs *outputs, "
        + _STATE_RUN,
        "Gives the model's outputs in evaluation mode.",
    ),
    "arena_bytes": (
        "int64_t {p}_arena_bytes(int32_t threads)",
        "Bytes of working memory that a step, `evaluate` or `infer` takes (wherever it begins), or an error.",
    ),
    **{n: FUNCTIONS[n] for n in ("error_text", "version", "licence", "weights_bytes", "use_weights")},
}
"""The functions of a training step, as FUNCTIONS has them."""


def signatures(model: Model) -> dict[str, tuple[Signature, str]]:
    """Return a model's functions by their names without the prefix, with their documentation."""
    p, listed = model.prefix, FUNCTIONS if model.state is None else STATEFUL
    listed = listed if model.training is None else TRAINING
    loss = "" if model.training is None else model.training.loss_type
    functions = {
        n: (Signature(text.replace("{p}", p).replace("{L}", loss)), doc) for n, (text, doc) in listed.items()
    }
    if not model.beside:
        del functions["use_weights"]
    if model.training is not None and not model.training.infers:
        del functions["infer"]
    return functions
