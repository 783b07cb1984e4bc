"""Filling a graph, checking it, and reading progress: without any server."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker import graph
from gpu_worker.graph import Meter
from gpu_worker.provider import JobFailed

CHAIN: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "asset-1"}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def test_a_placeholder_is_replaced_wherever_it_is_the_whole_value() -> None:
    given_graph = {
        "1": {
            "class_type": "asset-1",
            "_meta": {"title": "asset-1"},
            "inputs": {
                "image": "asset-1",
                "list": ["asset-1", "b", "c"],
                "deep": {"asset-1": {"x": "asset-1"}},
                "text": "about asset-1",
                "link": ["asset-1", 0],
            },
        }
    }

    filled = graph.fill(given_graph, {"asset-1": "cat.png"})

    assert filled["1"] == {
        "class_type": "asset-1",
        "_meta": {"title": "asset-1"},
        "inputs": {
            "image": "cat.png",
            "list": ["cat.png", "b", "c"],
            "deep": {"asset-1": {"x": "cat.png"}},
            "text": "about asset-1",
            "link": ["asset-1", 0],
        },
    }
    assert given_graph["1"]["inputs"]["image"] == "asset-1"  # type: ignore[index]


def test_item_5_a_graph_that_would_kill_the_prompt_thread_is_refused() -> None:
    nodes: list[Any] = [{"class_type": "A"}, {"class_type": "A", "inputs": None}, None, []]
    for node in nodes:
        with pytest.raises(JobFailed, match="Node 9") as refused:
            graph.require_runnable({**CHAIN, "9": node})
        assert refused.value.code == "invalid_workflow"


def test_a_node_needs_a_type_and_the_output_node_must_exist() -> None:
    with pytest.raises(JobFailed, match="no type"):
        graph.require_runnable({"1": {"inputs": {}}})
    with pytest.raises(JobFailed, match="no node 7"):
        graph.require_runnable(CHAIN, output_node_id="7")
    graph.require_runnable(CHAIN, output_node_id="3")


def test_nodes_are_reachable_from_the_last_ones() -> None:
    looped = {
        "8": {"class_type": "A", "inputs": {"x": ["9", 0]}},
        "9": {"class_type": "A", "inputs": {"x": ["8", 0]}},
    }
    assert graph.reachable(CHAIN) == {"1", "2", "3"}
    assert graph.reachable({**CHAIN, **looped}) == {"1", "2", "3"}
    missing = {"4": {"class_type": "A", "inputs": {"x": ["77", 0]}}}
    assert graph.reachable({**CHAIN, **missing}) == {"1", "2", "3", "4"}


def test_progress_counts_cached_and_half_done_nodes() -> None:
    meter = Meter(CHAIN)
    meter.read("execution_cached", {"nodes": ["1"]})
    assert meter.share == pytest.approx(1 / 3)

    meter.read("executing", {"node": "2", "display_node": "2"})
    meter.read("progress", {"node": "2", "value": 1, "max": 2})
    assert meter.share == pytest.approx(1.5 / 3)
    assert meter.node == "ImageInvert"

    meter.read(
        "progress_state",
        {"nodes": {"2": {"value": 2, "max": 2}, "3": {"value": 1, "max": 4}, "3.0.1": {}}},
    )
    assert meter.share == pytest.approx(2.25 / 3)
    meter.read("executed", {"node": "3"})
    assert meter.share == 1.0


def test_a_node_made_while_running_is_called_by_the_one_that_made_it() -> None:
    meter = Meter(CHAIN)
    meter.read("executing", {"node": "2.0.1", "display_node": "2"})
    assert meter.node == "ImageInvert"
    meter.read("executing", {"node": "2.0.1", "display_node": "2.0.1"})
    assert meter.node == "ImageInvert"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["1", "2", "3", ""]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("123"), inner),
    max_leaves=8,
)
MESSAGES = st.tuples(
    st.sampled_from(["execution_cached", "progress_state", "progress", "executed", "executing"]),
    st.dictionaries(st.sampled_from(["nodes", "node", "value", "max", "display_node"]), ANYTHING),
)


@given(st.lists(MESSAGES, max_size=10))
@settings(deadline=None)  # the machine may be busy
def test_progress_never_goes_back_whatever_the_messages_say(messages: list[Any]) -> None:
    meter = Meter(CHAIN)
    for kind, content in messages:
        before = meter.share
        meter.read(kind, content)
        assert before <= meter.share <= 1.0
