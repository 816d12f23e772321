"""Requests that the OpenAPI description allows, and some that it forbids, are answered as it says."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.process import BrokerProcess

from .conftest import HTTP

EXAMPLES = int(os.environ.get("PYRITE_HTTP_EXAMPLES", "12"))
"""Requests for each operation."""


@pytest.fixture(scope="module")
def description(broker: BrokerProcess) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{broker.urls[HTTP]}/openapi.json")


schema = schemathesis.pytest.from_fixture("description")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_answers_as_described(case: schemathesis.Case[Any]) -> None:
    if isinstance(case.body, dict) and 0 < _number(case.body.get("wait")) <= 30:
        case.body["wait"] = 0.1  # as good as any other, and sooner over
    case.call_and_validate(
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_headers_conformance,
            response_schema_conformance,
            negative_data_rejection,
            unsupported_method,
        ]
    )


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def test_the_broker_is_healthy_after_all_requests(api: httpx.Client) -> None:
    assert api.get("/health").status_code == 200
