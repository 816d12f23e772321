"""pyrite.toml: its contents, and the message for every mistake."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pyrite.access.rules import Rule
from pyrite.broker.quotas import Quota
from pyrite.cluster.options import ClusterOptions
from pyrite.server.config import Config, ConfigError, check
from pyrite.storage.options import StreamOptions

from .conftest import Certificates, Serve
from .peers import run_refused, run_serve

# A value for every key that is not its default.
EVERYTHING = """\
listen = ["unix:///run/pyrite/socket", "ws://[::1]:9001/path"]
data = "elsewhere"
ephemeral = true
log_level = "debug"

[logging]
format = "json"
connection_lines = 5

[tls]
certificate = "SERVER"
key = "SERVER"
client_ca = "AUTHORITY"
require_client_certificate = true
certificate_user = "san"
minimum_version = "1.3"

[http]
public_url = "https://broker.example/pyrite"

[proxy]
trusted = ["10.0.0.0/8", "::1"]

[limits]
max_packet_size = 268435460
max_connections = 10
max_connections_per_address = 9
before_login = 32768
connect_timeout = 0.5
max_inflight = 65535
receive_maximum = 1
max_subscriptions_per_client = 8
max_topic_levels = 7
max_created_topics = 11
max_retained_messages = 6
retained_bytes = 12
max_waiting_bytes = 5
max_queued_messages = 4
max_queued_bytes = 9223372036854775807
max_buffered_bytes = 2
max_sessions = 3
max_staged_bytes = 4

[mqtt]
maximum_qos = 0
retain_available = false
wildcard_subscriptions = false
shared_subscriptions = false
subscription_identifiers = false
topic_alias_maximum = 0
use_topic_aliases = false
server_keep_alive = 65535
max_session_expiry = 0
response_information = "answers/"
server_reference = "other.example.org"
check_payload_format = true
authenticator = "module:factory"
sys_interval = 0.0

[line]
ping_interval = 1.5
missed_rounds = 1
udp_timeout = 20.0
max_session_expiry = 0

[topics]
policy = "listed"
names = ["news", "weather/temp"]

[tables]
location = "file:///mnt/pyrite"

[quotas]

[quotas.default]
sessions = 100
connections = 50
subscriptions = 1000
consumers = 0
retained_messages = 10
retained_bytes = 100000
stored_bytes = 1000000000
message_rate = 0.5
byte_rate = 1000000
concurrent_reads = 4

[quotas.user."ann"]
sessions = "unlimited"

[quotas.group."all devices"]
message_rate = "unlimited"

[access]
users = "SERVER"
anonymous = true
jwt_keys = "SERVER"
jwt_audience = "pyrite"
jwt_issuer = "issuer"
jwt_user = "name"
jwt_groups = "roles"

[[access.rule]]
users = ["ann", "*", "anonymous"]
groups = ["ops"]
publish = ["a/%u/#"]
subscribe = ["#", "$SYS/#"]
pull = ["a/%c"]
admin = ["+/b"]

[cluster]
name = ""
node = "a"
engine = "nats://h1:4222,nats://h2:4222"
routes = ["h1:6222"]
listen = "h1:6222"
port = 4222
secret = "shared"
replicas = 5
keep_bytes = 100000000
keep_age = 60.0
ca = "ca.pem"
certificate = "node.pem"
key = "key.pem"
credentials = "node.creds"
monitor = ["http://h1:8222"]
engine_syncs = true

[[stream]]
name = "sensors"
topics = ["sensors/#", "alarms/+/fire"]
retention_age = 604800.0
retention_bytes = 1000000
segment_bytes = 65536
segment_age = 60.0
fsync = "interval"
fsync_interval = 0.5
compression = "none"
table = true
table_delay = 30.0
snapshots_keep = 60.0

