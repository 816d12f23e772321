"""Requests about quotas."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyrite.ipc.api.endpoint import After, ApiRequest, Endpoint, Limit, Next, Page, Shown


class QuotaUse(Struct):
    """The use of one quota."""

    used: Annotated[int | float, Meta(description="The present use.")]
    limit: Annotated[int | float | None, Meta(description="The limit; null if there is none.")]


class QuotaUses(Struct):
    """The use of each quota."""

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


class AccountInfo(Shown):
    """A user, or an address where user names are not checked."""

    user: Annotated[str | None, Meta(description="The user name; null for an address.")]
    address: Annotated[
        str | None, Meta(description="The address, if user names are not checked or none was given.")
    ]
    quotas: QuotaUses


class AccountPage(Page):
    """The use of quotas by users."""

    list_name = "accounts"

    accounts: list[AccountInfo]
    next: Next


class ListQuotas(ApiRequest[AccountPage]):
    """The use of quotas by each user, by name; without the right `admin` on `#`, only the caller's."""

    endpoint = Endpoint("GET", "/api/v1/quotas")
    limit: Limit = 100
    after: After = ""
