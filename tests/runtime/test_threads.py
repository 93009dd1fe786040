"""The thread count follows the affinity mask and the control groups' quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jangin.runtime.threads import default_threads


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return tmp_path


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_affinity_alone(root: Path) -> None:
    assert default_threads(root) == 16


@pytest.mark.parametrize(
    ("limits", "threads"),
    [
        ({"a/b/cpu.max": "250000 100000"}, 3),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4),
        ({"a/b/cpu.max": "10000 100000"}, 1),
        ({"a/b/cpu.max": "6400000 100000"}, 16),
        ({"a/b/cpu.max": "garbage"}, 16),
        ({"cpu.max": "200000 100000"}, 2),
    ],
)
def test_version_2(root: Path, limits: dict[str, str], threads: int) -> None:
    put(root, "proc/self/cgroup", "0::/a/b\n")
    for path, text in limits.items():
        put(root, f"sys/fs/cgroup/{path}", text)
    assert default_threads(root) == threads


@pytest.mark.parametrize(("quota", "threads"), [("150000", 2), ("-1", 16), ("100000", 1)])
@pytest.mark.parametrize("folder", ["cpu,cpuacct/docker/x", "cpu/docker", "cpu"])
def test_version_1(root: Path, folder: str, quota: str, threads: int) -> None:
    put(root, "proc/self/cgroup", "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n")
    put(root, f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us", quota + "\n")
    put(root, f"sys/fs/cgroup/{folder}/cpu.cfs_period_us", "100000\n")
    assert default_threads(root) == threads


def test_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
