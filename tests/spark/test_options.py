"""What `format("pyrite")` may be told, and what it says of all else. Without a Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pyrite.spark.options import OptionError, read_options, write_options
from pyrite.spark.source import PyriteSource

BROKER = "flight://127.0.0.1:8815"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of the options broker"),
        ({"broker": BROKER, "path": "data"}, "one of the options broker"),
        ({"broker": "mqtt://127.0.0.1:1883"}, "option broker: expected flight://HOST:PORT"),
        ({"broker": "flight://127.0.0.1:x"}, "option broker: expected flight://HOST:PORT"),
        (
            {"path": "data", "password": "x"},
            "options username, password, token, caFile, certFile, keyFile go with broker",
        ),
        ({"path": "data", "topics": "a"}, "no option 'topics'; did you mean topic?"),
        ({"path": "data", "colour": "red"}, "no option 'colour'; for"),
        ({"path": "data", "topic": "a#"}, "option topic, 'a#': '#' stands alone"),
        ({"path": "data", "startingOffsets": "soon"}, "option startingOffsets: 'soon' is no position"),
        ({"path": "data", "endingOffsets": "-1"}, "option endingOffsets: '-1' is no position"),
        ({"path": "data", "maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger: expected a number"),
        ({"path": "data", "maxBytesPerTrigger": "1k"}, "option maxBytesPerTrigger: expected a number"),
        ({"path": "data", "minPartitions": "²"}, "option minPartitions: expected a number"),
        ({"path": "data", "failOnDataLoss": "no"}, "option failOnDataLoss: expected true or false"),
        ({"path": "data", "payloadFormat": "xml"}, "option payloadFormat: expected one of json, csv, text"),
    ],
)
def test_what_is_wrong_is_named_as_soon_as_spark_has_the_options(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as wrong:
        PyriteSource(CaseInsensitiveDict(given))
    assert said in str(wrong.value)


def test_case_does_not_matter() -> None:
    options = read_options(CaseInsensitiveDict({"PATH": "data", "startingOFFSETS": "-1h"}))
    assert options.starting == "-1h"
    assert options.place.path is not None
    assert options.place.path.is_absolute()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "data"}, "option path: a folder can only be read"),
        ({"broker": BROKER, "topic": "a/+"}, "option topic, 'a/+': a topic name holds no wildcard"),
        ({"broker": BROKER, "stream": "default"}, "no option 'stream'"),
    ],
)
def test_a_writer_has_fewer_options(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as wrong:
        write_options(given)
    assert said in str(wrong.value)


def test_what_spark_itself_passes_on_is_no_mistake() -> None:
    given = {"broker": BROKER, "checkpointlocation": "x", "queryname": "y"}
    assert write_options(CaseInsensitiveDict(given)).place.broker == BROKER
