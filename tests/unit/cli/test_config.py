"""``ullage config check``: the verdict, every mistake, and where each setting comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.access.keys import KeyStore
from ullage.cli.main import run

Check = Callable[..., tuple[int, dict[str, tuple[str, str]], str]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Checks a file with this text: exit code, (value, source) by setting, and what was said of mistakes."""

    def run_check(text: str | None = None, *flags: str) -> tuple[int, dict[str, tuple[str, str]], str]:
        path = tmp_path / "server.toml"
        path.write_text(text or "")
        code = run(["config", "check", *([] if text is None else [str(path)]), *flags])
        out, err = capsys.readouterr()
        rows = {}
        for line in out.splitlines():
            name, _, rest = line.partition(" = ")
            value, _, source = rest.partition("# ")
            rows[name.strip()] = (value.strip(), source)
        return code, rows, err

    return run_check


def test_without_anything_all_are_defaults(check: Check) -> None:
    code, rows, err = check()
    assert (code, err) == (0, "")
    assert {source for _, source in rows.values()} == {"default"}
    assert rows["port"] == ("8000", "default")
    assert rows["max_body_bytes"] == ("8.0 MiB", "default")


def test_each_setting_tells_where_it_comes_from(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULLAGE_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("ULLAGE_PORT", "81")
    code, rows, _ = check("port = 80\nkv-memory = '64MiB'\nengine_process = false", "--port", "82")
    assert code == 0
    assert rows["port"] == ("82", "flag")
    assert rows["max_num_seqs"] == ("4", "environment")
    assert rows["kv_memory"] == ("64.0 MiB", "file")
    assert rows["engine_process"] == ("off", "file")


def test_one_mistake_does_not_hide_another(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULLAGE_MAX_NUM_SEQ", "4")
    code, rows, err = check("port = 'a'\nlog_level = 'loud'", "--drain-seconds", "-1")
    assert code == 2
    for part in (
        "port in the configuration file must be",
        "log_level in",
        "--drain-seconds must",
        "MAX_NUM_SEQ, which",
    ):
        assert part in err
    assert rows["host"] == ("127.0.0.1", "default")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 80", "did you mean port?"),
        ("port", "is not TOML"),
        ("max_held_body_bytes = '1MiB'", "but all bodies together only"),
        ("max_num_seqs = 1000", "is below max_num_seqs"),
        ("runner = 'numpy'\nthreads = 2", "the numpy runner has only"),
        ("otlp_endpoint = 'here'", "otlp_endpoint is 'here'"),
        ("limits_file = '/nowhere/limits.toml'", "can't read the limits file"),
        ("access_store = 'books.db'", "access_store has nothing to count"),
        ("tls_cert_file = '/nowhere/a.pem'\ntls_key_file = '/nowhere/b.pem'", "/nowhere/"),
        ("api_keys_file = '/nowhere/keys.db'", "there is no folder for the file of API keys"),
    ],
)
def test_what_a_server_would_refuse_is_refused(check: Check, text: str, told: str) -> None:
    code, _, err = check(text)
    assert code == 2
    assert told in err


def test_a_file_of_keys_is_looked_into_and_none_is_made(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    assert check(f"api_keys_file = '{path}'")[0] == 0
    assert not path.exists()
    path.write_text("this is no database, however long it may be")
    assert check(f"api_keys_file = '{path}'")[0] == 2
    path.unlink()
    KeyStore(path)
    assert check(f"api_keys_file = '{path}'")[0] == 0


def test_a_secret_is_taken_from_the_environment_or_a_file_and_never_shown(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULLAGE_OTLP_HEADERS", "authorization=s3cret")
    code, rows, err = check()
    assert (code, rows["otlp_headers"], err) == (0, ("(set)", "environment"), "")
    monkeypatch.delenv("ULLAGE_OTLP_HEADERS")
    (tmp_path / "secret").write_text("authorization=s3cret\n")
    monkeypatch.setenv("ULLAGE_OTLP_HEADERS_FILE", str(tmp_path / "secret"))
    assert check()[1]["otlp_headers"] == ("(set)", "environment")
    monkeypatch.setenv("ULLAGE_OTLP_HEADERS_FILE", str(tmp_path / "missing"))
    assert check()[0] == 2


def test_a_secret_in_the_file_or_among_flags_is_refused(check: Check) -> None:
    code, _, err = check("otlp_headers = 'authorization=s3cret'")
    assert code == 2
    assert "set ULLAGE_OTLP_HEADERS, or ULLAGE_OTLP_HEADERS_FILE" in err
    assert "s3cret" not in err
    assert "No such option" in check(None, "--otlp-headers", "a=b")[2]


def test_a_model_that_is_not_there_is_told(check: Check) -> None:
    code, _, err = check(None, "--model", "/nowhere/model.gguf")
    assert code == 2
    assert "neither a model in the store" in err


def test_a_model_that_fits_is_fine_and_one_that_does_not_is_told(check: Check, tmp_path: Path) -> None:
    model_file = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    assert check(None, "--model", str(model_file), "--max-num-seqs", "1")[0] == 0
    code, _, err = check(None, "--model", str(model_file), "--kv-memory", "100000GiB")
    assert code == 2
    assert "error: " in err
