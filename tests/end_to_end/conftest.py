"""A house for all tests of this folder; before each all is well in it, after each the books are."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing

import psycopg2
import pytest
from sqlalchemy import make_url

from tests.end_to_end import jobs
from tests.end_to_end.house import House, opened
from tests.end_to_end.running_part import until


@pytest.fixture(scope="package")
def house(place: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    urls = {part: empty_database(f"house_{part}_{place}") for part in ("central", "pool")}
    folder = tmp_path_factory.mktemp("house")
    with opened(folder, database_url=urls["central"], pool_url=urls["pool"]) as house:
        yield house


def empty_database(name: str) -> str:
    admin = make_url(os.environ["TEST_DATABASE_URL"])
    plain = admin.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(plain)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}"')
    return admin.set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def one_worker(house: House) -> Iterator[House]:
    yield from in_order(house, workers=1)


@pytest.fixture
def told_more(one_worker: House) -> Iterator[House]:
    """What is put into `told` counts for programs that start from there on, in this test."""
    yield one_worker
    one_worker.told.clear()
    one_worker.restart_ours()


@pytest.fixture
def two_workers(house: House) -> Iterator[House]:
    yield from in_order(house, workers=2)


def in_order(house: House, *, workers: int) -> Iterator[House]:
    house.make_ready(workers=workers)
    jobs.cancel_open(house)
    yield house
    jobs.check_books(house)
    until("no job leaves a folder behind", lambda: not house.job_folders(), seconds=20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows how the logs of all processes end."""
    report = yield
    house = getattr(item, "funcargs", {}).get("house")
    if report.failed and isinstance(house, House):
        report.sections += [(f"log of {part.name}", part.tail()) for part in house.parts]
    return report
