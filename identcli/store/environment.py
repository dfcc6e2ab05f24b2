"""Where and with what a run was made: command, machine, versions, commit."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("ident", "torch", "numpy", "hydra-core", "omegaconf", "pydantic", "pyarrow", "safetensors", "matplotlib")
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def describe() -> dict[str, Any]:
    """Everything about this process that the results may depend on, without importing any of the packages."""
    return {
        "command": list(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "usable_cores": _usable_cores()},
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "git": _git(Path(__file__).parent),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The processor's name as Linux tells it; elsewhere, or on processors without one, what Python knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _git(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that tracks this package and whether tracked files differ from it; None without one."""
    # A package installed into an environment inside somebody's checkout must not report that checkout's commit.
    if _answer(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _answer(folder, "rev-parse", "HEAD")
    changes = _answer(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _answer(folder: Path, *arguments: str) -> str | None:
    """What git says, or None when it fails, is missing or takes too long. It never takes a lock."""
    # Inside a git hook GIT_DIR and the like point to the user's repository, not to this package's.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=3, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
