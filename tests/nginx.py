"""A real nginx in front of a server: its own defaults, compression on, in the foreground, on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_SECONDS = 30

CONFIG = """
daemon off;
master_process off;
error_log stderr;
pid {folder}/pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types application/json text/event-stream;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {upstream}; {directives} }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, upstream: str, directives: str = "") -> Iterator[str]:
    """The address of an nginx that passes everything on.

    :param folder: an empty one, for its files
    :param upstream: ``http://host:port``
    :param directives: more of its configuration for the location, each with its semicolon
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "nginx is not installed: apt-get install nginx-light"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, upstream=upstream, directives=directives), "utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(process, port, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"nginx ended: {log.read_text('utf-8')}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("nginx did not listen in time")
