"""The configuration in pyrite.toml and on the command line: settings, defaults, validation.

Every error names the file, the key, its value, and what is expected.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from pyrite.access.options import AccessError, AccessOptions
from pyrite.access.rules import ACTIONS, Rule
from pyrite.broker.catalog import LISTED, POLICIES, TopicOptions
from pyrite.broker.limits import Limits
from pyrite.broker.quotas import Quota, QuotaOptions
from pyrite.cluster.options import ClusterOptions
from pyrite.errors import PyriteError
from pyrite.process.endpoints import origin_of
from pyrite.process.logs import FORMATS, LogOptions, parse_levels
from pyrite.process.proxy import ProxyOptions, networks_of
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.server.cluster_settings import CLUSTER_RANGES, problem_of
from pyrite.server.listeners import Listener, parse_listener
from pyrite.storage.options import COMPRESSIONS, DEFAULT, FSYNC, STREAM_NAME, StreamOptions
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic, covers

CERTIFICATE_USERS = ("", "subject", "san")
DEFAULTS = "defaults"
DEFAULT_LISTENERS = (
    "mqtt://127.0.0.1:1883",
    "ws://127.0.0.1:8083/mqtt",
    "line://127.0.0.1:1373",
    "udp://127.0.0.1:1234",
    "flight://127.0.0.1:8815",
    "http://127.0.0.1:8080",
)
TLS_VERSIONS = ("1.2", "1.3")
NEVER_CAPTURED = ("$SYS", "$share", "$pyrite")
"""First levels of topics that no stream captures."""


class ConfigError(PyriteError):
    """The configuration is invalid."""


@dataclass(slots=True)
class Tls:
    """The [tls] table: for mqtts://, wss://, flights:// and https:// listeners."""

    certificate: str = ""
    """PEM file with the server's certificate, and any intermediate certificates."""
    key: str = ""
    """PEM file with the private key; not needed if the certificate's file contains the key."""
    client_ca: str = ""
    """PEM file with the authorities of client certificates."""
    require_client_certificate: bool = False
    """Refuse clients without a certificate of one of these authorities."""
    certificate_user: str = ""
    """The part of a client certificate with the user name: subject (common name), san, or empty for none."""
    minimum_version: str = "1.2"
    """The minimum TLS version: 1.2 or 1.3."""


@dataclass(slots=True)
class HttpOptions:
    """The [http] table: for http:// and https:// listeners."""

    public_url: str = ""
    """The URL of the dashboard behind a proxy: https://host/path."""


@dataclass(slots=True)
class TablesOptions:
    """The [tables] table: for streams with table = true."""

    location: str = ""
    """The URL of the data folder as readers of tables see it, if they see it at another place."""


