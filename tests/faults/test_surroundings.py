"""Machines without /dev/shm or /proc, without write permission in the home or the temporary folder, or with a
full disk.

They are real if this process may create mounts of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HIDDEN = "mount -t tmpfs -o ro none {}"
READ_ONLY = "mount --bind {0} {0} && mount -o remount,ro,bind {0}"
"""A read-only mount of a folder. Python and this file may lie in a temporary folder and are still read."""


def _mounts() -> bool:
    """Tell if a process may have mounts of its own."""
    if shutil.which("unshare") is None:
        return False
    asked = ["unshare", "-m", "sh", "-c", HIDDEN.format("/mnt")]
    return subprocess.run(asked, capture_output=True).returncode == 0


MOUNTS = _mounts()
needs_mounts = pytest.mark.skipif(not MOUNTS, reason="mounts of its own are root's, or unshare isn't here")


def there(mounts: str, *command: object, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command with mounts of its own."""
    line = [*(["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh"] if mounts else []), *command]
    around = {k: v for k, v in os.environ.items() if not k.startswith("JANGIN_")}
    around |= {"HOME": str(home), "XDG_CACHE_HOME": "", **env}
    return subprocess.run([*map(str, line)], capture_output=True, text=True, env=around, timeout=600)


# --- what is missing

WORK = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import onnx, jangin
from kinds import kind
folder = Path(sys.argv[2])
for name in sys.argv[3:]:
    which = kind(name)
    for options in (dict(isolated=True), dict(isolated=False), dict(isolated=True, cache=False)):
        exe = jangin.compile(which.model, threads=2, **options)
        exe.save(folder / "m.jgn")
        for ready in (exe, jangin.load(folder / "m.jgn"), jangin.load(folder / "m.jgn", mapped=True)):
            which.check(ready, which.feeds[0])
message = onnx.ModelProto.FromString(kind("plan").model)
try:
    kind("plan").check(jangin.compile(message, isolated=True, cache=False), kind("plan").feeds[0])
except OSError as error:
    print("message:", error)
print("right")
"""
MISSING = {
    "home": [], "/dev/shm": ["/dev/shm"], "/proc": ["/proc"], "/tmp": ["/tmp", "/var/tmp"],
    "everything": ["/dev/shm", "/proc", "/tmp", "/var/tmp"],
}  # fmt: skip


@pytest.mark.sampled(3)
@needs_mounts
@pytest.mark.parametrize(
    "what", [pytest.param(n, marks=() if n == "everything" else pytest.mark.slow) for n in MISSING]
)
def test_what_is_missing(what: str, tmp_path: Path) -> None:
    """The home is read-only in all cases. A message of protobuf's goes to the other process in a temporary
    file. Without a folder for it, an error says so."""
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    no_room = "/tmp" in MISSING[what]
    mounts = [
        f"mount --bind {folder} /mnt"
    ]  # pytest's folders are in /tmp; the results' folder is also visible in /mnt
    for place in (home, *MISSING[what]):
        mounts.append((READ_ONLY if str(place).endswith("tmp") else HIDDEN).format(place))
    kinds = ["text"] if what == "everything" else ["plan", "text"]
    at = "/tmp" if no_room else "/mnt"  # Python tries this folder last for temporary files
    run = [sys.executable, "-c", f"import os; os.chdir('{at}')\n{WORK}", HERE, "/mnt", *kinds]
    done = there(" && ".join(mounts), *run, home=home)
    assert done.stdout.endswith("right\n"), done.stderr[-3000:]
    assert ("No usable temporary directory" in done.stdout) == no_room
    assert not [*home.iterdir()]


# --- full disks

FEW = ["save text", "checkpoint", "object", "convert.onnx", "placement"]
"""The ways to write that the quick suite tries."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("how", "only"),
    [
        pytest.param("limit", FEW, id="few"),
        pytest.param("limit", [], id="limit", marks=pytest.mark.slow),
        pytest.param("disk", [], id="disk", marks=[pytest.mark.slow, needs_mounts]),
    ],
)
def test_a_folder_that_takes_no_more(how: str, only: list[str], tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "full", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    mounts = f"mount -t tmpfs -o size=2m none {folder}" if how == "disk" else ""
    done = there(mounts, sys.executable, HERE / "full.py", folder, elsewhere, how, *only, home=tmp_path)
    assert not done.returncode, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert [w["way"] for w in found["ways"] if w["way"] in FEW] == FEW
    assert not [w for w in found["ways"] if w["wrong"]], json.dumps(found, indent=1)
    assert found["cache"], "what can't be kept isn't kept, and compiling goes on"
