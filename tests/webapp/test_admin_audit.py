"""The audit log over the API."""

from uuid import uuid4

import pytest

from models.users import Role
from tests.webapp.calls import Caller, Json, MakeCaller, answered, is_utc, ordered, refused
from tests.webapp.gpus import Gpu, held, lease_of

LOG = "/api/admin/audit"


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def rows(admin: Caller, query: str) -> list[Json]:
    items: list[Json] = answered(admin.get(f"{LOG}?{query}"))["items"]
    return items


def test_the_log_is_read_by_who_what_and_where(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    ordered(ada, gpu.fleet)
    lease = held(gpu)
    answered(gpu.call("fail", lease_of(lease) | {"error": "Too dark."}))
    payment = {"amount": 5, "provider_transaction_id": uuid4().hex, "note": "Sorry"}
    user = ada.person
    answered(admin.post(f"/api/admin/wallets/{user.user_id}/credit", json=payment), 201)

    by_dispatch = rows(admin, f"dispatch={lease['dispatch_id']}")
    assert [row["event"] for row in by_dispatch] == ["job.fail", "job.lease"]
    assert all(is_utc(row["at"]) for row in by_dispatch)
    by_worker = rows(admin, f"worker={gpu.worker_id}")
    assert [row["event"] for row in by_worker] == ["job.fail", "job.lease", "worker.register"]
    assert by_worker == rows(admin, f"actor=worker:{gpu.worker_id}")
    [mine] = rows(admin, f"actor=user:{admin.person.user_id}")
    assert (mine["event"], mine["tenant_id"]) == ("wallet.credit", str(user.tenant_id))
    assert mine["details"]["note"] == "Sorry"
    assert mine in rows(admin, "event=wallet.credit")
    assert rows(admin, f"event=job.lease&tenant={user.tenant_id}") == [by_dispatch[1]]
    assert rows(admin, f"event=job.lease&actor=user:{admin.person.user_id}") == []


def test_the_log_is_paged(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    ordered(ada, gpu.fleet)
    answered(gpu.call("fail", lease_of(held(gpu)) | {"error": "Too dark."}))
    first = answered(admin.get(f"{LOG}?worker={gpu.worker_id}&limit=1"))
    rest = answered(admin.get(f"{LOG}?worker={gpu.worker_id}&cursor={first['next_cursor']}"))
    assert first["items"] + rest["items"] == rows(admin, f"worker={gpu.worker_id}")
    other = admin.get(f"{LOG}?event=job.lease&cursor={first['next_cursor']}")
    refused(other, 422, "invalid_cursor")


@pytest.mark.parametrize("query", ["dispatch=x", "tenant=x", f"actor={'x' * 201}"])
def test_a_filter_that_makes_no_sense_is_refused(admin: Caller, query: str) -> None:
    refused(admin.get(f"{LOG}?{query}"), 422, "invalid_input", query.partition("=")[0])


def test_a_user_reads_no_log(ada: Caller) -> None:
    refused(ada.get(LOG), 403, "forbidden")