[[stream]]
name = "default"
topics = ["+/#"]
retention_age = 1.0
retention_bytes = 1
segment_bytes = 1000000
segment_age = 1.0
fsync = "never"
fsync_interval = 2.0
compression = "snappy"
table = true
table_delay = 2.0
snapshots_keep = 1.0
"""


def printed(*arguments: str, cwd: Path | None = None) -> str:
    done = run_serve("--print-config", *arguments, cwd=cwd)
    assert (done.code, done.stderr) == (0, "")
    return done.stdout


def refused(folder: Path, text: str | bytes) -> str:
    """Return the line that refuses a configuration; it must name the file."""
    path = folder / "pyrite.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    line = run_refused(2, "--ephemeral", "--config", str(path), cwd=folder)
    assert str(path) in line, f"the file is not named: {line}"
    return line


def keys(table: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        found |= keys(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


# Round trips


def test_the_defaults_round_trip(tmp_path: Path) -> None:
    defaults = printed()
    (tmp_path / "pyrite.toml").write_text(defaults)
    assert printed("--config", "pyrite.toml", cwd=tmp_path) == defaults


def test_every_key_round_trips_with_another_value(tmp_path: Path, certificates: Certificates) -> None:
    text = EVERYTHING.replace("SERVER", str(certificates.server)).replace(
        "AUTHORITY", str(certificates.authority)
    )
    (tmp_path / "pyrite.toml").write_text(text)
    assert printed("--config", "pyrite.toml", cwd=tmp_path) == text


def test_the_table_of_all_keys_in_this_file_is_complete() -> None:
    defaults, others = tomllib.loads(printed()), tomllib.loads(EVERYTHING)
    assert others["access"].pop("rule")[0].keys() == {one.name for one in fields(Rule)}
    assert defaults["access"].pop("rule") == []
    assert others["quotas"].pop("default").keys() == {one.name for one in fields(Quota)}
    assert defaults.pop("quotas") == {"default": {}}, "half of what there is for all, whatever that is"
    assert others.pop("quotas").keys() == {"user", "group"}
    assert keys(defaults) == keys(others)


@pytest.mark.parametrize(
    "text", ["Größe", "\U0001f600", 'a "quoted" \\ text', "tab\there", "line\nbreak", "\x7f", "\u0085"]
)
def test_any_text_round_trips(tmp_path: Path, text: str) -> None:
    escaped = "".join(f"\\U{ord(letter):08x}" for letter in text)
    (tmp_path / "first.toml").write_text(f'[mqtt]\nresponse_information = "{escaped}"\n')
    first = printed("--config", "first.toml", cwd=tmp_path)
    assert tomllib.loads(first)["mqtt"]["response_information"] == text
    (tmp_path / "second.toml").write_text(first, encoding="utf-8")
    assert printed("--config", "second.toml", cwd=tmp_path) == first


def test_missing_keys_keep_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[limits]\nmax_inflight = 5\n")
    changed, defaults = (
        tomllib.loads(printed("--config", "pyrite.toml", cwd=tmp_path)),
        tomllib.loads(printed()),
    )
    assert changed["limits"].pop("max_inflight") == 5
    del defaults["limits"]["max_inflight"]
    assert changed == defaults


def test_the_default_stream_comes_last_unless_it_is_set(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text('[[stream]]\nname = "a"\ntopics = ["a/#"]\n')
    streams = tomllib.loads(printed("--config", "pyrite.toml", cwd=tmp_path))["stream"]
    assert [(one["name"], one["topics"]) for one in streams] == [("a", ["a/#"]), ("default", ["#"])]
    (tmp_path / "pyrite.toml").write_text('[[stream]]\nname = "default"\ntopics = ["b/#"]\n')
    streams = tomllib.loads(printed("--config", "pyrite.toml", cwd=tmp_path))["stream"]
    assert [(one["name"], one["topics"]) for one in streams] == [("default", ["b/#"])]
    (tmp_path / "pyrite.toml").write_text(
        '[[stream]]\nname = "default"\nfsync = "never"\n[[stream]]\nname = "a"\ntopics = ["a/#"]\n'
    )
    streams = tomllib.loads(printed("--config", "pyrite.toml", cwd=tmp_path))["stream"]
    assert [(one["name"], one["fsync"]) for one in streams] == [("a", "always"), ("default", "never")]


@pytest.mark.parametrize(
    "tables",
    [
        [("all", ["#"])],  # nothing is left for the default stream, which needs no table to be there
        [("a", ["a/#"]), ("some", ["a/b", "b"])],
        [("a", ["a/+"]), ("deeper", ["a/#"])],
        [("own", ["$mine/#"]), ("all", ["#"])],
    ],
)
def test_streams_may_overlap(tables: list[tuple[str, list[str]]]) -> None:
    config = Config(stream=[*(StreamOptions(name, topics) for name, topics in tables), StreamOptions()])
    check(config)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("")
    assert printed("--config", "pyrite.toml", cwd=tmp_path) == printed()


def test_a_whole_number_is_accepted_as_a_number(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[limits]\nconnect_timeout = 3\n")
    assert "connect_timeout = 3.0\n" in printed("--config", "pyrite.toml", cwd=tmp_path)


def test_the_printed_defaults_start_a_broker(serve: Serve) -> None:
    server = serve(printed())
    server.connect().ping()


CLUSTERS: dict[str, tuple[dict[str, Any], str]] = {
    "a name with a space": ({"name": "my cluster"}, "cluster.name = 'my cluster': expected up to 32 letters"),
    "no name of the node": ({"node": ""}, "every node needs a name of its own"),
    "two replicas": ({"replicas": 2}, "cluster.replicas = 2: expected 1, 3 or 5"),
    "more replicas than nodes": ({"replicas": 3}, "expected at most the 1 nodes"),
    "a route without a port": ({"routes": ["h1", "h2:1", "h3:1"]}, "'h1': expected host:port"),
    "two nodes": ({"routes": ["127.0.0.1:1", "127.0.0.1:2"]}, "two nodes are less safe than one"),
    "the same route twice": ({"routes": ["127.0.0.1:1"] * 3}, "expected each node once"),
    "no secret": (
        {"routes": ["h1:1", "h2:1", "h3:1"]},
        "other machines can connect to h1:1: expected a secret",
    ),
    "another engine": ({"engine": "kafka://h1"}, "expected embedded, or nats://host:port"),
    "routes of an external engine": (
        {"engine": "nats://h1:4222", "routes": ["h1:6222"]},
        "are for the embedded engine",
    ),
    "no such file": ({"ca": "/no/such.pem"}, "expected an existing file"),
}


@pytest.mark.parametrize("mistake", CLUSTERS)
def test_mistakes_in_the_cluster_table_are_named(mistake: str) -> None:
    values, expected = CLUSTERS[mistake]
    with pytest.raises(ConfigError) as error:
        check(Config(cluster=ClusterOptions(**{"name": "x", "node": "a"} | values)))
    assert "cluster." in str(error.value)
    assert expected in str(error.value)


def test_a_secret_of_the_cluster_is_not_shown() -> None:
    with pytest.raises(ConfigError) as error:
        check(Config(cluster=ClusterOptions("x", "a", engine="nats://ann:secret@h1:port")))
    assert "secret" not in str(error.value)


def test_a_node_is_set_up_on_the_command_line() -> None:
    text = printed("--cluster", "x", "--node", "b", "--engine", "nats://h1,nats://h2")
    cluster = tomllib.loads(text)["cluster"]
    assert (cluster["name"], cluster["node"], cluster["engine"]) == ("x", "b", "nats://h1,nats://h2")
    routes = printed("--cluster", "x", "--node", "b", "--routes", "127.0.0.1:1, 127.0.0.1:2,127.0.0.1:3")
    assert tomllib.loads(routes)["cluster"]["routes"] == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


def test_a_node_that_keeps_nothing_is_refused() -> None:
    line = run_refused(2, "--cluster", "x", "--node", "a", "--ephemeral")
    assert "remove ephemeral" in line


# Mistakes. Each: the text, and what the line that refuses it has to hold besides the file.

MISTAKES: dict[str, tuple[str | bytes, list[str]]] = {
    "unknown key": ("colour = 3", ["colour", "3", "log_level"]),
    "unknown key of a table": (
        "[limits]\nmax_inflights = 3",
        ["limits.max_inflights", "3", "limits.max_inflight"],
    ),
    "unknown table": ("[colours]\nred = 1", ["colours", "tls", "limits", "mqtt"]),
    "unknown quota": (
        "[quotas.user.ann]\nsession = 3",
        ["quotas.user.ann.session", "3", "quotas.user.ann.sessions", "quotas.user.ann.message_rate"],
    ),
    "unknown kind of quota": ("[quotas.users.ann]\nsessions = 3", ["quotas.users", "quotas.user"]),
    "negative quota": (
        "[quotas.default]\nsessions = -1",
        ["quotas.default.sessions = -1", 'at least 0, or "unlimited"'],
    ),
    "no number for a quota": (
        '[quotas.group.devices]\nbyte_rate = "fast"',
        ["quotas.group.devices.byte_rate = 'fast'", 'more than 0, or "unlimited"'],
    ),
    "true for a quota": ("[quotas.default]\nsessions = true", ["quotas.default.sessions", "a number"]),
    "a rate of nothing": ("[quotas.default]\nmessage_rate = 0", ["message_rate = 0", "more than 0"]),
    "a number where the quotas of a user go": ("[quotas.user]\nann = 3", ["quotas.user.ann", "a table"]),
    "key in the wrong table": ("[mqtt]\nmax_inflight = 3", ["mqtt.max_inflight", "mqtt.maximum_qos"]),
    "a value where a table goes": ("limits = 3", ["limits", "3", "table"]),
    "text for a whole number": (
        '[limits]\nmax_inflight = "3"',
        ["limits.max_inflight", "'3'", "a whole number"],
    ),
    "fraction for a whole number": (
        "[limits]\nmax_inflight = 3.5",
        ["limits.max_inflight", "3.5", "a whole number"],
    ),
    "true for a whole number": (
        "[limits]\nmax_inflight = true",
        ["limits.max_inflight", "rue", "a whole number"],
    ),
    "text for a number": ('[limits]\nconnect_timeout = "1s"', ["limits.connect_timeout", "'1s'", "a number"]),
    "true for a number": ("[limits]\nconnect_timeout = true", ["limits.connect_timeout", "rue", "a number"]),
    "number for true or false": ("ephemeral = 1", ["ephemeral", "1", "true or false"]),
    "text for true or false": ('ephemeral = "no"', ["ephemeral", "'no'", "true or false"]),
    "number for a text": ("data = 1", ["data", "1", "a text"]),
    "path for a URL": ('[tables]\nlocation = "/mnt"', ["tables.location", "'/mnt'", "a URL"]),
    "list for a text": ('data = ["x"]', ["data", "['x']", "a text"]),
    "table for a text": ("[data]\nx = 1", ["data", "a text"]),
    "text for a list": (
        'listen = "mqtt://127.0.0.1:1883"',
        ["listen", "'mqtt://127.0.0.1:1883'", "a list of texts"],
    ),
    "list of numbers for one of texts": ("listen = [1883]", ["listen", "[1883]", "a list of texts"]),
    "no network": (
        '[proxy]\ntrusted = ["10.0.0.1/8"]',
        ["proxy.trusted", "10.0.0.1/8", "has host bits set"],
    ),
    "no listeners": ("listen = []", ["listen", "[]", "at least one"]),
    "date for a text": ("data = 2026-01-01", ["data", "a text"]),
    "not one of the log levels": (
        'log_level = "loud"',
        ["log_level", "'loud'", "debug, info, warning, error"],
    ),
    "not one of the versions": (
        '[tls]\nminimum_version = "1.1"',
        ["tls.minimum_version", "'1.1'", "1.2, 1.3"],
    ),
    "below the range": (
        "[limits]\nmax_packet_size = 63",
        ["limits.max_packet_size", "63", "64", "268435460"],
    ),
    "above the range": ("[limits]\nmax_inflight = 65536", ["limits.max_inflight", "65536", "65535"]),
    "zero": ("[limits]\nmax_connections = 0", ["limits.max_connections", "0", "from 1"]),
    "negative": ("[limits]\nmax_queued_bytes = -1", ["limits.max_queued_bytes", "-1", "from 1"]),
    "number below the range": ("[limits]\nconnect_timeout = 0.01", ["limits.connect_timeout", "0.01", "0.1"]),
    "infinite": ("[limits]\nconnect_timeout = inf", ["limits.connect_timeout", "inf", "3600"]),
    "not a number": ("[mqtt]\nsys_interval = nan", ["mqtt.sys_interval", "nan", "86400"]),
    "a QoS of 3": ("[mqtt]\nmaximum_qos = 3", ["mqtt.maximum_qos", "3", "from 0 to 2"]),
    "a listener of another protocol": (
        'listen = ["amqp://127.0.0.1:1"]',
        ["listen", "'amqp://127.0.0.1:1'", "mqtt://"],
    ),
    "a public URL that is none": (
        '[http]\npublic_url = "broker.example"',
        ["http.public_url", "'broker.example'", "https://broker.example/pyrite"],
    ),
    "a public URL with a password": (
        '[http]\npublic_url = "https://ann:one@broker.example"',
        ["http.public_url", "(not shown)@", "expected a URL"],
    ),
    "a public URL, and no users": (
        '[http]\npublic_url = "https://broker.example"',
        ["listen", "other machines can connect, but there are no users"],
    ),
    "a second listener that is none": (
        'listen = ["mqtt://127.0.0.1:0", "x"]',
        ["listen", "'x'", "mqtt://host:port"],
    ),
    "a port out of range": ('listen = ["mqtt://127.0.0.1:65536"]', ["listen", "65536", "mqtt://host:port"]),
    "mqtts without [tls]": (
        'listen = ["mqtts://127.0.0.1:0"]',
        ["listen", "mqtts://127.0.0.1:0", "tls.certificate"],
    ),
    "wss without [tls]": (
        'listen = ["wss://127.0.0.1:0"]',
        ["listen", "wss://127.0.0.1:0", "tls.certificate"],
    ),
    "no such certificate": (
        '[tls]\ncertificate = "no.pem"',
        ["tls.certificate", "'no.pem'", "an existing file"],
    ),
    "no such key file": ('[tls]\nkey = "no.pem"', ["tls.key", "'no.pem'", "an existing file"]),
    "no such authority": ('[tls]\nclient_ca = "no.pem"', ["tls.client_ca", "'no.pem'", "an existing file"]),
    "a folder for a file": (
        '[tls]\ncertificate = "/tmp"',
        ["tls.certificate", "'/tmp'", "an existing file"],
    ),
    "certificates required of no authority": (
        "[tls]\nrequire_client_certificate = true",
        ["tls.require_client_certificate", "true", "tls.client_ca"],
    ),
    "a stream without a name": ('[[stream]]\ntopics = ["#"]', ["[[stream]]", "name"]),
    "a table where tables go": ('[stream]\nname = "x"', ["stream", "[[stream]]"]),
    "a stream with an impossible name": (
        '[[stream]]\nname = "../x"',
        ["stream.name", "'../x'", "letters, digits, - and _"],
    ),
    "two streams of one name": (
        '[[stream]]\nname = "x"\n[[stream]]\nname = "x"',
        ["stream.name", "'x'", "duplicate stream name"],
    ),
    "a stream without topics": ('[[stream]]\nname = "x"\ntopics = []', ["stream.topics", "[]", "filter"]),
    "a stream of what is no filter": (
        '[[stream]]\nname = "x"\ntopics = ["a/#/b"]',
        ["stream.name", "'x'", "stream.topics", "'a/#/b'"],
    ),
    "a stream that has nothing to capture": (
        '[[stream]]\nname = "a"\ntopics = ["a/#", "b"]\n[[stream]]\nname = "x"\ntopics = ["a/+/c", "b"]',
        ["stream.name", "'x'", "stream.topics", "'a/+/c'", "stream 'a'"],
    ),
    "a stream of the broker's own topics": (
        '[[stream]]\nname = "x"\ntopics = ["a", "$SYS/#"]',
        ["stream.name", "'x'", "stream.topics", "'$SYS/#'", "no stream captures $SYS"],
    ),
    "a stream of a shared subscription": (
        '[[stream]]\nname = "x"\ntopics = ["$share/g/x"]',
        ["stream.name", "'x'", "stream.topics", "'$share/g/x'", "$share"],
    ),
    "a stream of requests": (
        '[[stream]]\nname = "x"\ntopics = ["$pyrite/#"]',
        ["stream.name", "'x'", "stream.topics", "'$pyrite/#'", "$pyrite"],
    ),
    "an unknown key of a stream": (
        '[[stream]]\nname = "x"\nretention = 3',
        ["stream.retention", "3", "stream.retention_age"],
    ),
    "not one of the policies": (
        '[[stream]]\nname = "x"\nfsync = "sometimes"',
        ["stream.fsync", "'sometimes'", "always, interval, never"],
    ),
    "not one of the compressions": (
        '[[stream]]\nname = "x"\ncompression = "zip"',
        ["stream.compression", "'zip'", "zstd"],
    ),
    "a segment that is too small": (
        '[[stream]]\nname = "x"\nsegment_bytes = 1000',
        ["stream.segment_bytes", "1000", "65536"],
    ),
    "not TOML": ("listen = = 3\n", ["TOML", "line 1"]),
    "a key twice": ("data = '1'\ndata = '2'\n", ["TOML", "line 2"]),
    "not UTF-8": (b"data = '\xff'", ["UTF-8"]),
    "an authenticator without a colon": (
        "[mqtt]\nauthenticator = 'nothing'",
        ["mqtt.authenticator", "'nothing'", "package.module:factory"],
    ),
    "an authenticator without a module": (
        "[mqtt]\nauthenticator = 'no_such_module:make'",
        ["mqtt.authenticator", "'no_such_module:make'", "no_such_module", "package.module:factory"],
    ),
    "an authenticator with an empty module": (
        "[mqtt]\nauthenticator = ':make'",
        ["mqtt.authenticator", "':make'", "package.module:factory"],
    ),
    "an authenticator whose module lacks the factory": (
        "[mqtt]\nauthenticator = 'json:make'",
        ["mqtt.authenticator", "'json:make'", "make", "package.module:factory"],
    ),
    "an authenticator that is not callable": (
        "[mqtt]\nauthenticator = 'json:__name__'",
        ["mqtt.authenticator", "'json:__name__'", "package.module:factory"],
    ),
    "an authenticator that returns something else": (
        "[mqtt]\nauthenticator = 'builtins:dict'",
        ["mqtt.authenticator", "'builtins:dict'", "pyrite.broker.access.Access"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_key_value_and_what_was_expected(tmp_path: Path, name: str) -> None:
    text, expected = MISTAKES[name]
    line = refused(tmp_path, text)
    for part in expected:
        assert part in line, f"{part!r} is not in: {line}"


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('no database\\nhere')",
        "def make():\n    raise RuntimeError('no database')",
        "def make(:",
        "import no_database",
        "import sys\ndef make():\n    sys.exit('no database')",
    ],
    ids=["raises when imported", "raises when made", "is no Python", "imports what is not there", "exits"],
)
def test_an_authenticator_that_fails_is_reported(tmp_path: Path, source: str) -> None:
    (tmp_path / "broken_plugin.py").write_text(source)
    line = refused(tmp_path, "[mqtt]\nauthenticator = 'broken_plugin:make'\n")
    assert "mqtt.authenticator" in line
    assert "'broken_plugin:make'" in line
    assert "package.module:factory" in line
    assert "No module named 'broken_plugin'" not in line


@pytest.mark.parametrize("key", ["certificate", "key", "client_ca"])
def test_an_invalid_tls_file_is_reported(tmp_path: Path, certificates: Certificates, key: str) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    nonsense.chmod(0o600)
    files = {"certificate": str(certificates.server), key: str(nonsense)}
    table = "".join(f"{name} = '{file}'\n" for name, file in files.items())
    line = refused(tmp_path, f"listen = ['mqtts://127.0.0.1:0']\n[tls]\n{table}")
    assert f"tls.{key}" in line
    assert "nonsense.pem" in line
    assert "expected" in line


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    line = run_refused(2, "--config", "nowhere.toml", cwd=tmp_path)
    assert "nowhere.toml" in line
    assert "No such file" in line


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    line = run_refused(2, "--config", str(tmp_path), cwd=tmp_path)
    assert str(tmp_path) in line


def test_print_config_reports_mistakes(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("colour = 3")
    assert "colour" in run_refused(2, "--print-config", "--config", "pyrite.toml", cwd=tmp_path)
