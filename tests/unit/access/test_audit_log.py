"""The file of the audit log, and the thread that writes it."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from ullage.access import audit_log
from ullage.access.audit_log import AuditLog
from ullage.base.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.log"


def lines(*paths):
    return [json.loads(line) for path in paths for line in path.read_text("ascii").splitlines()]


def open_log(path, **others):
    return AuditLog(path, **{"max_bytes": 1 << 20, "num_files": 3} | others)


def write(log, number):
    log.write(lambda: {"number": number})


def test_all_that_was_told_is_written_at_the_end_in_order_to_a_file_of_its_owner_alone(path):
    path.touch(mode=0o644)
    log = open_log(path)
    for number in range(1000):
        write(log, number)
    log.close()
    assert [line["number"] for line in lines(path)] == list(range(1000))
    assert path.stat().st_mode & 0o777 == 0o600
    assert log.num_lost == 0


def test_a_second_start_appends(path):
    for number in range(2):
        log = open_log(path)
        write(log, number)
        log.close()
    assert lines(path) == [{"number": 0}, {"number": 1}]


def test_a_flood_fills_no_more_than_its_files(path, tmp_path):
    log = open_log(path, max_bytes=1000)
    for number in range(1000):
        write(log, number)
    log.close()
    files = [tmp_path / name for name in ("audit.log.2", "audit.log.1", "audit.log")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 1000 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    kept = [line["number"] for line in lines(*files)]
    assert kept == list(range(1000 - len(kept), 1000))


def test_what_a_client_wrote_stays_on_its_line(path):
    log = open_log(path)
    log.write(lambda: {"path": '/x\n{"forged": 1}\r\u2028\x1b[2J\x00\ud800"'})
    log.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert path.read_bytes().isascii()
    assert b"\x1b" not in path.read_bytes()


def test_lines_beyond_the_bound_are_counted_and_the_log_tells_how_many_it_lost(path):
    log = open_log(path, max_queued_bytes=2 * audit_log.LINE_BYTES)
    begun, go_on = threading.Event(), threading.Event()

    def slow_line():
        begun.set()
        go_on.wait()
        return {"number": 0}

    log.write(slow_line)
    assert begun.wait(10)
    for number in range(1, 11):
        write(log, number)
    assert log.num_lost == 9
    assert not log.keeps_up
    go_on.set()
    log.close()
    told = lines(path)
    assert [line["lines"] for line in told if line.get("event") == "lines_lost"] == [9]
    assert [line["number"] for line in told if "number" in line] == [0, 1]


def test_a_full_disk_is_told_once_and_nothing_is_lost_when_there_is_room_again(path, monkeypatch, caplog):
    monkeypatch.setattr(audit_log, "RETRY_SECONDS", 0.001)
    tries, real_write = [], os.write
    tried_thrice, has_room = threading.Event(), threading.Event()

    def write_to_full_disk(file, line):
        if has_room.is_set():
            return real_write(file, line)
        tries.append(line)
        if len(tries) == 3:
            tried_thrice.set()
        return real_write(file, line[:5])  # half a line fits

    monkeypatch.setattr(os, "write", write_to_full_disk)
    log = open_log(path)
    write(log, 0)
    assert tried_thrice.wait(10)
    assert log.is_failing
    written = threading.Event()
    log.write(lambda: written.set() or {"number": 1})
    has_room.set()
    assert written.wait(10)
    log.close()
    assert lines(path) == [{"number": 0}, {"number": 1}]
    assert log.num_lost == 0
    assert len([record for record in caplog.records if "can't be written" in record.message]) == 1


def test_a_log_that_fails_to_the_end_says_how_much_it_lost(path, monkeypatch, caplog):
    def fail(file, line):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    log = open_log(path)
    for number in range(3):
        write(log, number)
    log.close()
    assert log.num_lost == 3
    assert "lost 3 lines" in caplog.text


@pytest.mark.parametrize("take_away", [os.unlink, lambda path: os.rename(path, f"{path}.old")])
def test_a_file_that_was_moved_or_deleted_is_made_anew(path, take_away):
    log = open_log(path)
    written = threading.Event()
    write(log, 0)
    log.write(lambda: written.set() or {"number": 1})
    assert written.wait(10)
    write(log, 2)
    log.close()
    log = open_log(path)
    take_away(path)
    write(log, 3)
    log.close()
    assert lines(path) == [{"number": 3}]


def test_a_file_that_can_not_be_had_is_refused_at_the_start(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "link", tmp_path / "pipe", tmp_path / "none" / "audit.log"):
        with pytest.raises(ConfigError, match="can't write the audit log"):
            open_log(path)


def test_what_comes_after_the_end_is_counted(path):
    log = open_log(path)
    log.close()
    write(log, 0)
    log.close()
    assert log.num_lost == 1
    assert lines(path) == []
