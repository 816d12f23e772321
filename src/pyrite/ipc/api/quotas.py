"""Requests about what users take of what all share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyrite.ipc.api.endpoint import After, ApiRequest, Endpoint, Limit, Next, Page, Shown


class QuotaUse(Struct):
    """What a user takes of one quota."""

    used: Annotated[int | float, Meta(description="How much is in use.")]
    limit: Annotated[int | float | None, Meta(description="How much may be; null for no limit.")]


class QuotaUses(Struct):
    """What a user takes of each quota."""

    sessions: QuotaUse
    connections: QuotaUse
    subscriptions: QuotaUse
    consumers: QuotaUse
    retained_messages: QuotaUse
    retained_bytes: QuotaUse
    stored_bytes: QuotaUse
    message_rate: QuotaUse
    byte_rate: QuotaUse
    concurrent_reads: QuotaUse


class Account(Shown):
    """A user, or an address where names are not checked."""

    user: Annotated[str | None, Meta(description="The user name; null for an address.")]
    address: Annotated[
        str | None, Meta(description="The address, where names are not checked, or none is given.")
    ]
    quotas: QuotaUses


class Quotas(Page):
    """What users take of what all share."""

    list_name = "accounts"

    accounts: list[Account]
    next: Next


class ListQuotas(ApiRequest[Quotas]):
    """What each user takes of what all share, by name; the caller's own without `admin` of `#`."""

    endpoint = Endpoint("GET", "/api/v1/quotas")
    limit: Limit = 100
    after: After = ""
