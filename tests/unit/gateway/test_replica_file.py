from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.gateway.replica_file import ReplicaConfig, read_replicas

A = '[[replicas]]\nname = "a"\nurl = "http://127.0.0.1:8000"\n'


def test_a_file_names_replicas(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    path = tmp_path / "replicas.toml"
    path.write_text(
        A + '[[replicas]]\nname = "b"\nurl = "https://b.example/"\nweight = 5\n'
        'health_path = "/health"\nhealth_key_file = "key"\n'
    )
    assert read_replicas(path) == (
        ReplicaConfig("a", "http://127.0.0.1:8000", 1.0, "/health/ready", None),
        ReplicaConfig("b", "https://b.example", 5.0, "/health", "secret"),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no replica"),
        ("replicas = 1", "names no replica"),
        ("replicas = [1]", "names no replica"),
        ("[[replica]]", "which is no setting"),
        ("[[", "is not TOML"),
        (A + "wait = 1", "which is no setting"),
        (A + A.replace("8000", "8001"), "two replicas with the name a"),
        (A + A.replace('"a"', '"b"'), "two replicas with the url"),
        (A.replace('"a"', '"a b"'), "name must be"),
        (A.replace('"a"', "1"), "name must be"),
        (A.replace("http:", "ftp:"), "must be like http://host:port"),
        (A.replace(":8000", ":x"), "must be like http://host:port"),
        (A.replace(":8000", ":8000/v1"), "must be like http://host:port"),
        (A + "weight = 0", "a number above 0"),
        (A + "weight = inf", "a number above 0"),
        (A + "weight = true", "a number above 0"),
        (A.replace("127.0.0.1", "-ß.."), "must be like http://host:port"),
        (A.replace("127.0.0.1", "a\\tb"), "must be like http://host:port"),
        (A + 'health_path = "x"', "must be like /health/ready"),
        (A + 'health_path = "/ä"', "must be like /health/ready"),
        (A + 'health_path = "/a#b"', "must be like /health/ready"),
        (A + 'health_path = "/a\\u0000"', "must be like /health/ready"),
        (A + "health_key_file = 1", "must be the name of a file"),
        (A + 'health_key_file = "none"', "can't read the health_key_file of a"),
        (A + 'health_key_file = "empty"', "must hold one line"),
    ],
)
def test_a_file_that_cannot_be_honoured_is_refused(tmp_path, text, complaint):
    (tmp_path / "empty").write_text("\n")
    path = tmp_path / "replicas.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_replicas(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="can't read"):
        read_replicas(tmp_path / "none.toml")
