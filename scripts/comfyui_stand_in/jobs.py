"""The queue and the history seen as jobs: the only view that tells their states apart."""

from typing import Any

from scripts.comfyui_stand_in.prompt_queue import Item, PromptQueue

STATUSES = ("pending", "in_progress", "completed", "failed")
Job = dict[str, Any]


class BadQuery(Exception):
    """The list can't be asked for like this. The text is for the client."""


def one(queue: PromptQueue, prompt_id: str) -> Job | None:
    running, pending = queue.snapshot()
    for status, items in (("in_progress", running), ("pending", pending)):
        for item in items:
            if item[1] == prompt_id:
                return _waiting(item, status)
    entry = queue.history.get(prompt_id)
    return _detailed(prompt_id, entry) if entry else None


def page(queue: PromptQueue, query: dict[str, str]) -> dict[str, Any]:
    wanted = _wanted_statuses(query.get("status"))
    running, pending = queue.snapshot()
    jobs = [_waiting(item, "in_progress") for item in running]
    jobs += [_waiting(item, "pending") for item in pending]
    jobs += [_ended(prompt_id, entry) for prompt_id, entry in list(queue.history.items())]
    workflow_id = query.get("workflow_id")
    jobs = [
        job
        for job in jobs
        if job["status"] in wanted and workflow_id in (None, job.get("workflow_id"))
    ]
    jobs.sort(key=lambda job: job["create_time"], reverse=query.get("sort_order") != "asc")
    offset, limit = _number(query, "offset") or 0, _number(query, "limit")
    shown = jobs[offset : None if limit is None else offset + limit]
    pagination = {
        "offset": offset,
        "limit": limit,
        "total": len(jobs),
        "has_more": offset + len(shown) < len(jobs),
    }
    return {"jobs": shown, "pagination": pagination}


def _wanted_statuses(asked: str | None) -> list[str]:
    if not asked:
        return list(STATUSES)
    wanted = [status.strip().lower() for status in asked.split(",")]
    if unknown := [status for status in wanted if status not in STATUSES]:
        valid = ", ".join(STATUSES)
        raise BadQuery(f"Invalid status value(s): {', '.join(unknown)}. Valid values: {valid}")
    return wanted


def _number(query: dict[str, str], name: str) -> int | None:
    if name not in query:
        return None
    try:
        return max(0, int(query[name]))
    except ValueError:
        raise BadQuery(f"{name} must be an integer") from None


def _waiting(item: Item, status: str) -> Job:
    create_time, workflow_id = _origin(item[3])
    job = {
        "id": item[1],
        "status": status,
        "priority": item[0],
        "create_time": create_time,
        "outputs_count": 0,
        "workflow_id": workflow_id,
    }
    return _without_gaps(job)


def _ended(prompt_id: str, entry: dict[str, Any]) -> Job:
    create_time, workflow_id = _origin(entry["prompt"][3])
    messages = entry["status"]["messages"]
    last_event, last_message = messages[-1]
    count, preview = _counted(entry["outputs"])
    job = {
        "id": prompt_id,
        "status": "completed" if entry["status"]["status_str"] == "success" else "failed",
        "priority": entry["prompt"][0],
        "create_time": create_time,
        "execution_start_time": messages[0][1]["timestamp"],
        "execution_end_time": last_message["timestamp"],
        "execution_error": last_message if last_event == "execution_error" else None,
        "outputs_count": count,
        "preview_output": preview,
        "workflow_id": workflow_id,
    }
    return _without_gaps(job)


def _detailed(prompt_id: str, entry: dict[str, Any]) -> Job:
    _, _, prompt, extra_data, _ = entry["prompt"]
    return {
        **_ended(prompt_id, entry),
        "outputs": entry["outputs"],
        "execution_status": entry["status"],
        "workflow": {"prompt": prompt, "extra_data": extra_data},
    }


def _origin(extra_data: dict[str, Any]) -> tuple[int, str | None]:
    """A text where a dict belongs raises, and so the list fails for everybody: as recorded."""
    workflow_id = extra_data.get("extra_pnginfo", {}).get("workflow", {}).get("id")
    return extra_data["create_time"], workflow_id


def _counted(outputs: dict[str, Any]) -> tuple[int, Job | None]:
    count, best, second = 0, None, None
    for node_id, by_kind in outputs.items():
        for kind, items in by_kind.items():
            if kind == "animated" or not isinstance(items, list):
                continue
            count += len(items)
            for item in items:
                if isinstance(item, dict) and "filename" in item:
                    told = {**item, "nodeId": node_id, "mediaType": kind}
                    if item.get("type") == "output":
                        best = best or told
                    second = second or told
    return count, best or second


def _without_gaps(job: Job) -> Job:
    return {name: value for name, value in job.items() if value is not None}
