"""Core ML's models of rows, converted from scikit-learn by coremltools or made by hand, against
scikit-learn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

ct = pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")
sklearn = pytest.importorskip("sklearn", reason="scikit-learn, the reference, isn't installed")
sk = pytest.importorskip("coremltools.converters.sklearn")
if not ct._deps._HAS_SKLEARN:
    pytest.skip("coremltools converts scikit-learn up to 1.5.1", allow_module_level=True)

from sklearn import datasets, ensemble, linear_model, neighbors, svm, tree  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

X, LABELS = datasets.load_iris(return_X_y=True)
X = X.astype(np.float32).astype(np.float64)
TARGETS = X @ [0.5, -1, 2, 0.1] + np.sin(X[:, 0])
BINARY = LABELS > 1
CLASSIFIERS = {
    "tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "forest": ensemble.RandomForestClassifier(7, random_state=0),
    "boosted": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "logistic": linear_model.LogisticRegression(max_iter=500, multi_class="ovr"),
    "svc": svm.SVC(),
    "svc_poly": svm.SVC(kernel="poly", degree=2, coef0=0.5),
    "linear_svc": svm.LinearSVC(dual=False),
    "neighbors": neighbors.KNeighborsClassifier(5),
}
REGRESSORS = {
    "tree": tree.DecisionTreeRegressor(max_depth=5, random_state=0),
    "forest": ensemble.RandomForestRegressor(7, random_state=0),
    "linear": linear_model.LinearRegression(),
    "svr": svm.SVR(),
    "nu_svr": svm.NuSVR(kernel="sigmoid", gamma=0.01),
    "linear_svr": svm.LinearSVR(max_iter=10000),
    "scaled": make_pipeline(StandardScaler(), linear_model.LinearRegression()),
}


def converted(model: Any, folder: Path, wanted: Any, *features: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, wanted)
        made = sk.convert(model, *features)
    path = folder / "model.mlmodel"
    path.write_bytes(made.get_spec().SerializeToString())
    return jangin.compile(path, threads=1, cache=False)


@pytest.mark.parametrize("classes", ["two", "three", "named"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str, classes: str, tmp_path: Path) -> None:
    model = CLASSIFIERS[name]
    if name == "neighbors" and classes == "named":
        pytest.skip("coremltools writes numbers in place of the names of neighbours' classes")
    if name == "boosted" and classes != "two":
        pytest.skip("coremltools fails to convert boosted trees of more classes with NumPy 2")
    wanted = {"two": BINARY.astype(int), "three": LABELS, "named": np.array(["a", "b", "c"])[LABELS]}[classes]
    exe = converted(model, tmp_path, wanted, "input", "label")
    got = exe.run({"input": X.astype(exe.inputs[0].dtype)})
    np.testing.assert_array_equal(got["label"], model.predict(X))
    if hasattr(model, "predict_proba"):
        odds = next((v for n, v in got.items() if n != "label"), None)
        if odds is None:
            assert name == "neighbors"  # the file of "neighbors" names no probabilities
            return
        np.testing.assert_allclose(odds, model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name: str, tmp_path: Path) -> None:
    model = REGRESSORS[name]
    got = converted(model, tmp_path, TARGETS, "input", "target").run({"input": X})
    np.testing.assert_allclose(got["target"], model.predict(X), atol=1e-5)


def test_features_by_name(tmp_path: Path) -> None:
    """A pipeline's first model puts columns side by side."""
    model = linear_model.LinearRegression()
    exe = converted(model, tmp_path, TARGETS, ["a", "b", "c", "d"], "target")
    columns = {n: np.ascontiguousarray(X[:, i]) for i, n in enumerate("abcd")}
    np.testing.assert_allclose(exe.run(columns)["target"], model.predict(X), atol=1e-6)


def test_a_pipeline_by_hand() -> None:
    """A pipeline has an imputer, a normalizer and a choice of columns."""
    from jangin.frontends.coreml.schema import module

    message = module("Model_pb2").Model(specificationVersion=1)
    names = ["x", "a", "b", "c"]

    def declared(part: Any, before: str, after: str) -> None:
        for features, name in ((part.description.input, before), (part.description.output, after)):
            kind = features.add(name=name).type.multiArrayType
            kind.dataType = 65600
            kind.shape.append(4)

    declared(message, "x", "c")
    for n in range(3):
        declared(message.pipeline.models.add(specificationVersion=1), names[n], names[n + 1])
    imputer, normalizer, extractor = message.pipeline.models
    imputer.imputer.imputedDoubleArray.vector.extend([1, 2, 3, 4])
    imputer.imputer.replaceDoubleValue = float("nan")
    normalizer.normalizer.normType = 1
    extractor.arrayFeatureExtractor.extractIndex.extend([3, 0])
    x = X.copy()
    x[::3, 1] = np.nan
    filled = np.where(np.isnan(x), [1, 2, 3, 4], x)
    wanted = (filled / np.abs(filled).sum(1, keepdims=True))[:, [3, 0]]
    np.testing.assert_allclose(jangin.compile(message, threads=1, cache=False)(x), wanted, atol=1e-12)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    from jangin.frontends.coreml.schema import module

    message = module("Model_pb2").Model(specificationVersion=1)
    message.textClassifier.revision = 1
    message.description.output.add(name="label").type.stringType.SetInParent()
    with pytest.raises(jangin.CompileError, match=r"textClassifier 'model': textClassifier is not supported"):
        jangin.compile(message, cache=False)


def test_damaged_files_give_one_error(refused: Any, tmp_path: Path) -> None:
    converted(CLASSIFIERS["tree"], tmp_path, LABELS, "input", "label")
    path = tmp_path / "model.mlmodel"
    assert refused(path, [path]) > 0.3
