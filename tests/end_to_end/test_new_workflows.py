"""A workflow that an administrator brings over the API is sold and run; versions do not mix."""

from io import BytesIO
from typing import Any

import requests
from PIL import Image

from tests.end_to_end import jobs
from tests.end_to_end.house import CALL_SECONDS, House

RED, BLUE = 0xFF0000, 0x0000FF


def call(house: House, method: str, path: str, body: dict[str, Any]) -> Any:
    answer = requests.request(
        method,
        f"{house.stack.api_url}/api/admin{path}",
        json=body,
        headers={"Authorization": f"Bearer {house.stack.secrets['admin_token']}"},
        timeout=CALL_SECONDS,
    )
    answer.raise_for_status()
    return answer.json()


def upload(house: House, colour: int) -> Any:
    empty = {"width": "{{size}}", "height": 8, "batch_size": 1, "color": colour}
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": empty},
        "2": {
            "class_type": "SaveImage",
            "inputs": {"images": ["1", 0], "filename_prefix": "{{output_prefix}}"},
        },
    }
    size = {"name": "size", "type": "integer", "default": 8, "placeholder": "{{size}}"}
    new = {"slug": "flag", "name": "Flag", "kind": "image", "graph": graph, "properties": [size]}
    return call(house, "POST", "/workflows", new | {"output_node_id": "2"})


def offer(house: House) -> None:
    new = {"slug": "flag", "name": "Flag", "workflow": "flag", "credits_cost": 2}
    call(house, "POST", "/effects", new)
    call(house, "POST", "/fleets", {"slug": "flags"})
    call(house, "PUT", "/fleets/flags/workflows", {"workflows": ["flag"]})


def colour_of(house: House, job_id: str) -> tuple[int, ...]:
    jobs.require_completed(house, job_id)
    [output] = jobs.end_of(house, job_id)["outputs"]
    answer = requests.get(output["url"], timeout=CALL_SECONDS)
    with Image.open(BytesIO(answer.content)) as picture:
        return tuple(picture.convert("RGB").getpixel((0, 0)))


def test_each_job_runs_the_version_it_was_ordered_with(one_worker: House) -> None:
    house = one_worker
    assert upload(house, RED)["version"] == 1
    offer(house)  # at a fleet that has no workers yet
    red = str(house.customer.order("flag", size=5)["id"])
    assert upload(house, BLUE)["version"] == 2
    blue = str(house.customer.order("flag", size=6)["id"])
    call(house, "PATCH", "/workflows/flag", {"version": 1})
    red_again = str(house.customer.order("flag", size=7)["id"])

    before = fleet(house, "gpu-default")["workflows"]
    wanted = {"workflows": [*before, "flag"]}
    call(house, "PUT", "/fleets/gpu-default/workflows", wanted)  # they move along, and are rung for
    assert [colour_of(house, job) for job in (red, blue, red_again)] == [
        (255, 0, 0),
        (0, 0, 255),
        (255, 0, 0),
    ]


def fleet(house: House, slug: str) -> Any:
    [found] = [one for one in call(house, "GET", "/fleets", {})["items"] if one["slug"] == slug]
    return found
