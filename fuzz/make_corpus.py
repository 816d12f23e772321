"""Write the fuzzer's first inputs from the table of packets on the wire: python fuzz/make_corpus.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.wire_cases import BOTH, CASES, CONNECTS, FRAMES, PUBLISHES, TO_CLIENT, VALID, Case  # noqa: E402

from pyrite.protocols.mqtt.packets import V5  # noqa: E402

CORPUS = ROOT / "fuzz" / "corpus"
FEED_MORE, READ_SLOWLY, READ_ALL, LOSE, BEGIN_ANEW = 125, 121, 122, 123, 124
"""As in fuzz_mqtt.py, which cannot be imported without the fuzzer."""


def step(number: int, piece: bytes) -> bytes:
    """Return the step that feeds `piece` to connection `number`."""
    if 0 < len(piece) < 121:
        return bytes((number << 7 | len(piece),)) + piece
    return bytes((number << 7 | FEED_MORE,)) + len(piece).to_bytes(2, "big") + piece


def connect(case: Case) -> bytes:
    """Return the step that lets a client of the case's version in."""
    plain = next(c for c in CONNECTS if c.version == case.version and c.name == "plain connect")
    return step(0, plain.data)


def inputs() -> dict[str, bytes]:
    """Return the inputs by name: every packet alone where it may come, and some conversations."""
    found: dict[str, bytes] = {}
    for case in CASES:
        if case.direction == TO_CLIENT or len(case.data) > 1_000 or case.version not in (4, 5):
            continue
        if not (case in VALID or case in FRAMES or (case.version == V5 and case.data[0] >> 4 == 3)):
            continue
        if case.data[0] >> 4 == 1:
            found[str(case)] = step(0, case.data)
        elif case.version == V5:
            found[str(case)] = step(1, case.data)
        else:
            found[str(case)] = connect(case) + step(0, case.data)
    for version in (4, 5):
        login = next(c for c in CONNECTS if c.version == version)
        run = [
            c.data for c in PUBLISHES if c.version == version and c.direction == BOTH and len(c.data) < 200
        ]
        found[f"v{version}-a-run-of-publishes"] = step(0, login.data) + step(0, b"".join(run) * 3)
        found[f"v{version}-a-run-in-pieces"] = step(0, login.data) + b"".join(step(0, one) for one in run)
    slow, taken, tick = bytes((0x80 | READ_SLOWLY,)), bytes((0x80 | READ_ALL,)), b"\x00\x0a"
    publish = step(1, b"\x32\x07\x00\x01a\x00\x01\x00x" * 20)
    found["slow-and-well-again"] = slow + publish * 10 + taken + tick + publish
    found["acknowledgements"] = publish + step(1, b"".join(bytes((0x40, 2, 0, n)) for n in range(1, 9)))
    found["gone-and-back"] = publish + bytes((0x80 | LOSE,)) + tick + bytes((0x80 | BEGIN_ANEW,)) + publish
    return found


def main() -> None:
    """Write them all."""
    CORPUS.mkdir(exist_ok=True)
    for old in CORPUS.iterdir():
        old.unlink()
    for name, data in sorted(inputs().items()):
        (CORPUS / name.lower().replace("'", "").replace("/", "-").replace("+", "plus")).write_bytes(data)


if __name__ == "__main__":
    main()
