"""Spark with a broker that has users, over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from pyspark.sql import DataFrame, SparkSession

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

RULES = """
[access]
users = 'users'
[[access.rule]]
users = ['ann']
publish = ['#']
pull = ['#']
[[access.rule]]
users = ['bob']
publish = ['b/#']
[[access.rule]]
users = ['eve']
pull = ['b/#']
[tls]
certificate = 'server.pem'
"""

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
Options = dict[str, str]


@pytest.fixture(scope="module")
def secured(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    """A broker with two users and a message, and Ann's options for Spark."""
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    write_users(
        folder / "users", [User(name, hash_password(f"{name}-word")) for name in ("ann", "bob", "eve")]
    )
    (folder / "pyrite.toml").write_text(RULES)
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "flights")]
    with BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=folder) as broker:
        with BlockingClient(broker.urls[0], username="ann", password="ann-word") as ann:
            ann.publish("a", b"first", qos=1)
        yield {
            "broker": broker.urls[1],
            "username": "ann",
            "password": "ann-word",
            "caFile": str(folder / "ca.pem"),
        }


def payloads(frame: DataFrame) -> list[bytes]:
    return [bytes(row.payload) for row in frame.select("payload").collect()]


def test_a_user_with_rights_reads_and_publishes(
    spark: SparkSession, secured: Options, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([("a", "second")], "topic string, payload string")
    frame.write.format("pyrite").options(**secured).mode("append").save()
    assert payloads(spark.read.format("pyrite").options(**secured).load()) == [b"first", b"second"]
    query = (
        spark.readStream.format("pyrite")
        .options(**secured, startingOffsets="earliest")
        .load()
        .writeStream.format("memory")
        .queryName("secured")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert payloads(spark.table("secured")) == [b"first", b"second"]


@pytest.mark.parametrize(
    "changed",
    [{"password": "wrong"}, {"username": "bob", "password": "bob-word"}, {"caFile": ""}],
    ids=["a wrong password", "a user who may not", "a certificate that is not trusted"],
)
def test_a_user_without_rights_is_refused(spark: SparkSession, secured: Options, changed: Options) -> None:
    given = {name: value for name, value in (secured | changed).items() if value}
    with pytest.raises(Exception, match=r"(?i)not authorized|wrong user name|certificate") as refused:
        spark.read.format("pyrite").options(**given).load().collect()
    assert "-word" not in str(refused.value), "credentials are not told"


def test_a_missing_right_is_told_by_the_driver_in_two_lines(spark: SparkSession, secured: Options) -> None:
    given = secured | {"username": "eve", "password": "eve-word"}
    spark.sparkContext.setJobGroup("rights", "", False)
    reader = spark.read.format("pyrite").options(**given)
    with pytest.raises(Exception, match=r"not authorized: pull '#'") as refused:
        reader.load().collect()
    assert len(str(refused.value).strip().splitlines()) <= 2
    assert "Traceback" not in str(refused.value)
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("rights")) == []
    assert payloads(reader.option("topic", '["b/#", "b/1"]').load()) == []


def test_a_user_publishes_only_to_permitted_topics(spark: SparkSession, secured: Options) -> None:
    given = secured | {"username": "bob", "password": "bob-word"}
    frame = spark.createDataFrame([("b/1", "mine"), ("a", "not mine")], "topic string, payload string")
    with pytest.raises(Exception, match=r"(?i)not authorized"):
        frame.write.format("pyrite").options(**given).mode("append").save()
    assert b"mine" not in payloads(spark.read.format("pyrite").options(**secured).load())
