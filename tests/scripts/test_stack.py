"""What a stack on one machine is told: settings that depend on how it was started."""

import importlib
from pathlib import Path

import pytest

from models.node_types import NodeList
from models.settings import Settings
from models.webhook_rules import WebhookRules
from scripts.comfyui_stand_in.node_classes import CLASSES
from scripts.stack import STAND_IN_NODES, Stack, Wishes, choose_ports
from scripts.state_folder import StateFolder
from webapp.rate_limits import RateLimits


def stack_of(folder: Path, *, gpu_workers: int = 1, comfyui_url: str | None = None) -> Stack:
    state = StateFolder(folder)
    wishes = Wishes(port=0, gpu_workers=gpu_workers, comfyui_url=comfyui_url)
    return Stack(state=state, wishes=wishes, ports=choose_ports(wishes), secrets=state.secrets())


@pytest.mark.parametrize(("gpu_workers", "times"), [(1, 10), (5, 10), (6, 12), (50, 100)])
def test_all_workers_of_a_stack_may_register_twice_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_workers: int, times: int
) -> None:
    monkeypatch.delenv("COMFYFLEET_RATE_LIMITS", raising=False)
    settings = stack_of(tmp_path, gpu_workers=gpu_workers).settings
    limits = RateLimits.from_settings(settings).limits
    assert (limits["register"].amount, limits["register"].get_expiry()) == (times, 60)
    usual = RateLimits.from_settings(Settings()).limits
    assert {**limits, "register": None} == {**usual, "register": None}


def test_the_stand_ins_own_nodes_may_be_uploaded_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMFYFLEET_ALLOWED_NODES", raising=False)
    allowed = NodeList(stack_of(tmp_path).settings.allowed_nodes)
    importlib.import_module("scripts.comfyui_stand_in.server")  # brings all its nodes
    assert [name for name in CLASSES if name not in allowed] == []
    assert {name for name in CLASSES if name not in NodeList("core")} == {*STAND_IN_NODES}
    assert "RunShell" not in allowed
    with_own = stack_of(tmp_path, comfyui_url="http://127.0.0.1:8188").settings
    assert with_own.allowed_nodes == Settings.allowed_nodes
    monkeypatch.setenv("COMFYFLEET_ALLOWED_NODES", "*")
    assert stack_of(tmp_path).settings.allowed_nodes == "*"


def test_limits_of_ones_own_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Settings.rate_limits.replace("register=10", "register=7")
    monkeypatch.setenv("COMFYFLEET_RATE_LIMITS", own)
    assert stack_of(tmp_path, gpu_workers=50).settings.rate_limits == own


def test_webhooks_may_be_tried_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can call the API there. On servers neither is so, unless somebody says it."""
    for name in ("HTTP", "ALLOWED_NETWORKS"):
        monkeypatch.delenv(f"COMFYFLEET_WEBHOOK_{name}", raising=False)
    here = WebhookRules.from_settings(stack_of(tmp_path).settings)
    assert here.target("http://127.0.0.1:9000/").port == 9000
    assert here.permits("::1")
    assert not here.permits("192.168.0.1")
    monkeypatch.setenv("COMFYFLEET_WEBHOOK_ALLOWED_NETWORKS", "")
    assert not WebhookRules.from_settings(stack_of(tmp_path).settings).permits("127.0.0.1")
