"""RapidOCR reads a page with Jangin's `InferenceSession` in place of ONNX Runtime's. Its own code prepares
the pictures and decodes the answers. The detector, the classifier and the recogniser (SVTR) have open
sizes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from compared import compiled

import jangin

pytestmark = pytest.mark.slow

for module in ("pyclipper", "shapely", "yaml"):
    pytest.importorskip(
        module, reason=f"RapidOCR needs {module}, which is not installed (see the extra `models`)"
    )
cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed (see the extra `models`)")

LINES = [
    "Region-basedsegmentation",
    "Let us first determine markers of the coins and the",
    "background.These markers are pixels that we can label",
    "unambiguously as either object or background.Here,",
    "histogram ofgreyvalues:",
]
"""The text that RapidOCR reads with ONNX Runtime: the title and four lines. The networks miss some blanks."""
SCALES = (0.75, 1.0, 1.3, 1.6, 2.0)


@pytest.fixture(scope="module")
def rapidocr() -> Any:
    from packages import package

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(package("rapidocr-onnxruntime==1.4.4")))
        import rapidocr_onnxruntime

        yield rapidocr_onnxruntime
        for name in [n for n in sys.modules if n.startswith("rapidocr_onnxruntime")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def page() -> Any:
    from packages import package

    return cv2.imread(str(package("scikit-image==0.25.2") / "skimage" / "data" / "page.png"))


@pytest.fixture(scope="module")
def reader(rapidocr: Any) -> Any:
    """Return RapidOCR on Jangin. Each of its models is compiled once."""
    from rapidocr_onnxruntime.utils import infer_engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(jangin), "compile", compiled)
        patch.setattr(infer_engine, "InferenceSession", jangin.InferenceSession)
        return rapidocr.RapidOCR()


def read(reader: Any, page: Any) -> tuple[list[str], list[float]]:
    found, _ = reader(page)
    return [text for _, text, _ in found], [float(score) for _, _, score in found]


def test_the_lines_of_a_page(reader: Any, page: Any) -> None:
    texts, scores = read(reader, page)
    assert texts == LINES
    assert min(scores) > 0.9


def test_five_sizes_from_one_plan(reader: Any, rapidocr: Any, page: Any) -> None:
    theirs = rapidocr.RapidOCR()
    for scale in SCALES:
        resized = cv2.resize(page, None, fx=scale, fy=scale)
        texts, scores = read(reader, resized)
        expected, expected_scores = read(theirs, resized)
        assert texts == expected
        np.testing.assert_allclose(scores, expected_scores, atol=1e-3)
