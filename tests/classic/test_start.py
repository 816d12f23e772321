"""Every way to start the classic programs: any Python in their folder, an import, an installed wheel."""

from __future__ import annotations

import ast
import re
import shutil
import signal
import socket
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrite.cli.classic import SYSTEMS
from tests.classic.line_programs import ClassicServer, Peer
from tests.classic.programs import CHECKOUT, CLASSIC, PROGRAMS, Program, Start

IMPORTS = {
    "message_broker": "from client import main",
    "at_sign": "import server_host, client_host",
    "newsroom": "from server import Server; from client import Client",
    "dallal": "from client import main",
    "distributed": "from publisher import registerPublisher; from subscriber import registerSubscriber",
}
CONSOLE_SCRIPT = """\
import sys

from pyrite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
WHEEL = pytest.mark.xdist_group("wheel")  # so that a single worker builds it


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a Python without packages; returns its path."""
    folder = tmp_path_factory.mktemp("bare") / "python"
    venv.create(folder, symlinks=True)
    return str(folder / "bin/python")


# In the programs' own folder


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_python_without_packages_runs_each_program_in_its_folder(
    start: Start, bare: str, program: str
) -> None:
    folder, _, name = program.partition("/")
    code, printed, errors = Program(name, "--help", python=bare, cwd=CLASSIC / folder).end()
    assert (code, errors) == (0, "")
    assert printed.startswith(f"usage: {name} ")


def test_a_python_without_packages_runs_a_session_and_a_benchmark(
    start: Start, bare: str, tmp_path: Path
) -> None:
    folder = CLASSIC / "distributed"
    server = start("distributed/server.py", "--port", "0", "--data", str(tmp_path / "data"), python=bare)
    port = server.line().rstrip().rpartition(":")[2]
    for arguments in (
        ("publisher.py", "--create", "news"),
        ("publisher.py", "--publish", "news", "hello"),
        ("benchmark_createTopic.py", "--clients", "2", "--count", "10"),
    ):
        program, *options = arguments
        code, _, errors = start(
            str(folder / program), "--port", port, *options, python=bare, cwd=folder
        ).end()
        assert (code, errors) == (0, ""), arguments
    assert server.end(signal.SIGINT)[0] == 0


