"""The C text of the batch extension of CBLAS: `cblas_dgemm_batch_strided` around a compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jangin.blas.routine import PLACES

if TYPE_CHECKING:
    from jangin.blas.interface import Compiled

_ARGUMENTS = """CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
    <T> alpha, const <T> *a, int lda, int stridea, const <T> *b, int ldb, int strideb, <T> beta,
    <T> *c, int ldc, int stridec, int batch"""


def batch_declaration(c: Compiled) -> str:
    return f"void {_name(c)}({_ARGUMENTS.replace('<T>', c.type)})"


def _name(c: Compiled) -> str:
    return f"cblas_{c.letter}gemm_batch_strided"


def batch_function(c: Compiled) -> str:
    """Return the C text of the function. Matrices in rows are those in columns, transposed, so a and b change
    their places. A matrix without elements may be null, which kernels refuse."""
    table = ", ".join(f"{{{p}_run, {p}_arena_bytes}}" for p in c.prefixes)
    places = {"alpha": "&alpha", "beta": "&beta", PLACES: "places", "a": "k ? a : held", "b": "k ? b : held"}
    value = {"k": "alpha == 0 ? 0 : k"}
    body = _BODY
    for word, text in {
        "NAME": _name(c),
        "T": c.type,
        "TABLE": table,
        "SIZES": ", ".join(value.get(s, s) for s in c.symbols),
        "INPUTS": ", ".join(f"(const void *)({places[n]})" for n in c.inputs),
    }.items():
        body = body.replace(f"<{word}>", text)
    return f"{batch_declaration(c)} {body}"


_BODY = """{
  static const kernel kernels[] = {<TABLE>};
  static const <T> held[1] = {0};
  const int rows = layout == CblasRowMajor;
  const int of_a = (int)transa - CblasNoTrans, of_b = (int)transb - CblasNoTrans;
  const int64_t lines_a = (of_a > 0) == rows ? m : k, lines_b = (of_b > 0) == rows ? k : n;
  const int64_t lines_c = rows ? n : m;
  const int info = layout != CblasRowMajor && layout != CblasColMajor ? 1
      : of_a < 0 || of_a > 2 ? 2 : of_b < 0 || of_b > 2 ? 3 : m < 0 ? 4 : n < 0 ? 5 : k < 0 ? 6
      : lda < least(lines_a) ? 9 : ldb < least(lines_b) ? 12 : ldc < least(lines_c) ? 16 : batch < 0 ? 18 : 0;
  if (info) {
    cblas_xerbla(info, "<NAME>", ILLEGAL, info);
    return;
  }
  if (!m || !n || !batch || ((alpha == 0 || !k) && beta == 1)) return;
  int first = of_a > 0, second = of_b > 0;
  if (rows) {
    const <T> *matrix = a;
    int number = lda;
    a = b, b = matrix;
    lda = ldb, ldb = number;
    number = stridea, stridea = strideb, strideb = number;
    number = m, m = n, n = number;
    number = first, first = second, second = number;
  }
  int64_t *places = (int64_t *)memory(3 * (int64_t)batch * (int64_t)sizeof(int64_t));
  for (int64_t i = 0; i < batch; ++i) {
    places[3 * i] = i * stridea;
    places[3 * i + 1] = i * strideb;
    places[3 * i + 2] = i * stridec;
  }
  const int64_t sizes[] = {<SIZES>};
  const void *inputs[] = {<INPUTS>};
  void *outputs[] = {c};
  run(&kernels[first * 2 + second], inputs, outputs, sizes);
  free(places);
}
"""
