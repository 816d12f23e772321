"""`pyrite serve`: start the broker."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from pyrite.cli.errors import with_name
from pyrite.errors import PyriteError
from pyrite.process.logs import FORMATS, parse_levels, start_logging, stop_logging
from pyrite.process.plain_arrow import keep_pandas_out
from pyrite.protocols.events import events
from pyrite.server import cluster_settings
from pyrite.server import config as configuration

_EXAMPLES = """\
examples:
  pyrite serve
        with defaults: mqtt://127.0.0.1:1883, ws://127.0.0.1:8083/mqtt,
        line://127.0.0.1:1373, udp://127.0.0.1:1234, flight://127.0.0.1:8815 and
        http://127.0.0.1:8080 with the dashboard
  pyrite serve --config pyrite.toml --listen mqtt://0.0.0.0:1883
        reachable from other machines, with the users named in the file (pyrite passwd --help)
  pyrite serve --listen mqtt://127.0.0.1:0 --ephemeral
        on a free port, with nothing on disk
  pyrite serve --config pyrite.toml
        with settings from a file
  pyrite serve --print-config > pyrite.toml
        write a file with every setting
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="start the broker",
        description="Start the broker. It runs until Ctrl-C or SIGTERM.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="read settings from this TOML file")
    parser.add_argument(
        "--listen",
        action="append",
        metavar="URL",
        help="listen on this URL instead of the defaults: mqtt://host:port, mqtts://, "
        "ws://host:port/path, wss://, line://, udp://, flight://, flights://, http://, "
        "https://, unix:///path; port 0 picks a free port; may be repeated",
    )
    parser.add_argument("--data", metavar="DIR", help="the data folder")
    parser.add_argument("--ephemeral", action="store_true", help="keep nothing on disk")
    parser.add_argument(
        "--allow-anonymous", action="store_true", help="accept clients without a user name, on every listener"
    )
    parser.add_argument("--log-format", choices=FORMATS, help="text, or one JSON object per line")
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warning or error; also per area, as in access=debug,log=info (areas: "
        "access, connections, flight, http, log, server)",
    )
    cluster_settings.add_options(parser)
    parser.add_argument("--print-config", action="store_true", help="print the settings in force and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    read = partial(configuration.load, args.config, partial(_override, args))
    try:
        config = read()
        if args.print_config:
            sys.stdout.write(configuration.dump(config))
            return 0
    except configuration.ConfigError as error:
        print(f"pyrite serve: {error}", file=sys.stderr)
        return 2
    return start(config, _say, read)


def _override(args: argparse.Namespace, config: configuration.Config) -> list[str]:
    """Apply the command line over the file's settings; return the keys that were overridden."""
    config.listen = args.listen or config.listen
    config.data = args.data or config.data
    config.log_level = args.log_level or config.log_level
    config.logging.format = args.log_format or config.logging.format
    config.ephemeral = config.ephemeral or args.ephemeral
    config.access.anonymous = config.access.anonymous or args.allow_anonymous
    keys = [key for key in ("listen", "log_level") if getattr(args, key)]
    return keys + cluster_settings.override(args, config.cluster)


def start(
    config: configuration.Config,
    say: Callable[[str], None],
    reread: Callable[[], configuration.Config] | None = None,
    program: str = "pyrite serve",
) -> int:
    """Run a broker until it is stopped, and return the exit code.

    `say` prints status lines. `reread` loads the settings again at SIGHUP. Error messages start with
    `program`.
    """
    # Until the server installs its handler, SIGHUP must not end the process. Settings were read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handler = start_logging(parse_levels(config.log_level), config.logging.format)
    events.most = config.logging.connection_lines
    try:
        keep_pandas_out()
        from pyrite.server.run import serve  # with Arrow, which the other commands need not wait for

        uvloop.run(serve(config, say, reread))
    except configuration.ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except PyriteError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{program}: {with_name(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        stop_logging(handler)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
