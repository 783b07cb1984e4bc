"""Secrets in every dress they may wear on their way into a log, and what is no secret."""

import json
import logging
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import log_secrets, logs
from models.log_secrets import scrub
from models.object_store_urls import Grant, UrlSigner
from models.settings import Settings

SECRET = "s3cr3t-Value_0123456789"
SIGNED = UrlSigner("http://127.0.0.1:8000", "k" * 32).sign("GET", Grant(key="a/b"), seconds=60)
S3 = (
    "https://bucket.s3.amazonaws.com/a/b.png?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="
    f"AKIA%2F20261118&X-Amz-Security-Token={SECRET}&X-Amz-Signature={SECRET}"
)


@pytest.fixture(autouse=True)
def nothing_known_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_secrets, "_kept", set())
    monkeypatch.setattr(log_secrets, "_kept_pattern", None)


@pytest.mark.parametrize(
    "text",
    [
        f"GET {S3} failed",
        f"Max retries exceeded with url: /a/b.png?{S3.partition('?')[2]} (Caused by X)",
        f"<Response from '{S3}'>",
        f'{{"url": "{S3}"}}',
        f"Invalid HTTP request line: 'GET /x?access_token={SECRET} HTTP/1.1'",
        f"https://example.com/a\\u0026signature={SECRET}",
        f"{{'X-Amz-Signature': '{SECRET}', 'length': 7}}",
        f"[('Authorization', 'Bearer {SECRET}'), ('X-Fleet-Secret', '{SECRET}')]",
        f"Authorization: Bearer {SECRET}",
        f"authorization: bearer  {SECRET}",
        f'"Authorization": "Bearer {SECRET}"',
        f"X-Fleet-Secret: {SECRET}",
        f"COMFYFLEET_FLEET_SECRETS=gpu-default={SECRET}",
        f"COMFYFLEET_SECRET_KEY={SECRET}",
        f'{{"lease_token": "{SECRET}", "status": "x"}}',
        f"password={SECRET}",
        f"{{'password': '{SECRET}'}}",
        f"aws_secret_access_key = {SECRET}",
        f"redis://:{SECRET}@127.0.0.1:6379/0",
        f"redis://fleet:{SECRET}@127.0.0.1:6379/0",
        f"gpu_worker.transport:Transport://fleet:{SECRET}@host",
        f"postgresql+psycopg2://login:{SECRET}@db/central",
        f"the key is whsec_{SECRET}",
        f"$argon2id$v=19$m=65536,t=3,p=4${SECRET}",
    ],
)
def test_what_opens_a_door_does_not_leave(text: str) -> None:
    assert SECRET not in scrub(text)
    record = logging.LogRecord("a", logging.ERROR, "", 1, "%s", (text,), None)
    record.exc_info = (ValueError, ValueError(text), None)
    record.stack_info = text
    vars(record)["fields"] = {"text": text, "deep": [{"er": text}], text: 1}
    told = json.loads(logs.JsonLines().format(record))
    told.pop("message")
    for field in ("text", "deep", "exception", "stack"):
        assert SECRET not in json.dumps(told[field])


def test_a_signed_address_of_our_own_leaves_without_its_query() -> None:
    assert scrub(f"GET {SIGNED} failed") == "GET http://127.0.0.1:8000/storage/a/b?*** failed"


@pytest.mark.parametrize("name", ["token", "fleet_secret", "X-Amz-Signature", "Authorization"])
def test_a_field_with_a_revealing_name_is_struck_out(name: str) -> None:
    assert log_secrets.scrubbed({"of": {name: SECRET}}) == {"of": {name: "***"}}


@pytest.mark.parametrize(
    "text",
    [
        "POST /api/ai-jobs 201 in 12 ms",
        "This costs 20 tokens; the wallet holds 7. required_tokens: 20",
        "Job 01a1eee3-7ae3-7c06-a58c-d578ec0188c6 failed: execution_failed.",
        "Waiting for the webapp at http://127.0.0.1:8000/api: ConnectionRefusedError",
        "Is it there? Yes = no.",
        "bearer of bad news",
        "The secret of success is work.",
        "12:34:56 [a=b] (c, d) {'e': 'f'}",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert scrub(text) == text


def test_secrets_known_by_heart_do_not_leave_in_any_dress() -> None:
    log_secrets.keep_secret(SECRET, "redis://:p%40ssw0rd-long@host:1/0", "short", "", "http://[")
    assert scrub(f"odd{SECRET}odd p@ssw0rd-long p%40ssw0rd-long short") == "odd***odd *** *** short"


def test_every_secret_of_the_settings_is_known() -> None:
    words = [uuid4().hex + end for end in ("", "", "", "==", "", "", "", "")]
    settings = Settings(
        secret_key=words[0],
        fleet_secrets=f"{words[1]} gpu-default={words[2]} other={words[3]}",
        central_url=f"postgresql://u:{words[4]}@h/c",
        pool_urls=f"main=postgresql://u:{words[5]}@h/p",
        owner_urls=f"central=postgresql://o:{words[6]}@h/c",
        redis_url=f"redis://:{words[7]}@h/0",
    )
    log_secrets.keep_secret(*settings.secrets)
    for word in words:
        assert word not in scrub(f"told {word}.")


@given(st.text(), st.text())
def test_scrubbing_never_fails_and_is_done_after_once(before: str, after: str) -> None:
    text = f"{before} Authorization: Bearer {SECRET} {after}"
    assert SECRET not in scrub(text)
    assert scrub(scrub(text)) == scrub(text)


@pytest.mark.parametrize("text", ["a-" * 20_000, "token" * 8_000, "://" * 13_000, "?a" * 20_000])
def test_long_texts_of_the_worst_kind_are_scrubbed_too(text: str) -> None:
    """With a pattern that goes back over them again and again this would not end."""
    assert isinstance(scrub(text), str)


def test_ids_are_told_as_they_are() -> None:
    logs.begin(job_id="01a1eee3-7ae3-7c06-a58c-d578ec0188c6", trace_id="8a2f8b0cc687e59c")
    told: dict[str, Any] = json.loads(
        logs.JsonLines().format(logging.LogRecord("a", 20, "", 1, "x", (), None))
    )
    logs.end()
    assert told["trace_id"] == "8a2f8b0cc687e59c"
