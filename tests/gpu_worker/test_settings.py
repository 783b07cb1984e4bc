"""Settings of the worker: from the environment, then from the instance, and never guessed."""

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from gpu_worker import identity
from gpu_worker.imds import MetadataUnavailable
from gpu_worker.settings import BadSetting, Settings, variable_of
from scripts.imds_stand_in import ImdsStandIn
from scripts.server_process import free_port
from tests.gpu_worker.aws import ENVIRONMENT, REGION, aws

CODE = Path(__file__).parents[2]
ENOUGH = {
    "COMFYFLEET_BACKEND_URL": "http://127.0.0.1:8000",
    "COMFYFLEET_REDIS_URL": "redis://:pass-of-redis@127.0.0.1:6379/0",
    "COMFYFLEET_FLEET_SLUG": "sdxl",
    "COMFYFLEET_FLEET_SECRET": "secret-of-the-fleet",
}


@pytest.fixture
def stand_in() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as started:
        yield started


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The state folder is relative, and a name is kept in it."""
    monkeypatch.chdir(tmp_path)


def from_env(**given: str) -> Settings:
    return Settings.from_env(ENOUGH | given)


def on_instance(stand_in: ImdsStandIn, **given: str) -> Settings:
    return from_env(AWS_EC2_METADATA_SERVICE_ENDPOINT=stand_in.url("i-0abc"), **given)


# The environment


def test_every_setting_has_a_help_text_and_a_variable() -> None:
    for option in fields(Settings):
        assert len(option.metadata["help"]) > 10, option.name
        assert variable_of(option).startswith(("COMFYFLEET_", "AWS_EC2_METADATA_")), option.name


def test_defaults_stand_where_nothing_is_said() -> None:
    settings = Settings.from_env({})
    assert (settings.comfyui_url, settings.spot_poll_seconds) == ("http://127.0.0.1:8188", 3)
    assert settings.cache_max_bytes == 20 * 1024**3
    assert not settings.on_ec2
    assert not settings.protects_from_scale_in


def test_numbers_may_have_fractions_where_they_are_seconds() -> None:
    settings = from_env(COMFYFLEET_SPOT_POLL_SECONDS="0.5", COMFYFLEET_CACHE_MAX_BYTES=" 1000 ")
    assert (settings.spot_poll_seconds, settings.cache_max_bytes) == (0.5, 1000)


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "5s"])
@pytest.mark.parametrize("name", ["COMFYFLEET_STOP_SECONDS", "COMFYFLEET_CACHE_MAX_BYTES"])
def test_a_number_that_is_none_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} is {text!r}; it takes a number above 0"):
        from_env(**{name: text})


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://h:x", "//h"])
@pytest.mark.parametrize(
    "name",
    ["COMFYFLEET_BACKEND_URL", "COMFYFLEET_COMFYUI_URL", "AWS_EC2_METADATA_SERVICE_ENDPOINT"],
)
def test_an_address_that_is_none_is_refused_by_name(name: str, url: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} is .*; it takes an address"):
        from_env(**{name: url})


@pytest.mark.parametrize(
    ("word", "off_ec2", "on_ec2"),
    [("auto", False, True), ("on", True, True), ("off", False, False)],
)
def test_scale_in_protection_is_for_ec2_unless_said_otherwise(
    stand_in: ImdsStandIn, word: str, off_ec2: bool, on_ec2: bool
) -> None:
    given = {"COMFYFLEET_SCALE_IN_PROTECTION": word}
    assert from_env(**given).protects_from_scale_in is off_ec2
    assert on_instance(stand_in, **given).protects_from_scale_in is on_ec2


def test_another_word_for_scale_in_protection_is_refused() -> None:
    with pytest.raises(BadSetting, match="SCALE_IN_PROTECTION is 'yes'; it takes auto, on, off"):
        from_env(COMFYFLEET_SCALE_IN_PROTECTION="yes")


@pytest.mark.parametrize("name", ["LOG_FORMAT", "LOG_LEVEL"])
def test_logs_have_no_other_form_or_level(name: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} is 'loud'; it takes (auto|debug)"):
        from_env(**{f"COMFYFLEET_{name}": "loud"})


def test_secrets_do_not_show() -> None:
    settings = from_env()
    assert settings.fleet_secret == "secret-of-the-fleet"
    for secret in ("secret-of-the-fleet", "pass-of-redis"):
        assert secret not in repr(settings) + str(settings) + f"{settings}"


# What a worker can't do without


@pytest.mark.parametrize("name", sorted(ENOUGH))
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadSetting, match=name):
        identity.complete(from_env(**{name: ""}))


NAMED = """
from gpu_worker import identity
from gpu_worker.settings import Settings
print(identity.complete(Settings.from_env()).worker_id)
"""


def test_off_ec2_a_worker_keeps_the_name_it_drew(tmp_path: Path) -> None:
    given = ENOUGH | {"COMFYFLEET_STATE_DIR": str(tmp_path), "PYTHONPATH": str(CODE)}
    names = [
        subprocess.run(
            [sys.executable, "-c", NAMED], env=given, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert names[0].startswith(f"{socket.gethostname()}-")


def test_a_folder_that_can_not_hold_the_name_is_told() -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_STATE_DIR: /dev/null can't be used"):
        identity.complete(from_env(COMFYFLEET_STATE_DIR="/dev/null"))


def test_two_at_once_have_two_names(tmp_path: Path) -> None:
    given = {"COMFYFLEET_STATE_DIR": str(tmp_path)}
    first, second = identity.complete(from_env(**given)), identity.complete(from_env(**given))
    assert first.worker_id != second.worker_id
    assert (first.stage, first.asg_name, first.region) == ("dev", "", "")
    named = identity.complete(from_env(COMFYFLEET_WORKER_ID="local-1", COMFYFLEET_STAGE="test"))
    assert (named.worker_id, named.stage) == ("local-1", "test")


# The instance


def test_what_is_missing_comes_from_the_instance(stand_in: ImdsStandIn) -> None:
    stand_in.set("i-0abc", "tags/instance/FleetSlug", "sdxl")
    stand_in.set("i-0abc", "tags/instance/Stage", "prod\n")
    stand_in.set("i-0abc", "placement/region", REGION)
    settings = identity.complete(on_instance(stand_in, COMFYFLEET_FLEET_SLUG=""))
    assert (settings.worker_id, settings.fleet_slug) == ("i-0abc", "sdxl")
    assert (settings.stage, settings.region) == ("prod", REGION)
    assert settings.asg_name == "asg-prod-sdxl"


def test_the_environment_wins_over_the_instance(stand_in: ImdsStandIn) -> None:
    stand_in.set("i-0abc", "tags/instance/FleetSlug", "other")
    stand_in.set("i-0abc", "tags/instance/Stage", "other")
    given = {"WORKER_ID": "w-1", "STAGE": "prod", "REGION": "us-west-2", "ASG_NAME": "mine"}
    settings = identity.complete(
        on_instance(stand_in, **{f"COMFYFLEET_{name}": value for name, value in given.items()})
    )
    assert {name: getattr(settings, name.lower()) for name in given} == given
    assert settings.fleet_slug == "sdxl"


def test_an_instance_without_tags_must_be_told_its_fleet(stand_in: ImdsStandIn) -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_FLEET_SLUG is not set"):
        identity.complete(on_instance(stand_in, COMFYFLEET_FLEET_SLUG=""))


def test_metadata_that_does_not_answer_is_told() -> None:
    away = f"http://127.0.0.1:{free_port()}/"
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        identity.complete(from_env(AWS_EC2_METADATA_SERVICE_ENDPOINT=away))


def test_the_secret_comes_decrypted_from_ssm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with aws() as cloud, caplog.at_level(logging.INFO):
        for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": cloud.url}).items():
            monkeypatch.setenv(name, value)
        ssm = cloud.client("ssm")
        ssm.put_parameter(Name="/prod/sdxl", Value="secret-from-ssm\n", Type="SecureString")
        given = {"COMFYFLEET_FLEET_SECRET": "", "COMFYFLEET_REGION": REGION}
        settings = identity.complete(
            from_env(COMFYFLEET_FLEET_SECRET_PARAMETER="/prod/sdxl", **given)
        )
        assert settings.fleet_secret == "secret-from-ssm"
        assert "secret-from-ssm" not in repr(settings) + caplog.text
        with pytest.raises(BadSetting, match=r"'/prod/none' can't be used \(ParameterNotFound"):
            identity.complete(from_env(COMFYFLEET_FLEET_SECRET_PARAMETER="/prod/none", **given))


def test_an_ssm_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": address}).items():
        monkeypatch.setenv(name, value)
    given = {"COMFYFLEET_FLEET_SECRET": "", "COMFYFLEET_REGION": REGION}
    with pytest.raises(BadSetting, match=r"can't be used \(EndpointConnectionError"):
        identity.complete(from_env(COMFYFLEET_FLEET_SECRET_PARAMETER="/prod/sdxl", **given))
