"""Studies on another machine by ssh: emitted models run there with Python's standard library alone."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jangin.bench import board
from jangin.study.host import Host, HostError
from jangin.study.rows import RowFile

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
FAKE = """#!/bin/sh
# the options of ssh, the host, and the command; a file tells how many connections there may still be
left=$(cat {left})
[ "$left" -gt 0 ] || {{ echo "ssh: connect to host board port 22: No route to host" >&2; exit 255; }}
echo $((left - 1)) > {left}
for last; do :; done
exec env -i PATH="{path}" HOME="{home}" TMPDIR="{home}/there" sh -c "$last"
"""
"""An ssh that runs commands here, without this process's environment."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine behind a false ssh. Calling the fixture sets how many connections there may be."""
    folder, left = tmp_path / "bin", tmp_path / "left"
    folder.mkdir()
    (tmp_path / "there").mkdir()
    python = folder / "python3"
    python.symlink_to(sys.executable)
    text = FAKE.format(left=left, path=f"{folder}:/usr/bin:/bin", home=tmp_path)
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def allow(connections: int) -> None:
        left.write_text(f"{connections}\n")

    allow(10**6)
    return allow


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a true server of ssh on this machine, which lets this user in by a key."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.skip("Debian's openssh-server isn't installed here")
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(key, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = tmp_path / "sshd_config"
    settings.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path / 'host'}\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path / 'user.pub'}\nPidFile none\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    folder, own = tmp_path / "bin", shutil.which("ssh")
    folder.mkdir()
    (folder / "ssh").write_text(
        f"#!/bin/sh\nexec {own} -i {tmp_path / 'user'} -o StrictHostKeyChecking=no "
        f'-o UserKnownHostsFile={tmp_path / "known"} "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(settings)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def settings_of(host: Host) -> dict[str, Any]:
    return {"host": host.address, "target": host.target, "about": host.about}


@pytest.mark.sampled(2)
def test_an_emitted_model_runs_with_python_alone(study: Any, fake: Any, tmp_path: Path) -> None:
    """Other engines have the reason why they don't run there. Nothing stays on the machine."""
    host = Host("ssh://board")
    assert host.target in ("x86-64-v2", "aarch64") and host.about["python"]
    rows = study("aot", "jangin", **settings_of(host))
    row = rows["aot"]
    assert not row.problem and row.median > 0 and row.calls > 0 and row.peak_bytes > 1 << 20
    assert row.error is not None and row.error < 1e-5 and row.version.startswith("Jangin")
    assert rows["jangin"].problem == "only emitted models (the engine aot) run on another machine"
    assert not [*(tmp_path / "there").iterdir()]


@pytest.mark.slow
def test_through_a_true_server(study: Any, server: str) -> None:
    host = Host(server)
    rows = study("aot", threads=(2,), **settings_of(host))
    assert not rows["aot"].problem and rows["aot"].median > 0 and (rows["aot"].error or 0.0) < 1e-5


@pytest.mark.sampled(3)
def test_a_machine_that_goes_away_is_one_error_and_the_study_goes_on(
    study: Any, fake: Callable[[int], None], tmp_path: Path
) -> None:
    """The rows so far are kept, and none has a lost connection as its problem."""
    host = Host("ssh://board")
    given = {"threads": (1, 2), **settings_of(host)}
    fake(4)  # asked once more; copied, run and removed for one thread
    with pytest.raises(HostError, match=r"ssh://board can't be reached: .*No route to host"):
        study("aot", **given)
    file = tmp_path / "report" / "rows.jsonl"
    assert [(r.threads, r.problem) for r in RowFile(file).rows] == [(1, "")]
    fake(5)  # the connection ends when the model is to be run
    (tmp_path / "left").write_text("2\n")
    with pytest.raises(HostError, match="went away: rows so far are kept; the same command goes on"):
        study("aot", **given)
    assert len(RowFile(file).rows) == 1
    fake(100)
    study("aot", **given)
    assert [(r.threads, r.problem) for r in RowFile(file).rows] == [(1, ""), (2, "")]


@pytest.mark.parametrize(
    "address",
    ["board", "http://board", "ssh://", "ssh://a:b@c", "ssh://b:port", "ssh://b/x", "ssh://-oProxy"],
)
def test_other_addresses_are_refused(address: str, fake: Any) -> None:
    with pytest.raises(ValueError, match=r"write ssh://board or ssh://user@board:2222"):
        Host(address)


def test_an_unknown_processor_needs_a_target(fake: Any) -> None:
    host = Host("ssh://board")
    host.about = {"machine": "mips64"}
    with pytest.raises(ValueError, match="has a processor 'mips64': name its target by --target"):
        _ = host.target


def test_the_program_for_boards_imports_nothing_of_others() -> None:
    """It runs alone, isolated from the packages that are installed here."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", board.__file__, "/nowhere.so", "p", "1", ""],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"error": "OSError: /nowhere.so' in done.stdout
