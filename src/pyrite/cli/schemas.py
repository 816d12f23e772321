"""`pyrite schemas`: infer the schemas of payloads from the messages of a stream."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pyrite.cli.arguments import number_between, positive_int

if TYPE_CHECKING:
    from pyrite.pipeline.infer import Family

BROKER = "flight://127.0.0.1:8815"
SAMPLE = 1_000_000
_EXAMPLES = """\
examples:
  pyrite schemas infer                          the newest million messages; writes schemas.toml
  pyrite schemas infer --topic 'plant/#' --live 60 --output plant.toml
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "schemas",
        help="infer the schemas of payloads from messages",
        description="Infer topic families and the types of their payloads' fields.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    infer = actions.add_parser(
        "infer",
        help="examine a stream, print what was found, and write schemas.toml",
        description="Examine the newest messages of a stream, or those of the next seconds.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    infer.add_argument("--broker", default=BROKER, metavar="URL", help=f"default: {BROKER}")
    add_sample(infer)
    infer.add_argument(
        "--output", type=Path, default=Path("schemas.toml"), metavar="FILE", help="default: schemas.toml"
    )
    infer.add_argument("--force", action="store_true", help="overwrite FILE")
    infer.set_defaults(run=_infer)


def add_sample(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the messages to examine."""
    parser.add_argument("--stream", default="default", metavar="NAME", help="default: default")
    parser.add_argument("--topic", default="#", metavar="FILTER", help="examine these topics (default: all)")
    parser.add_argument(
        "--sample",
        type=positive_int,
        default=SAMPLE,
        metavar="N",
        help=f"examine the newest N messages (default: {SAMPLE:,})",
    )
    parser.add_argument(
        "--live",
        type=number_between(0.1, 86_400, "seconds from 0.1 to 86400"),
        metavar="SECONDS",
        help="examine the messages of the next seconds instead",
    )


def sampled(args: argparse.Namespace) -> list[Family]:
    """Read messages as the options say, and infer their families; raises PipelineError."""
    from pyrite.client.log import FlightLog
    from pyrite.pipeline.connection import credentials
    from pyrite.pipeline.errors import PipelineError
    from pyrite.pipeline.infer import infer
    from pyrite.storage.query import Query, QueryError

    try:
        with FlightLog(args.broker, retry=0, **credentials()) as log:
            bounds = log.bounds(args.stream)
            start, stop = max(bounds.first, bounds.end - args.sample), bounds.end
            if args.live is not None:
                time.sleep(args.live)
                start, stop = stop, log.bounds(args.stream).end
            topics = () if args.topic == "#" else (args.topic,)
            table = log.table(Query(args.stream, start, stop, topics, columns=("topic", "payload")))
    except (OSError, QueryError) as error:
        raise PipelineError(f"{args.broker}: {error}") from None
    found = infer(
        (topic, payload)
        for batch in table.to_batches()
        for topic, payload in zip(batch["topic"].to_pylist(), batch["payload"].to_pylist(), strict=True)
    )
    if not found:
        raise PipelineError(
            f"{args.broker}: no message of stream {args.stream!r} matches {args.topic!r} and can be read; "
            "publish some, or examine live traffic with --live"
        )
    return found


def show_families(families: list[Family], console: Console) -> None:
    """Print what was found."""
    table = Table(title=f"{len(families)} schemas", title_justify="left")
    for heading in ("schema", "topic", "topics", "format", "confidence", "field", "type", "example", "notes"):
        table.add_column(heading, overflow="fold")
    for family in families:
        head = [family.name, family.topic, f"{family.topics:,}"]
        head += [family.payloads.format, f"{family.confidence:.1%}"]
        for name, kind in family.fields.items():
            summary = family.payloads.fields.get(name)
            example = "" if summary is None else summary.example
            table.add_row(*head, name, kind, example, "; ".join(family.notes.get(name, [])))
            head = [""] * len(head)
    console.print(table)


def _infer(args: argparse.Namespace) -> int:
    from pyrite.pipeline.errors import PipelineError

    try:
        if args.output.exists() and not args.force:
            raise PipelineError(f"{args.output} already exists: pass --output FILE, or --force")
        families = sampled(args)
        show_families(families, Console())
        write_schemas(args.output, families)
    except PipelineError as error:
        print(f"pyrite schemas: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"pyrite schemas: {args.output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"Wrote {args.output}.")
    return 0


def write_schemas(path: Path, families: list[Family]) -> None:
    """Write schemas.toml, and check that a pipeline can read it."""
    from pyrite.pipeline.schemas import read_schemas

    head = "# Inferred by `pyrite schemas infer`. docs/pipelines.md explains the settings.\n\n"
    usable = [family for family in families if family.fields]
    path.write_text(head + "\n".join(family.toml() for family in usable))
    read_schemas(path)
