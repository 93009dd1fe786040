"""Compiled models of scikit-learn, exported by skl2onnx, give scikit-learn's predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")

from skl2onnx.common.data_types import FloatTensorType, Int64TensorType  # noqa: E402
from sklearn import (  # noqa: E402
    compose,
    ensemble,
    impute,
    linear_model,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

ROWS, COLUMNS = 150, 6


def table(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def classes(x: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    score = x[:, 0] + np.sin(3 * x[:, 1]) - x[:, 2] * x[:, 3]
    return np.digitize(score, np.quantile(score, np.arange(1, count) / count))


def compiled(model: Any, kind: Any = FloatTensorType, **options: Any) -> jangin.Executable:
    inputs = [("x", kind([None, COLUMNS]))]
    zips = hasattr(model, "classes_") and not isinstance(model, svm.LinearSVC)
    settings = {id(model): {"zipmap": False, **options}} if zips else None
    exe = jangin.compile(skl2onnx.to_onnx(model, initial_types=inputs, options=settings), cache=False)
    assert isinstance(exe, jangin.Executable)  # the model is one plan, without steps in Python
    return exe


CLASSIFIERS = [
    tree.DecisionTreeClassifier(max_depth=5, random_state=0),
    ensemble.RandomForestClassifier(15, max_depth=6, random_state=0),
    ensemble.ExtraTreesClassifier(7, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=12, random_state=0),
    linear_model.LogisticRegression(),
    linear_model.RidgeClassifier(),
    svm.LinearSVC(),
    svm.SVC(kernel="rbf"),
    svm.SVC(kernel="poly", coef0=0.5),
    svm.SVC(kernel="linear"),
    pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression(C=0.5)),
    pipeline.make_pipeline(preprocessing.Normalizer("l1"), ensemble.AdaBoostClassifier(n_estimators=5)),
    neural_network.MLPClassifier((8,), max_iter=30, random_state=0),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda m: type(m).__name__ + getattr(m, "kernel", ""))
@pytest.mark.filterwarnings("ignore")
def test_classifiers(model: Any, count: int) -> None:
    x = table()
    model.fit(x, classes(x, count) + 5)
    exe = compiled(model)
    new = table(1)
    labels, *scores = exe(new)
    np.testing.assert_array_equal(labels, model.predict(new))
    assert labels.dtype == np.int64
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(scores[0], model.predict_proba(new), 1e-4, 2e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [2, 3, 4])
def test_probabilities_of_support_vectors(count: int) -> None:
    x = table()
    model = svm.SVC(probability=True, random_state=0).fit(x, classes(x, count))
    labels, scores = compiled(model)(table(1))
    np.testing.assert_array_equal(labels, model.predict(table(1)))
    np.testing.assert_allclose(scores, model.predict_proba(table(1)), 1e-3, 2e-4)


REGRESSORS = [
    tree.DecisionTreeRegressor(max_depth=5, random_state=0),
    ensemble.RandomForestRegressor(9, random_state=0),
    ensemble.GradientBoostingRegressor(n_estimators=12, random_state=0),
    linear_model.LinearRegression(),
    svm.SVR(),
    svm.SVR(kernel="sigmoid", gamma=0.1),
    pipeline.make_pipeline(preprocessing.PolynomialFeatures(2), linear_model.Ridge()),
]


@pytest.mark.parametrize("model", REGRESSORS, ids=lambda m: type(m).__name__ + getattr(m, "kernel", ""))
def test_regressors(model: Any) -> None:
    x = table()
    model.fit(x, x[:, 0] * 2 + np.sin(x[:, 1]))
    exe = compiled(model)
    for rows in (ROWS, 1):  # the number of rows is symbolic
        got = exe(table(1)[:rows])
        np.testing.assert_allclose(np.ravel(got), model.predict(table(1)[:rows]), 1e-4, 1e-4)


def test_several_targets() -> None:
    x = table()
    model = ensemble.RandomForestRegressor(5, random_state=0).fit(x, x[:, :3] ** 2)
    np.testing.assert_allclose(compiled(model)(table(1)), model.predict(table(1)), 1e-4, 1e-5)


TRANSFORMERS = [
    preprocessing.StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.RobustScaler(),
    preprocessing.Normalizer("l2"),
    preprocessing.Normalizer("max"),
    preprocessing.Binarizer(threshold=0.3),
    compose.make_column_transformer(
        (preprocessing.StandardScaler(), [0, 2]), (preprocessing.MinMaxScaler(), [3]), remainder="drop"
    ),
]


@pytest.mark.parametrize("model", TRANSFORMERS, ids=lambda m: f"{type(m).__name__}{getattr(m, 'norm', '')}")
def test_transformers(model: Any) -> None:
    model.fit(table())
    np.testing.assert_allclose(compiled(model)(table(1)), model.transform(table(1)), 1e-4, 1e-5)


def test_missing_values_are_imputed() -> None:
    x = table()
    x[::3, 1] = np.nan
    x[::5, 4] = np.nan
    model = impute.SimpleImputer().fit(x)
    np.testing.assert_allclose(compiled(model)(x), model.transform(x), 1e-5)


def test_categories_are_encoded() -> None:
    x = np.random.default_rng(0).integers(-3, 4, (ROWS, COLUMNS))
    model = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(x)
    new = x + (np.arange(ROWS) % 5 == 0)[:, None] * 9
    np.testing.assert_array_equal(compiled(model, Int64TensorType)(new), model.transform(new))
