"""``ullage gateway``: one address for several servers."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ullage.base.background_stream import BackgroundStream
from ullage.base.errors import ConfigError
from ullage.base.logs import set_up_logging
from ullage.cli.settings import GATEWAY
from ullage.cli.settings_flags import SettingsCommand, load_all


@click.command(cls=SettingsCommand, sections=GATEWAY)
@click.argument("replicas", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with lines like max_connections = 500. Flags and ULLAGE_... variables win over it.",
)
def gateway(replicas: Path, config_path: Path | None, **flags: object) -> int:
    """Spread requests over the servers that the TOML file REPLICAS names.

    \b
    [[replicas]]
    name = "a"
    url = "http://127.0.0.1:8000"
    weight = 1                          # its share, relative to the others
    health_path = "/health/ready"       # 200: it can be asked
    health_key_file = "key"             # only where that address needs an API key

    SIGHUP reads that file anew; a file that can't be honoured changes nothing.
    """
    (config,) = load_all(GATEWAY, flags, config_path)
    if find_spec("httpx") is None:
        raise ConfigError("the gateway needs httpx", hint="pip install 'ullage[gateway]'")
    set_up_logging(config.log_level, config.log_format, BackgroundStream(sys.stderr))

    from ullage.gateway.gateway import Gateway
    from ullage.gateway.replica_file import read_replicas
    from ullage.gateway.server import serve

    front = Gateway(config, read_replicas(replicas), lambda: read_replicas(replicas))
    return serve(front, lambda address: click.echo(f"gateway on {address}/v1  (Ctrl-C stops)"))
