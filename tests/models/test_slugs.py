"""Names that are fit for addresses, Redis and AWS, and those that are not."""

import pytest

from models import fleets, slugs
from models.errors import InvalidInput
from tasks import tickets
from tasks.backend import Backend


@pytest.mark.parametrize("slug", ["a", "gpu-default", "f-12345678", "sd3", "a1-2-3", "x" * 63])
def test_a_plain_name_is_a_slug(slug: str) -> None:
    assert slugs.check(slug) == slug
    assert fleets.check_slug(slug) == slug


@pytest.mark.parametrize(
    "slug",
    [
        *("", "A", "3d", "-a", "a-", "a--b", "a_b", "a b", "a.b", "a/b", "a*", "a\n", "a\0", "ä"),
        *("../a", "x" * 64, "gpu:1", "{a}", "a\u0661"),
        *("deadbeef-dead-beef-dead-beefdeadbeef", "deadbeefdeadbeefdeadbeefdeadbeef"),
    ],
)
def test_what_means_more_than_itself_somewhere_is_none(slug: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        slugs.check(slug)
    assert [*(refused.value.errors or {})] == ["slug"]
    with pytest.raises(InvalidInput):
        fleets.check_slug(slug)


@pytest.mark.parametrize("slug", sorted({tickets.CONTROL_QUEUE, "unacked", "celery", "runpod"}))
def test_no_fleet_is_called_as_a_key_of_somebody_else(slug: str) -> None:
    assert slug in fleets.RESERVED
    assert slugs.check(slug)
    with pytest.raises(InvalidInput, match="can't be the name of a fleet"):
        fleets.check_slug(slug)


def test_names_made_of_the_longest_ones_are_short_enough_for_aws() -> None:
    template = f"lt-{'s' * fleets.STAGE_MAX_LENGTH}-{'f' * slugs.MAX_LENGTH}"
    assert len(template) <= 128


@pytest.mark.parametrize("stage", ["", "Dev", "a b", "../x", "s" * 33])
def test_a_stage_is_a_short_slug(sqlite: Backend, stage: str) -> None:
    with sqlite.databases.central() as session, pytest.raises(InvalidInput) as refused:
        fleets.create(session, stage=stage, slug="f", name="F")
    assert [*(refused.value.errors or {})] == ["stage"]