@dataclass(slots=True)
class Config:
    """All settings."""

    listen: list[str] = field(default_factory=lambda: list(DEFAULT_LISTENERS))
    """URLs to listen on: mqtt://host:port, mqtts://, ws://host:port/path, wss://, line://, udp://, flight://,
    flights://, http://, https://, unix://."""
    data: str = "pyrite-data"
    """The folder for the log and the state."""
    ephemeral: bool = False
    """Keep nothing on disk."""
    log_level: str = "info"
    """Level of the log output: debug, info, warning or error; also by part, as in info,access=debug."""
    logging: LogOptions = field(default_factory=LogOptions)
    tls: Tls = field(default_factory=Tls)
    http: HttpOptions = field(default_factory=HttpOptions)
    proxy: ProxyOptions = field(default_factory=ProxyOptions)
    limits: Limits = field(default_factory=Limits)
    mqtt: MqttOptions = field(default_factory=MqttOptions)
    line: LineOptions = field(default_factory=LineOptions)
    topics: TopicOptions = field(default_factory=TopicOptions)
    tables: TablesOptions = field(default_factory=TablesOptions)
    quotas: QuotaOptions = field(default_factory=QuotaOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    stream: list[StreamOptions] = field(default_factory=lambda: [StreamOptions()])
    """The streams of the log; the stream `default` captures what no other stream captures."""
    source: str = field(default=DEFAULTS, metadata={"internal": True})
    """The file of the settings, for errors; not a setting itself."""
    said: frozenset[str] = field(default=frozenset(), metadata={"internal": True})
    """Keys set on the command line; not a setting itself."""

    def source_of(self, key: str) -> str:
        """Return the origin of a setting, for errors."""
        return "the command line" if key in self.said else self.source

    def listeners(self) -> list[Listener]:
        """Return the parsed listeners; without a log, those of Flight are omitted."""
        parsed = [parse_listener(url) for url in self.listen]
        return [one for one in parsed if not one.flight] if self.ephemeral else parsed


_RANGES: dict[str, tuple[float, float]] = {
    "limits.max_packet_size": (64, 268_435_460),
    "limits.before_login": (1_024, 268_435_460),
    "limits.max_inflight": (1, 65_535),
    "limits.receive_maximum": (1, 65_535),
    "limits.max_topic_levels": (1, 65_536),
    "limits.connect_timeout": (0.1, 3_600),
    "mqtt.maximum_qos": (0, 2),
    "mqtt.topic_alias_maximum": (0, 65_535),
    "mqtt.server_keep_alive": (0, 65_535),
    "mqtt.max_session_expiry": (0, 4_294_967_295),
    "mqtt.sys_interval": (0, 86_400),
    "line.ping_interval": (0.01, 86_400),
    "line.missed_rounds": (0, 1_000),
    "line.udp_timeout": (0.1, 86_400),
    "line.max_session_expiry": (0, 4_294_967_295),
    "stream.retention_age": (0, 2**63 - 1),
    "stream.retention_bytes": (0, 2**63 - 1),
    "stream.segment_bytes": (64 * 1024, 2**40),
    "stream.segment_age": (1, 2**63 - 1),
    "stream.fsync_interval": (0.001, 3_600),
    **CLUSTER_RANGES,
    "stream.table_delay": (1, 86_400),
    "stream.snapshots_keep": (1, 2**31),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "logging.format": FORMATS,
    "tls.minimum_version": TLS_VERSIONS,
    "tls.certificate_user": CERTIFICATE_USERS,
    "topics.policy": POLICIES,
    "stream.fsync": FSYNC,
    "stream.compression": COMPRESSIONS,
}
UNLIMITED = "unlimited"
"""The value of a quota without limit."""
_SECRET = re.compile("pass|secret|token|credential", re.IGNORECASE)
_USER_INFORMATION = re.compile("//.*@")
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def load(path: Path | None, override: Callable[[Config], Iterable[str]] | None = None) -> Config:
    """Read and check a configuration file, or return the defaults without one.

    `override` applies the command line: it changes settings, and returns their keys.
    """
    config = Config() if path is None else _read(path)
    if override is not None:
        config.said = frozenset(override(config))
    check(config)
    return config


def _read(path: Path) -> Config:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    config = Config(source=str(path))
    _fill(config, values, "", str(path))
    return config


def check(config: Config) -> None:
    """Raise ConfigError for invalid values and combinations."""
    source = config.source
    try:
        parse_levels(config.log_level)
    except ValueError as error:
        raise ConfigError(
            f"{config.source_of('log_level')}: log_level = {config.log_level!r}: {error}"
        ) from None
    if config.http.public_url:
        try:
            origin_of(config.http.public_url)
        except ValueError as error:
            shown = _shown("http.public_url", config.http.public_url)
            raise ConfigError(f"{source}: http.public_url = {shown}: {error}") from None
    _check_listeners(config, config.source_of("listen"))
    _check_topics(config.topics, source)
    _check_rules(config.access.rule, source)
    for key, how in (("users", "; create one with pyrite passwd"), ("jwt_keys", "")):
        file = getattr(config.access, key)
        if file and not Path(file).is_file():
            shown = _shown(f"access.{key}", file)
            raise ConfigError(f"{source}: access.{key} = {shown}: expected an existing file{how}")
    _check_streams(config.stream, source)
    _check_tables(config)
    _check_tls(config.tls, source)
    try:
        networks_of(config.proxy)
    except ValueError as error:
        raise ConfigError(f"{source}: proxy.trusted = {config.proxy.trusted!r}: {error}") from None
    problem = problem_of(config.cluster, config.ephemeral)
    if problem is not None:
        key, what = problem
        where = config.source_of(f"cluster.{key}")
        shown = _shown(f"cluster.{key}", getattr(config.cluster, key))
        raise ConfigError(f"{where}: cluster.{key} = {shown}: {what}")


def _check_listeners(config: Config, source: str) -> None:
    if not config.listen:
        raise ConfigError(f"{source}: listen = []: expected at least one listener")
    for url in config.listen:
        try:
            listener = parse_listener(url)
        except ValueError as error:
            raise ConfigError(f"{source}: listen = {_shown('listen', url)}: {error}") from None
        if listener.flight and config.ephemeral and config.listen != [*DEFAULT_LISTENERS]:
            raise ConfigError(
                f"{source}: listen = {url!r}: without a log on disk, there is nothing to read over Flight"
            )
        public = bool(config.http.public_url) and (listener.http or listener.websocket)
        hidden = listener.local and not public
        if not (hidden or config.access.anonymous or _can_authenticate(config, listener)):
            raise ConfigError(
                f"{source}: listen = {url!r}: other machines can connect, but there are no users. Create "
                "them with 'pyrite passwd FILE NAME' and set access.users to the file, or allow anonymous "
                "clients with --allow-anonymous (access.anonymous = true)"
            )
        if listener.tls and not config.tls.certificate:
            raise ConfigError(
                f"{source}: listen = {url!r}: requires tls.certificate (and tls.key), "
                'as in [tls] certificate = "server.pem"'
            )


def _can_authenticate(config: Config, listener: Listener) -> bool:
    """Return True if some client could authenticate on a listener."""
    access, tls = config.access, config.tls
    if access.jwt_keys or config.mqtt.authenticator:
        return True
    # A certificate is needed if it is required, or if there are rules, which grant nothing without a name.
    needed = tls.require_client_certificate or (access.in_use and not listener.flight)
    named = tls.certificate_user == "san" if listener.flight else bool(tls.certificate_user)
    if listener.tls and named and needed:
        return True
    if not access.users:
        return False
    from pyrite.access.users import read_users  # argon2 is slow to import

    try:
        return bool(read_users(Path(access.users)))
    except AccessError as error:
        raise ConfigError(f"{config.source}: access.users: {error}") from None


def _check_tls(tls: Tls, source: str) -> None:
    for key in ("certificate", "key", "client_ca"):
        file = getattr(tls, key)
        if file and not Path(file).is_file():
            raise ConfigError(f"{source}: tls.{key} = {file!r}: expected an existing file")
    for key in ("require_client_certificate", "certificate_user"):
        value = getattr(tls, key)
        if value and not tls.client_ca:
            shown = json.dumps(value)
            raise ConfigError(f"{source}: tls.{key} = {shown}: requires tls.client_ca")


def _check_topics(topics: TopicOptions, source: str) -> None:
    for name in topics.names:
        try:
            check_topic(name.encode())
            if name.startswith("$"):
                raise InvalidTopic("topics that begin with $ are reserved for the broker")
        except (InvalidTopic, UnicodeEncodeError) as error:
            raise ConfigError(f"{source}: topics.names = {name!r}: {error}") from None
    if topics.policy == LISTED and not topics.names:
        raise ConfigError(
            f"{source}: topics.policy = {LISTED!r}: expected topics.names to name at least one topic"
        )


def _check_rules(rules: list[Rule], source: str) -> None:
    for number, rule in enumerate(rules, 1):
        where = f"{source}: [[access.rule]] {number}"
        if not rule.users and not rule.groups:
            raise ConfigError(f"{where}: expected users or groups")
        for action in ACTIONS:
            for topic in getattr(rule, action):
                try:
                    check_filter(topic.encode())
                except (InvalidTopic, UnicodeEncodeError) as error:
                    raise ConfigError(f"{where}: {action} = {topic!r}: {error}") from None


def _check_streams(streams: list[StreamOptions], source: str) -> None:
    names: set[str] = set()
    taken: list[tuple[bytes, str]] = []
    for stream in streams:
        where = f"{source}: stream.name = {stream.name!r}"
        if not STREAM_NAME.fullmatch(stream.name):
            raise ConfigError(f"{where}: expected up to 64 letters, digits, - and _")
        if stream.name in names:
            raise ConfigError(f"{where}: duplicate stream name")
        names.add(stream.name)
        if not stream.topics:
            raise ConfigError(f"{where}: stream.topics = []: expected at least one topic filter")
        for topic in stream.topics:
            try:
                check_filter(topic.encode())
                if topic.split("/")[0] in NEVER_CAPTURED:
                    raise InvalidTopic(f"no stream captures {', '.join(NEVER_CAPTURED)}")
            except (InvalidTopic, UnicodeEncodeError) as error:
                raise ConfigError(f"{where}: stream.topics = {topic!r}: {error}") from None
        filters = [topic.encode() for topic in stream.topics]
        before = [next((name for one, name in taken if covers(one, mine)), None) for mine in filters]
        if stream.name != DEFAULT and None not in before:
            raise ConfigError(
                f"{where}: stream.topics = {stream.topics!r}: the earlier stream {before[0]!r} captures "
                "all of them; put this stream before it"
            )
        taken += [(one, stream.name) for one in filters]


def _check_tables(config: Config) -> None:
    if config.tables.location and not urlsplit(config.tables.location).scheme:
        shown = _shown("tables.location", config.tables.location)
        raise ConfigError(
            f"{config.source}: tables.location = {shown}: expected a URL, as in file:///mnt/pyrite"
        )
    for stream in config.stream:
        where = f"{config.source}: stream.table = true for {stream.name!r}"
        if stream.table and not config.ephemeral and find_spec("pyiceberg") is None:
            raise ConfigError(f"{where}: requires pyiceberg; install it with pip install 'pyrite[tables]'")


def _tables(key: str, values: Any, source: str) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ConfigError(f"{source}: {key} = {values!r}: expected tables, [[{key}]]")
    return values


def _fill_rules(values: Any, source: str) -> list[Rule]:
    """Read the [[access.rule]] tables."""
    rules = [(Rule(), table) for table in _tables("access.rule", values, source)]
    for rule, table in rules:
        _fill(rule, table, "access.rule.", source)
    return [rule for rule, _ in rules]


def _fill_quotas(kind: str, values: Any, source: str) -> dict[str, Quota]:
    """Read the [quotas.user.NAME] or [quotas.group.NAME] tables."""
    key = f"quotas.{kind}"
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: {key} = {values!r}: expected tables, [{key}.NAME]")
    quotas = {}
    for name, table in values.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {key}.{name} = {table!r}: expected a table, [{key}.{name}]")
        quotas[name] = Quota()
        _fill(quotas[name], table, f"{key}.{name}.", source)
    return quotas


def _quota(key: str, value: Any, source: str) -> float:
    """Return the value of a quota."""
    if value == UNLIMITED:
        return inf
    least_said, least = ("more than 0", 0.001) if key.endswith("_rate") else ("at least 0", 0)
    if type(value) not in (int, float) or not least <= value < 2**63:
        raise ConfigError(
            f'{source}: {key} = {_shown(key, value)}: expected a number of {least_said}, or "{UNLIMITED}"'
        )
    return float(value)


def _fill_streams(values: Any, source: str) -> list[StreamOptions]:
    """Read the [[stream]] tables; the default stream is always there, and comes last."""
    values = _tables("stream", values, source)
    streams = []
    for table in values:
        if "name" not in table:
            raise ConfigError(f"{source}: [[stream]] without a name: expected name = a text")
        stream = StreamOptions()
        _fill(stream, table, "stream.", source)
        streams.append(stream)
    if all(stream.name != DEFAULT for stream in streams):
        streams.append(StreamOptions())
    return sorted(streams, key=lambda stream: stream.name == DEFAULT)


def _fill(target: Any, values: dict[str, Any], prefix: str, source: str) -> None:
    hints = get_type_hints(type(target))
    kinds = {one.name: hints[one.name] for one in fields(target) if not one.metadata}
    for name, value in values.items():
        key = prefix + name
        if name not in kinds:
            known = ", ".join(prefix + known for known in kinds)
            shown = _shown(key, value)
            raise ConfigError(f"{source}: {key} = {shown}: no such key; expected one of {known}")
        if kinds[name] == list[StreamOptions]:
            setattr(target, name, _fill_streams(value, source))
            continue
        if kinds[name] == list[Rule]:
            setattr(target, name, _fill_rules(value, source))
            continue
        if kinds[name] == dict[str, Quota]:
            setattr(target, name, _fill_quotas(name, value, source))
            continue
        if isinstance(target, Quota):
            setattr(target, name, _quota(key, value, source))
            continue
        current = getattr(target, name)
        if is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{source}: {key} = {value!r}: expected a table, [{key}]")
            _fill(current, value, key + ".", source)
        else:
            setattr(target, name, _checked(key, value, kinds[name], source))


def _checked(key: str, value: Any, kind: Any, source: str) -> Any:
    expected = None
    if kind == list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            expected = "a list of texts"
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    elif type(value) is not kind:
        expected = _TYPE_NAMES[kind]
    if expected is None and key in _CHOICES and value not in _CHOICES[key]:
        expected = "one of " + ", ".join(_CHOICES[key])
    if expected is None and kind in (int, float):
        low, high = _RANGES.get(key, (1, 2**63 - 1))
        if not low <= value <= high:
            expected = f"a number from {low} to {high}"
    if expected is not None:
        raise ConfigError(f"{source}: {key} = {_shown(key, value)}: expected {expected}")
    return value


def _shown(key: str, value: Any) -> str:
    """Return a value as text for an error, unless it may be a secret."""
    if key != "access.users" and (
        (key.startswith("access.") and not key.startswith("access.rule")) or _SECRET.search(key)
    ):
        return "(not shown)"
    return _USER_INFORMATION.sub("//(not shown)@", repr(value))


def dump(config: Config) -> str:
    """Return a configuration as TOML."""
    lines: list[str] = []
    _dump(config, "", lines)
    return "\n".join(lines) + "\n"


def _dump(table: Any, prefix: str, lines: list[str]) -> None:
    tables = []
    for one in fields(table):
        if one.metadata:
            continue
        value = getattr(table, one.name)
        if is_dataclass(value):
            tables.append((f"[{prefix}{one.name}]", value))
        elif isinstance(value, dict):
            tables.extend((f"[{prefix}{one.name}.{json.dumps(key)}]", table) for key, table in value.items())
        elif value is None:
            continue
        elif isinstance(table, Quota):
            text = f'"{UNLIMITED}"' if value == inf else f"{value:g}" if value % 1 else f"{value:.0f}"
            lines.append(f"{one.name} = {text}")
        elif isinstance(value, list) and value and is_dataclass(value[0]):
            tables.extend((f"[[{prefix}{one.name}]]", table) for table in value)
        else:
            # JSON's scalars and lists are valid TOML, except for two kinds of escapes.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{one.name} = {text}")
    for name, value in tables:
        lines.extend(("", name))
        _dump(value, name.strip("[]") + ".", lines)
