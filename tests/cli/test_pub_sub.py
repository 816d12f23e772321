"""`pyrite pub` and `pyrite sub` against a Pyrite broker, run as a user would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from .harness import PYRITE, SECONDS, Commands, free_port, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_published_message_reaches_a_subscriber(
    commands: Commands, topic: str, qos: str, version: str
) -> None:
    subscriber = commands.subscribe("-V", version, "-t", topic, "-q", qos, "-C", "1", "-F", "%t %q %p")
    commands.publish("-V", version, "-t", topic, "-q", qos, "-m", "hello")
    assert subscriber.output() == f"{topic} {qos} hello\n".encode()


def test_each_line_of_stdin_is_published_with_its_exact_bytes(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "4")
    commands.publish("-t", topic, "-l", stdin=b"one\n\n\xff\x00three\r\nlast without a newline")
    assert subscriber.output() == b"one\n\n\xff\x00three\r\nlast without a newline\n"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_lines_are_published_in_order(commands: Commands, topic: str, qos: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(500))
    subscriber = commands.subscribe("-t", topic, "-q", qos, "-C", "500")
    commands.publish("-t", topic, "-l", "-q", qos, stdin=lines)
    assert subscriber.output() == lines


def test_publishing_100_000_lines_takes_bounded_memory(broker: int, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x" * 200 + b"\n" + b"a line of some length\n" * 100_000)
    with open(tmp_path / "lines", "rb") as lines:
        command = [*PYRITE, "pub", "-h", "127.0.0.1", "-p", str(broker), "-t", topic, "-l", "-q", "1"]
        process = subprocess.Popen(command, stdin=lines)
        peak = 0  # in kB; ru_maxrss would count the memory of this process, which forked it
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
    assert process.returncode == 0
    assert 0 < peak < 100 * 1024  # Python alone takes a quarter of that


def test_a_line_is_published_while_stdin_stays_open(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1")
    publisher = commands.start("pub", "-t", topic, "-l")
    publisher.write(b"first\n")
    assert subscriber.output() == b"first\n"
    assert publisher.process.poll() is None


def test_a_file_of_5_mb_arrives_unchanged(commands: Commands, topic: str, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(content)
    subscriber = commands.subscribe("-t", topic, "-q", "1", "-C", "1", "-N")
    commands.publish("-t", topic, "-q", "1", "-f", str(tmp_path / "file"))
    assert subscriber.output() == content


def test_stdin_can_be_published_as_one_message(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1", "-N")
    commands.publish("-t", topic, "-s", stdin=b"two\nlines\n")
    assert subscriber.output() == b"two\nlines\n"


def test_a_negative_number_can_be_a_message(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1")
    commands.publish("-t", topic, "-m", "-5")
    assert subscriber.output() == b"-5\n"


def test_a_null_message_clears_a_retained_message(commands: Commands, topic: str) -> None:
    commands.publish("-t", topic, "-m", "kept", "-r", "-q", "1")
    assert commands.run("sub", "-t", topic, "-C", "1", "-F", "%r %p").stdout == b"1 kept\n"
    commands.publish("-t", topic, "-n", "-r", "-q", "1")
    assert commands.run("sub", "-t", topic, "-W", "0.5").returncode == 27


def test_sub_exits_with_27_on_timeout(commands: Commands, topic: str) -> None:
    result = commands.run("sub", "-t", topic, "-W", "0.2")
    assert (result.returncode, result.stderr) == (27, b"pyrite sub: timed out.\n")


def test_verbose_output_puts_the_topic_before_the_payload(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-v", "-t", f"{topic}/+", "-C", "1")
    commands.publish("-t", f"{topic}/one", "-m", "hello")
    assert subscriber.output() == f"{topic}/one hello\n".encode()


def test_sub_takes_several_topics_and_filters_some_out(commands: Commands, topic: str) -> None:
    filters = ("-t", f"{topic}/a/#", "-t", f"{topic}/b", "-T", f"{topic}/a/noise")
    subscriber = commands.subscribe(*filters, "-C", "2")
    for name in ("a/noise", "a/signal", "b"):
        commands.publish("-t", f"{topic}/{name}", "-m", name, "-q", "1")
    assert subscriber.output() == b"a/signal\nb\n"


def test_json_output_contains_every_field_of_a_message(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-q", "1", "-C", "1", "--json")
    given = ("content-type text/plain", "response-topic answers", "user-property a 1", "user-property a 2")
    properties = [word for each in given for word in ("-D", "publish", *each.split())]
    commands.publish("-t", topic, "-q", "1", "-m", "grüße", *properties)
    line = json.loads(subscriber.output())
    assert line.pop("time")
    assert line == {
        "topic": topic,
        "qos": 1,
        "retain": False,
        "payload": "grüße",
        "properties": {
            "content-type": "text/plain",
            "response-topic": "answers",
            "user-property": [["a", "1"], ["a", "2"]],
        },
    }


def test_json_output_encodes_a_binary_payload_as_base64(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1", "--json")
    commands.publish("-t", topic, "-s", stdin=b"\xff\x00")
    line = json.loads(subscriber.output())
    assert (line["payload"], line["payload_encoding"]) == ("/wA=", "base64")


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("%p|%x|%X|%l", "Hé|48c3a9|48C3A9|3"),
        ("%5p|%-5p|%05l|%.4t|%8.4t", "   Hé|Hé   |00003|test|    test"),
        ("%C|%R|%D|%E|%F|%P", "text/plain|answers|id7|600|1|a:1 b:2"),
        (r"%%|@@|\\|\t|\e|%q%r", "%|@|\\|\t|\x1b|10"),
        ("%S", "9"),
    ],
)
def test_a_format_can_show_every_part_of_a_message(
    commands: Commands, topic: str, form: str, printed: str
) -> None:
    identifier = ("-D", "subscribe", "subscription-identifier", "9")
    subscriber = commands.subscribe("-t", topic, "-q", "1", "-C", "1", "-F", form, *identifier)
    properties = []
    for each in (
        "content-type text/plain",
        "response-topic answers",
        "correlation-data id7",
        "message-expiry-interval 600",
        "payload-format-indicator 1",
        "user-property a 1",
        "user-property b 2",
    ):
        properties += ["-D", "publish", *each.split()]
    commands.publish("-t", topic, "-q", "1", "-m", "Hé", *properties)
    assert subscriber.output().decode() == printed + "\n"


def test_json_formats_quote_or_embed_the_payload(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1", "-F", "%j%J", "-N")
    commands.publish("-t", topic, "-m", '{"t": 27.0}')
    quoted, embedded = subscriber.output().decode().split("}{")
    assert json.loads(quoted + "}")["payload"] == '{"t": 27.0}'
    assert json.loads("{" + embedded)["payload"] == {"t": 27.0}


def test_the_json_format_reports_and_skips_a_payload_that_is_not_json(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "2", "-F", "%J")
    commands.publish("-t", topic, "-l", stdin=b"not json\n7\n")
    assert json.loads(subscriber.output())["payload"] == 7
    assert b"is not valid JSON" in subscriber.output("stderr")


def test_exit_subscribed_leaves_a_session_that_queues_messages(commands: Commands, topic: str) -> None:
    session = ("-i", topic.replace("/", "-"), "-c", "-q", "1", "-t", topic)
    assert commands.run("sub", *session, "-E").returncode == 0
    commands.publish("-t", topic, "-q", "1", "-l", stdin=b"one\ntwo\n")
    assert commands.run("sub", *session, "-C", "1").stdout == b"one\n"
    assert commands.run("sub", *session, "-C", "1").stdout == b"two\n"


def test_no_retain_skips_retained_messages(commands: Commands, topic: str) -> None:
    commands.publish("-t", topic, "-m", "stale", "-r", "-q", "1")
    subscriber = commands.subscribe("-t", topic, "-R", "-C", "1")
    commands.publish("-t", topic, "-m", "fresh")
    assert subscriber.output() == b"fresh\n"


def test_retain_handling_never_receives_no_retained_message(commands: Commands, topic: str) -> None:
    commands.publish("-t", topic, "-m", "stale", "-r", "-q", "1")
    subscriber = commands.subscribe("-t", topic, "--retain-handling", "never", "-C", "1")
    commands.publish("-t", topic, "-m", "fresh")
    assert subscriber.output() == b"fresh\n"


def test_retain_as_published_keeps_the_retain_flag(commands: Commands, topic: str) -> None:
    subscriber = commands.subscribe("-t", topic, "--retain-as-published", "-C", "1", "-F", "%r")
    commands.publish("-t", topic, "-m", "fresh", "-r")
    assert subscriber.output() == b"1\n"


def test_remove_retained_clears_retained_messages_and_stops_at_the_first_other(
    commands: Commands, topic: str
) -> None:
    for name in ("a", "b"):
        commands.publish("-t", f"{topic}/{name}", "-m", name, "-r", "-q", "1")
    subscriber = commands.subscribe("-t", f"{topic}/#", "--remove-retained", "--retained-only")
    assert sorted(subscriber.output().split()) == [b"a", b"b"]
    assert commands.run("sub", "-t", f"{topic}/#", "-W", "0.5").stdout == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_disconnects_a_subscriber_cleanly(commands: Commands, topic: str, number: int) -> None:
    watcher = commands.subscribe("-t", f"{topic}/#", "-C", "1")
    subscriber = commands.subscribe("-t", topic, "--will-topic", f"{topic}/will", "--will-payload", "gone")
    subscriber.process.send_signal(number)
    assert subscriber.exit_code() == 0
    assert b"DISCONNECT" in subscriber.output("stderr")
    assert b"Traceback" not in subscriber.output("stderr")
    commands.publish("-t", f"{topic}/end", "-m", "no will")
    assert watcher.output() == b"no will\n"


def test_the_will_of_a_killed_subscriber_is_published(commands: Commands, topic: str) -> None:
    watcher = commands.subscribe("-t", f"{topic}/will", "-q", "1", "-C", "1", "-F", "%p %q %C")
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", "1")
    subscriber = commands.subscribe("-t", topic, *will, "-D", "will", "content-type", "text/plain")
    subscriber.process.kill()
    assert watcher.output() == b"gone 1 text/plain\n"


def test_sub_exits_quietly_when_the_reader_of_its_output_is_gone(commands: Commands, topic: str) -> None:
    subscriber = subprocess.Popen(
        [*PYRITE, "sub", *commands.options, "-t", topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert subscriber.stdout is not None
    subscriber.stdout.close()
    assert subscriber.wait(SECONDS) == 0
    assert subscriber.stderr is not None
    with subscriber.stderr as errors:
        assert errors.read() == b""


def test_a_subscriber_reconnects_when_the_broker_is_back(
    topic: str, commands_at: Callable[..., Commands]
) -> None:
    with serving() as (_, port):
        commands = commands_at("-h", "127.0.0.1", "-p", str(port))
        subscriber = commands.subscribe("-t", topic, "-C", "1")
    subscriber.wait_for("Reconnecting")
    with serving(port):
        subscriber.wait_for("subscribed to")
        commands.publish("-t", topic, "-m", "back")
        assert subscriber.output() == b"back\n"


def test_a_publisher_fails_when_the_broker_stops(topic: str, commands_at: Callable[..., Commands]) -> None:
    with serving() as (_, port):
        publisher = commands_at("-h", "127.0.0.1", "-p", str(port)).start("pub", "-d", "-t", topic, "-l")
        publisher.wait_for("connected to")
    assert publisher.exit_code() != 0
    assert publisher.output("stderr").splitlines()[-1].startswith(b"pyrite pub: ")


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_a_refused_connection_is_one_line_with_a_hint(
    commands_at: Callable[..., Commands], command: str
) -> None:
    port = free_port()
    arguments = ("-m", "x") if command == "pub" else ()
    result = commands_at("-h", "127.0.0.1", "-p", str(port)).run(command, "-t", "a", *arguments)
    assert result.returncode == 1
    assert result.stderr.decode() == (
        f"pyrite {command}: cannot connect to 127.0.0.1:{port}: Connection refused. "
        "Is a broker running there? Start one with `pyrite serve`.\n"
    )


def test_quiet_prints_no_errors(commands_at: Callable[..., Commands]) -> None:
    result = commands_at("-h", "127.0.0.1", "-p", str(free_port())).run("sub", "-t", "a", "--quiet")
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("-m x", "no topic given"),
        ("-t a", "no message given"),
        ("-t a/# -m x", "contain wildcards"),
        ("-t a -m x -c", "name its client identifier with -i"),
        ("-t a -m x -V mqttv311 -D publish content-type b", "needs MQTT 5"),
        ("-t a -m x -D publish colour red", "publish has no property 'colour'"),
        ("-t a -m x -D publish subscription-identifier 1", "publish has no property"),
        ("-t a -m x -D send content-type b", "unknown command 'send'"),
        ("-t a -m x -D publish message-expiry-interval soon", "must be a number, not 'soon'"),
        ("-t a -m x -D publish topic-alias 70000", "must be from 0 to 65535, not 70000"),
        ("-t a -m x -D publish topic-alias 0", "must be from 1 to 65535, not 0"),
        ("-t a -m x -D publish user-property key", "takes a key and a value"),
        ("-t a -m x -D publish content-type b -D publish content-type c", "only once"),
        ("-t a -m x -L http://host", "a URL must start with mqtt://"),
        ("-t a -m x -L mqtt://host:port", "from 1 to 65535, not 'port'"),
        ("-t a -m x -L http://ann:sesame@host", "-L http://(not shown)@host: a URL must start with mqtt://"),
        (
            "-t a -m x -L mqtt://ann:sesame@host:port",
            "-L mqtt://(not shown)@host:port: a port must be a number",
        ),
        ("-t a -m x -L mqtt://ann:sesame/x@host:1", "-L mqtt://(not shown)@host:1: a port must be a number"),
        ("-t a -m x -L mqtt://ann:sesame@", "-L mqtt://(not shown)@: no host given"),
        ("-t a -m x -L mqtt://ann:sesame@h --cafile f", "wss:// URL, not mqtt://(not shown)@h"),
        ("-t a -f /no/such/file", "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_wrong_options_are_explained(
    commands_at: Callable[..., Commands], arguments: str, complaint: str
) -> None:
    result = commands_at().run("pub", *arguments.split())
    assert result.returncode in (1, 2)
    assert complaint in result.stderr.decode().splitlines()[-1]
    assert b"Traceback" not in result.stderr
    assert b"sesame" not in result.stderr


def test_a_url_can_name_broker_and_topic(
    broker: int, commands: Commands, topic: str, commands_at: Callable[..., Commands]
) -> None:
    subscriber = commands.subscribe("-t", topic, "-C", "1")
    commands_at("-L", f"mqtt://127.0.0.1:{broker}/{topic}").publish("-m", "hello")
    assert subscriber.output() == b"hello\n"
