"""Options of `format("pyrite")` and their errors. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pyrite.spark.options import OptionError, read_options, write_options
from pyrite.spark.source import PyriteSource

BROKER = "flight://127.0.0.1:8815"
TLS = "flights://127.0.0.1:8816"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Spark does not pass the OPTIONS of CREATE TABLE"),
        ({"stream": "default"}, "either the option broker"),
        ({"broker": BROKER, "path": "data"}, "either the option broker"),
        ({"broker": "mqtt://127.0.0.1:1883"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": "flight://127.0.0.1:x"}, "option broker: expected flight://HOST:PORT"),
        (
            {"path": "data", "password": "x"},
            "options username, password, token, caFile, certFile, keyFile need broker",
        ),
        (
            {"broker": "flight://ann:secret@127.0.0.1:8815"},
            "option broker: the broker's URL must not contain a user name",
        ),
        ({"broker": f"{BROKER}/data"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": f"{BROKER}?x=1"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": f"{BROKER}#x"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": "flight://127.0.0.1:0"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": BROKER, "password": "x"}, "option password needs username"),
        (
            {"broker": BROKER, "username": "a", "token": "b"},
            "one of the options username (with password) and",
        ),
        ({"broker": TLS, "keyFile": __file__}, "option keyFile needs certFile"),
        ({"broker": TLS, "caFile": "none.pem"}, "option caFile: 'none.pem' cannot be read: No such file"),
        ({"broker": TLS, "certFile": "/"}, "option certFile: '/' cannot be read: Is a directory"),
        ({"broker": BROKER, "caFile": __file__}, "option caFile needs a broker at flights://"),
        ({"path": ""}, "option path: expected a folder"),
        ({"path": "hdfs://node/data"}, "option path: expected a folder on this machine"),
        ({"path": "file:data"}, "option path: expected file:///FOLDER"),
        ({"path": "file://node/data"}, "option path: expected file:///FOLDER"),
        ({"path": "data", "stream": ""}, "option stream: expected up to 64 letters"),
        ({"path": "data", "stream": "../x"}, "option stream: expected up to 64 letters"),
        ({"path": "data", "topic": ""}, "option topic, '': a topic filter must not be empty"),
        ({"path": "data", "startingOffsets": "5", "endingOffsets": "2"}, "option endingOffsets: 2 is before"),
        ({"path": "data", "startingOffsets": "-1h", "endingOffsets": "-2h"}, "option endingOffsets: -2h is"),
        (
            {"path": "data", "startingOffsets": "2026-11-15", "endingOffsets": "2026-11-14"},
            "option endingOffsets: 2026-11-14 is before startingOffsets, 2026-11-15",
        ),
        (
            {"path": "data", "minPartitions": "10001"},
            "option minPartitions: expected a number from 1 to 10000",
        ),
        ({"path": "data", "maxBytesPerTrigger": "9" * 5_000}, "option maxBytesPerTrigger: expected a number"),
        ({"path": "data", "topic": "a/#,b/+"}, 'several filters are a JSON list: ["a/#", "b/+"]'),
        ({"path": "data", "readerName": "a/b"}, "option readerName: expected up to 64 letters, digits"),
        ({"path": "data", "topic": '["a", "b'}, "not a JSON list of topic filters"),
        ({"path": "data", "topic": '["a", 1]'}, "expected a JSON list of topic filters"),
        ({"path": "data", "maxTriggerDelay": "15"}, "option maxTriggerDelay: expected a time such as"),
        ({"path": "data", "minOffsetsPerTrigger": "x"}, "option minOffsetsPerTrigger: expected a number"),
        (
            {"path": "data", "startingOffsetsByTimestampStrategy": "no"},
            "option startingOffsetsByTimestampStrategy: expected one of latest, error",
        ),
        ({"path": "data", "filterPushdown": "true"}, "unknown option 'filterpushdown'"),
        ({"path": "data", "topics": "a"}, "unknown option 'topics'; did you mean topic?"),
        ({"path": "data", "colour": "red"}, "unknown option 'colour'; options for"),
        ({"path": "data", "topic": "a#"}, "option topic, 'a#': '#' must be the whole"),
        ({"path": "data", "startingOffsets": "soon"}, "option startingOffsets: 'soon' is not a position"),
        ({"path": "data", "endingOffsets": "-1"}, "option endingOffsets: '-1' is not a position"),
        ({"path": "data", "maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger: expected a number"),
        ({"path": "data", "maxBytesPerTrigger": "1k"}, "option maxBytesPerTrigger: expected a number"),
        ({"path": "data", "minPartitions": "²"}, "option minPartitions: expected a number"),
        ({"path": "data", "failOnDataLoss": "no"}, "option failOnDataLoss: expected true or false"),
        ({"path": "data", "payloadFormat": "xml"}, "option payloadFormat: expected one of json, csv, text"),
    ],
)
def test_a_wrong_option_is_named_before_any_job_starts(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as wrong:
        PyriteSource(CaseInsensitiveDict(given))
    assert said in str(wrong.value)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("path", ["/x/a b", "file:/x/a b", "file:///x/a b", "file://localhost/x/a b"])
def test_a_folder_can_be_given_as_a_url(path: str) -> None:
    assert read_options({"path": path}).location.path == Path("/x/a b")


def test_what_spark_adds_for_a_table_is_no_option() -> None:
    of_table = {"provider": "pyrite", "owner": "root", "location": "file:/w/m", "path": "file:/w/m"}
    options = read_options({**of_table, "broker": BROKER, "option.broker": BROKER, "option.topic": "a"})
    assert (options.location.broker, options.location.path, options.topics) == (BROKER, None, ("a",))
    options = read_options({**of_table, "option.startingoffsets": "5"})
    assert (options.location.path, options.starting) == (Path("/w/m"), "5")


def test_an_empty_range_is_allowed() -> None:
    options = read_options({"path": "data", "startingOffsets": "5", "endingOffsets": "5"})
    assert (options.starting, options.ending) == ("5", "5")


@pytest.mark.parametrize(
    ("text", "filters"),
    [("a,b", ("a,b",)), ('["a/#", "b,c/+"]', ("a/#", "b,c/+")), ("[a]/#", ("[a]/#",))],
)
def test_the_option_topic_has_one_filter_or_a_list(text: str, filters: tuple[str, ...]) -> None:
    assert read_options({"path": "data", "topic": text}).topics == filters


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("1 h", 3_600)])
def test_delays_are_times(text: str, seconds: float) -> None:
    assert read_options({"path": "data", "maxTriggerDelay": text}).max_delay == seconds


def test_option_names_are_case_insensitive() -> None:
    options = read_options(CaseInsensitiveDict({"PATH": "data", "startingOFFSETS": "-1h"}))
    assert options.starting == "-1h"
    assert options.location.path is not None
    assert options.location.path.is_absolute()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "data"}, "option path: a folder is read-only"),
        ({"broker": BROKER, "topic": "a/+"}, "option topic, 'a/+': a topic name must not contain wildcards"),
        ({"broker": BROKER, "stream": "default"}, "unknown option 'stream'"),
    ],
)
def test_options_for_reading_are_refused_for_writing(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as wrong:
        write_options(given)
    assert said in str(wrong.value)


def test_options_set_by_spark_itself_are_accepted() -> None:
    given = {"broker": BROKER, "checkpointlocation": "x", "queryname": "y"}
    assert write_options(CaseInsensitiveDict(given)).location.broker == BROKER
