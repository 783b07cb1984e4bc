"""A fleet with a workflow, and jobs waiting for it: for tests of the queue."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from models import dispatches, fleets, lanes, tenants, workflows
from models.dispatches import Dispatch, Lease
from models.workflows import Recipe
from tasks.backend import Backend


@dataclass
class Queue:
    backend: Backend
    tenant_id: UUID
    fleet_id: UUID
    workflow_id: UUID

    def add(
        self,
        user_id: UUID,
        *,
        count: int = 1,
        priority: int = 0,
        workflow_id: UUID | None = None,
        provider: str = "self_hosted",
        max_attempts: int = 3,
    ) -> list[UUID]:
        """Job ids, in the order they were queued."""
        jobs = [uuid4() for _ in range(count)]
        with self.backend.databases.central() as session:
            for job_id in jobs:
                lanes.join(
                    session,
                    tenant_id=self.tenant_id,
                    tenant_job_id=job_id,
                    user_id=user_id,
                    workflow_id=workflow_id or self.workflow_id,
                    fleet_id=self.fleet_id,
                    provider=provider,
                    priority=priority,
                    max_attempts=max_attempts,
                )
        return jobs

    def lease(self, *, seconds: int = 180, **given: object) -> Dispatch | None:
        options: dict[str, object] = {
            "fleet_id": self.fleet_id,
            "providers": ["self_hosted"],
            "workflow_ids": [self.workflow_id],
            "worker_id": "w1",
            "lease_seconds": seconds,
        }
        with self.backend.databases.central() as session:
            return lanes.lease(session, **(options | given))  # type: ignore[arg-type]

    def must_lease(self, **given: object) -> Dispatch:
        dispatch = self.lease(**given)  # type: ignore[arg-type]
        assert dispatch is not None
        return dispatch

    def drain(self) -> list[UUID]:
        """Lease until nothing waits; the job ids in that order."""
        order = []
        while dispatch := self.lease():
            order.append(dispatch.tenant_job_id)
        return order

    def row(self, job_id: UUID) -> Dispatch:
        with self.backend.databases.central(read_only=True) as session:
            found = dispatches.find_by_job(session, self.tenant_id, job_id)
        assert found is not None
        return found


def make_queue(backend: Backend) -> Queue:
    recipe = Recipe(graph={}, output_node_id=None, properties=[])
    with backend.databases.central() as session:
        tenant = tenants.create(session, name="t", pool="main")
        fleet = fleets.put(session, stage="dev", slug=f"f-{uuid4().hex[:8]}", name="F")
        workflow = workflows.put(
            session, slug=f"w-{uuid4().hex[:8]}", name="W", kind="image", recipe=recipe
        )
        fleets.assign(session, fleet, workflow_id=workflow.id)
    return Queue(backend, tenant.id, fleet.id, workflow.id)


def lease_of(dispatch: Dispatch) -> Lease:
    assert dispatch.lease_token is not None
    return Lease(dispatch.id, dispatch.lease_token)