@pytest.mark.parametrize(
    ("folder", "way"), [*((folder, "-c") for folder in IMPORTS), ("distributed", "standard input")]
)
def test_an_import_works_without_packages_and_does_not_restart_the_process(
    bare: str, folder: str, way: str
) -> None:
    code = f"print('once')\n{IMPORTS[folder]}\nimport sys; print(sys.prefix)\n"
    done = subprocess.run(
        [bare, "-c", code] if way == "-c" else [bare],
        input=None if way == "-c" else code,
        cwd=CLASSIC / folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"once\n{Path(bare).parents[1]}\n"


def test_the_classic_folder_is_a_package_of_the_checkout(bare: str) -> None:
    code = "from classic.newsroom.server import Server; from classic.distributed.publisher import send"
    done = subprocess.run([bare, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_called_pyrite_does_not_shadow_the_package(start: Start, checkout: Path, bare: str) -> None:
    """Neither next to the program nor in the current directory."""
    folder = checkout / "classic/distributed"
    (folder / "pyrite").mkdir()
    try:
        (folder / "pyrite/__init__.py").write_text("raise SystemExit('the wrong pyrite')")
        for python in (bare, sys.executable):
            done = start(str(folder / "publisher.py"), "--help", python=python, cwd=folder).end()
            assert (done[0], done[2]) == (0, "")
            imported = subprocess.run(
                [python, "-c", "import publisher"], cwd=folder, capture_output=True, text=True, timeout=60
            )
            assert (imported.returncode, imported.stderr) == (0, "")
        program = start(
            "distributed/benchmark_send.py", "--port", "1", "--clients", "1", python=bare, cwd=folder
        )
        assert "Connection refused" in program.end()[2]
    finally:
        shutil.rmtree(folder / "pyrite")


@pytest.mark.parametrize("program", ["distributed/publisher.py", "at_sign/client_host.py"])
def test_without_the_setup_one_sentence_says_what_to_run(
    start: Start, bare: str, tmp_path: Path, program: str
) -> None:
    folder = _bootstrap_alone(tmp_path)
    (folder / Path(program).name).write_text((CLASSIC / program).read_text())
    sentence = f"Pyrite is not set up: run `make run` once in {tmp_path}"
    found = start(str(folder / Path(program).name), python=bare).end()
    assert found == (1, "", sentence + "\n")
    imported = subprocess.run(
        [bare, "-c", f"import {Path(program).stem}"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert imported.returncode == 1
    assert imported.stderr.endswith(f"\nImportError: {sentence}\n")


def test_an_import_with_another_version_of_python_says_what_to_run(bare: str, tmp_path: Path) -> None:
    folder = _bootstrap_alone(tmp_path)
    (folder / "publisher.py").write_text((CLASSIC / "distributed/publisher.py").read_text())
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/lib/python3.1/site-packages").mkdir(parents=True)
    imported = subprocess.run(
        [bare, "-c", "import publisher"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = tmp_path / ".venv/bin/python"
    assert imported.stderr.endswith(
        f"\nImportError: Python {version} lacks Pyrite's packages: run {python} instead\n"
    )


def test_a_python_that_is_too_old_is_one_sentence_even_if_it_has_the_packages(
    start: Start, tmp_path: Path
) -> None:
    folder = _bootstrap_alone(tmp_path)
    (tmp_path / "Makefile").unlink()
    bootstrap = folder.parent / "bootstrap.py"
    bootstrap.write_text(bootstrap.read_text().replace("OLDEST = (3, 11)", "OLDEST = (99, 0)"))
    (folder / "publisher.py").write_text((CLASSIC / "distributed/publisher.py").read_text())
    found = start(str(folder / "publisher.py")).end()
    assert found == (1, "", "Pyrite needs Python 99.0 or later\n")


def _bootstrap_alone(checkout: Path) -> Path:
    """Create a checkout that was never set up; returns the folder of a program."""
    package = checkout / "src/pyrite/classic"
    (package / "one").mkdir(parents=True)
    for name in ("__init__.py", "classic/__init__.py", "classic/bootstrap.py"):
        shutil.copy(CHECKOUT / "src/pyrite" / name, package.parent / name)
    (checkout / "Makefile").touch()
    return package / "one"


@pytest.mark.parametrize("file", ["bootstrap.py", "__init__.py", "../__init__.py", *PROGRAMS])
def test_old_versions_of_python_get_as_far_as_the_bootstrap(file: str) -> None:
    tree = ast.parse((CLASSIC / file).read_text(), feature_version=(3, 6))
    assert not any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(tree)
    )


# From an installed wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it as pip would; returns the folder, with a `pyrite` command next to it."""
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    installed = built / "installed"
    with zipfile.ZipFile(next(built.glob("*.whl"))) as packed:
        packed.extractall(installed)
    (built / "pyrite").write_text(CONSOLE_SCRIPT)
    return installed


@WHEEL
def test_the_wheel_holds_every_program(wheel: Path) -> None:
    for program in PROGRAMS:
        assert (wheel / "pyrite/classic" / program).is_file()
    assert not (wheel / "classic").exists()


@pytest.fixture
def classic(start: Start, wheel: Path, tmp_path: Path) -> Start:
    """Run `pyrite classic` from the wheel, in a folder that contains another `pyrite`."""
    (tmp_path / "pyrite").mkdir()
    (tmp_path / "pyrite/__init__.py").write_text("raise SystemExit('the wrong pyrite')")

    def make(*arguments: str) -> Program:
        path = {"PYTHONPATH": str(wheel)}
        return start(str(wheel.parent / "pyrite"), "classic", *arguments, cwd=tmp_path, environment=path)

    return make


def test_every_program_is_listed() -> None:
    listed = {
        f"{system.replace('-', '_')}/{program}.py"
        for system, (_, programs) in SYSTEMS.items()
        for program in programs
    }
    assert listed >= set(PROGRAMS)


@WHEEL
def test_the_list_shows_the_five_systems_and_their_programs(classic: Start) -> None:
    code, printed, errors = classic().end()
    assert (code, errors) == (0, "")
    assert re.findall(r"^(\S+):", printed, re.MULTILINE) == list(SYSTEMS)
    for system, (_, programs) in SYSTEMS.items():
        for program in programs:
            assert f"  pyrite classic {system} {program} " in printed
    code, printed, _ = classic("dallal").end()
    assert code == 0
    assert re.findall(r"^(\S+):", printed, re.MULTILINE) == ["dallal"]


@WHEEL
def test_the_wheel_runs_each_program(wheel: Path, tmp_path: Path) -> None:
    """In a single process, as loading the packages takes time."""
    code = """
import sys
from pyrite.cli.main import main

for words in sys.argv[1:]:
    try:
        main(["classic", *words.split("/"), "--help"])
    except SystemExit as end:
        print("exit code", end.code)
"""
    path = {"PYTHONPATH": str(wheel)}
    done = Program("-c", code, *PROGRAMS, cwd=tmp_path, environment=path).end()
    assert (done[0], done[2]) == (0, "")
    for program in PROGRAMS:
        system, _, name = program.removesuffix(".py").partition("/")
        assert f"usage: pyrite classic {system.replace('_', '-')} {name} " in done[1]
    assert done[1].count("exit code 0\n") == len(PROGRAMS)


@WHEEL
def test_a_session_runs_from_the_wheel(classic: Start, tmp_path: Path) -> None:
    server = classic("dallal", "server", "--port", "0", "--udp-port", "0")
    port = server.line().rstrip().rpartition(":")[2]
    subscriber = classic("dallal", "client", "localhost", port, "subscribe", "news")
    assert subscriber.line() == "subscribing on news\n"
    publisher = classic("dallal", "client", "localhost", port, "publish", "news", "hello")
    assert publisher.end() == (0, "your message published successfully\n", "")
    assert subscriber.line() == "news: hello\n"
    assert subscriber.end(signal.SIGINT)[0] == 130
    assert server.end(signal.SIGINT)[0] == 0


@WHEEL
def test_a_benchmark_runs_from_the_wheel(classic: Start) -> None:
    server = classic("distributed", "server", "--port", "0")
    port = server.line().rstrip().rpartition(":")[2]
    code, printed, errors = classic(
        "distributed", "benchmark_send", "--port", port, "--clients", "2", "--count", "10"
    ).end()
    assert (code, errors) == (0, "")
    assert "in batches" in printed
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")


@WHEEL
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["dalal"], "no system 'dalal': did you mean 'dallal'?"),
        (
            ["distributed", "Publsher"],
            "no program of distributed 'Publsher': did you mean 'publisher'?",
        ),
        (
            ["zzz"],
            "no system 'zzz': expected message-broker, at-sign, newsroom, dallal, distributed",
        ),
    ],
)
def test_a_mistyped_name_is_answered_with_the_closest_one(
    classic: Start, words: list[str], answer: str
) -> None:
    assert classic(*words).end() == (2, "", f"pyrite classic: {answer}\n")


@WHEEL
@pytest.mark.parametrize("words", [["message_broker", "client"], ["Message-Broker", "client.py"]])
def test_names_may_be_written_as_file_names(classic: Start, words: list[str]) -> None:
    code, printed, _ = classic(*words, "--help").end()
    assert code == 0
    assert "publish" in printed


@WHEEL
def test_the_help_has_examples(classic: Start) -> None:
    code, printed, _ = classic("--help").end()
    assert code == 0
    assert "pyrite classic dallal client localhost 1373 publish news hello" in printed


@WHEEL
def test_a_missing_package_is_one_sentence(wheel: Path, bare: str) -> None:
    path = wheel / "pyrite/classic/at_sign/client_host.py"
    done = subprocess.run([bare, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(r"Pyrite needs the package \w+: install it with pip\n", done.stderr)


# Errors


@pytest.fixture
def refused() -> Iterator[str]:
    """Return the number of a port that is bound but not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield str(taken.getsockname()[1])


CLIENTS = {
    "message_broker/client.py publish": "127.0.0.1 PORT publish a b",
    "message_broker/client.py subscribe": "127.0.0.1 PORT subscribe a",
    "dallal/client.py publish": "127.0.0.1 PORT publish a b",
    "dallal/client.py subscribe": "127.0.0.1 PORT subscribe a",
    "at_sign/client_host.py": "--port PORT",
    "distributed/publisher.py": "--host 127.0.0.1 --port PORT --create a",
    "distributed/subscriber.py": "--host 127.0.0.1 --port PORT --subscribe a",
    "distributed/benchmark_createTopic.py": "--host 127.0.0.1 --port PORT --count 1",
    "distributed/benchmark_send.py": "--host 127.0.0.1 --port PORT --count 1",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_is_one_sentence(start: Start, refused: str, client: str) -> None:
    arguments = CLIENTS[client].replace("PORT", refused).split()
    code, _, errors = start(client.split()[0], *arguments).end()
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert "Connection refused" in errors


SERVERS = {
    "message_broker/server.py": "--host 127.0.0.1 --port PORT",
    "dallal/server.py": "--host 127.0.0.1 --port PORT --udp-port 0",
    "at_sign/server_host.py": "--host 127.0.0.1 --port PORT",
    "newsroom/server.py": "--port PORT",
    "distributed/server.py": "--host 127.0.0.1 --port PORT",
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_port_in_use_is_one_sentence(start: Start, tmp_path: Path, server: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = SERVERS[server].replace("PORT", str(taken.getsockname()[1])).split()
        code, _, errors = start(server, *arguments, cwd=tmp_path).end()
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert "in use" in errors
    assert not errors.startswith("pyrite")


@pytest.mark.parametrize("server", [name for name in SERVERS if not name.startswith("at_sign")])
def test_ctrl_c_ends_a_server_with_one_word(start: Start, tmp_path: Path, server: str) -> None:
    program = start(server, *SERVERS[server].replace("PORT", "0").split(), cwd=tmp_path)
    program.line()
    code, _, errors = program.end(signal.SIGINT)
    assert (code, errors) == (0, "stopped\n")


@pytest.mark.parametrize("client", [name for name in CLIENTS if "benchmark" not in name])
def test_ctrl_c_ends_a_client_with_one_word(start: Start, client: str) -> None:
    """While it waits for a server that sends nothing."""
    with Peer() as silent:
        program = start(client.split()[0], *CLIENTS[client].replace("PORT", silent.port).split())
        silent.accept()
        assert program.end(signal.SIGINT) == (130, "", "stopped\n")


@pytest.fixture
def distributed(start: Start, tmp_path: Path) -> Iterator[str]:
    """Run the distributed broker; returns its port."""
    server = start("distributed/server.py", "--port", "0", "--data", str(tmp_path / "data"))
    yield server.line().rstrip().rpartition(":")[2]
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")


def test_ctrl_c_ends_a_benchmark_and_its_clients(start: Start, distributed: str) -> None:
    program = start("distributed/benchmark_send.py", "--port", distributed, "--count", "1000000")
    children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
    while len(clients := children.read_text().split()) < 5:  # four clients, and Python's resource tracker
        assert program.process.poll() is None
    for client in clients:  # to the process group, as a terminal does
        subprocess.run(["kill", "-INT", client], check=True)
    assert program.end(signal.SIGINT)[::2] == (130, "stopped\n")


@pytest.mark.parametrize("text", ["größer, 大きい, 🙂", "x" * 120_000])
def test_text_in_any_language_and_long_messages_are_delivered(
    start: Start, distributed: str, text: str
) -> None:
    where = ("--port", distributed)
    start("distributed/publisher.py", *where, "--create", "text").end()
    subscriber = start("distributed/subscriber.py", *where, "--subscribe", "text")
    subscriber.line()
    published = start("distributed/publisher.py", *where, "--publish", "text", text)
    assert published.end() == (0, "Message sent to 'text'\n", "")
    assert subscriber.line() == text + "\n"


def test_a_terminal_that_lacks_characters_shows_their_codes(start: Start, distributed: str) -> None:
    where, ascii_only = ("--port", distributed), {"PYTHONIOENCODING": "ascii"}
    start("distributed/publisher.py", *where, "--create", "text").end()
    subscriber = start("distributed/subscriber.py", *where, "--subscribe", "text", environment=ascii_only)
    subscriber.line()
    start("distributed/publisher.py", *where, "--publish", "text", "größer").end()
    assert subscriber.line() == "gr\\xf6\\xdfer\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["publisher.py", "--publish", "text", b"\xff"], "the topic or the message is not valid UTF-8"),
        (["publisher.py", "--create", b"\xff"], "the topic or the message is not valid UTF-8"),
        (["subscriber.py", "--subscribe", b"\xff"], "the topic or the message is not valid UTF-8"),
        (["publisher.py", "--create", ""], "a topic must not be empty"),
        (["subscriber.py", "--subscribe", ""], "a topic must not be empty"),
        (["publisher.py", "--create", "x" * 70_000], "Create: a topic has at most 65535 bytes"),
    ],
)
def test_an_invalid_topic_or_message_is_one_sentence(
    start: Start, distributed: str, arguments: list[str | bytes], problem: str
) -> None:
    program, *options = arguments
    found = start(f"distributed/{program!s}", "--port", distributed, *options).end()
    assert found == (1, "", f"{program!s}: {problem}\n")


@pytest.mark.parametrize("system", ["message_broker", "dallal"])
def test_arguments_are_sent_or_refused_in_one_sentence(start: Start, system: str) -> None:
    port = str(ClassicServer(start, system).ports[0])
    long_topic, program = "t" * 70_000, f"{system}/client.py"
    published, failed = "your message published successfully\n", "your message publishing failed\n"
    not_text = "this is not valid text\n"
    expected: list[tuple[list[str | bytes], tuple[int, str, str]]] = [
        (["publish", "größe", "x" * 120_000], (0, published, "")),
        (["publish", b"\xff", "x"], (1, failed, not_text)),
        (["publish", long_topic, "x"], (1, failed, "Publish: a topic has at most 65535 bytes\n")),
        (["subscribe", b"\xff"], (1, "subscribing failed\n", not_text)),
        (
            ["subscribe", long_topic],
            (1, "subscribing failed\n", "Subscribe: a topic filter has at most 65535 bytes\n"),
        ),
    ]
    for arguments, outcome in expected:
        assert start(program, "127.0.0.1", port, *arguments).end() == outcome


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_an_invalid_port_is_explained(start: Start, port: str) -> None:
    code, printed, errors = start("distributed/publisher.py", f"--port={port}", "--create", "a").end()
    assert (code, printed) == (2, "")
    assert errors.endswith(f"expected a port from 0 to 65535, not '{port}'\n")
