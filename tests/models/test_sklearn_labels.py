"""Classifiers of scikit-learn as skl2onnx writes them by default: labels are words, and probabilities are a
list of dictionaries (ZipMap)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")

from skl2onnx.common.data_types import FloatTensorType, StringTensorType  # noqa: E402
from sklearn import (  # noqa: E402
    compose,
    datasets,
    ensemble,
    linear_model,
    pipeline,
    preprocessing,
    svm,
)

MODELS = [
    ensemble.RandomForestClassifier(12, max_depth=6, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0),
    svm.SVC(probability=True, random_state=0),
    linear_model.LogisticRegression(max_iter=500),
    pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
    pipeline.make_pipeline(preprocessing.MinMaxScaler(), svm.SVC(kernel="linear", probability=True)),
]


def irises() -> tuple[Any, Any, Any]:
    """Return measures of irises, the names of the species, and measures that were not trained on."""
    found = datasets.load_iris()
    x = found.data.astype(np.float32)
    rng = np.random.default_rng(0)
    return x, found.target_names[found.target], x + rng.normal(0, 0.05, x.shape).astype(np.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
@pytest.mark.filterwarnings("ignore")
def test_labels_and_maps(model: Any, words: bool) -> None:
    x, names, new = irises()
    model.fit(x, names if words else np.unique(names, return_inverse=True)[1] * 10)
    exe = jangin.compile(
        skl2onnx.to_onnx(model, initial_types=[("x", FloatTensorType([None, x.shape[1]]))]), cache=False
    )
    for rows in (new, new[:1]):
        labels, maps = exe(rows)
        assert labels.tolist() == model.predict(rows).tolist()
        expected = [dict(zip(model.classes_.tolist(), p, strict=True)) for p in model.predict_proba(rows)]
        assert isinstance(maps, list) and len(maps) == len(rows)
        for ours, theirs in zip(maps, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=3e-4)


@pytest.mark.filterwarnings("ignore")
def test_words_and_numbers_as_columns() -> None:
    rng = np.random.default_rng(0)
    colours, sizes = rng.choice(["red", "green", "blue"], 200), rng.normal(size=(200, 2)).astype(np.float32)
    wanted = np.where((colours == "red") ^ (sizes[:, 0] > 0.3), "keep", "sell")
    table = np.concatenate([sizes.astype(object), colours[:, None].astype(object)], axis=1)
    columns = compose.make_column_transformer(
        (preprocessing.StandardScaler(), [0, 1]),
        (preprocessing.OneHotEncoder(handle_unknown="ignore"), [2]),
    )
    model = pipeline.make_pipeline(columns, ensemble.RandomForestClassifier(10, random_state=0))
    model.fit(table, wanted)
    types = [("sizes", FloatTensorType([None, 2])), ("colour", StringTensorType([None, 1]))]
    exe = jangin.compile(skl2onnx.to_onnx(model, initial_types=types), cache=False)
    colours[:5] = "mauve"
    table[:, 2] = colours
    labels, maps = exe(sizes, colours[:, None])
    assert labels.tolist() == model.predict(table).tolist()
    shares = [m["keep"] for m in maps]
    np.testing.assert_allclose(shares, model.predict_proba(table)[:, 0], atol=1e-5)
