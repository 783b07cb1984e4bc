"""Two walls between tenants: each is taken away in turn, and the other one holds."""

from uuid import uuid4

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from models import files, ledger
from models.files import File
from models.ledger import Wallet
from models.session import make_engine
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person


def add_file(backend: Backend, person: Person) -> File:
    with backend.databases.tenant(person.tenant_id) as session:
        return files.announce(
            session,
            user_id=person.user_id,
            filename="a.png",
            mime_type="image/png",
            size_bytes=1,
            object_key=f"uploads/{uuid4()}.png",
        )


def names(session: Session) -> list[str]:
    return [str(file.id) for file in session.scalars(select(File))]


def test_a_session_sees_its_own_tenant_only(backend: Backend, person: MakePerson) -> None:
    ada, bob = person(), person()
    hers, his = add_file(backend, ada), add_file(backend, bob)
    with backend.databases.tenant(ada.tenant_id) as session:
        assert names(session) == [str(hers.id)]
        assert session.get(File, his.id) is None
        assert session.query(File).filter(File.id == his.id).count() == 0
    with backend.databases.pool("main") as session:
        assert set(names(session)) == {str(hers.id), str(his.id)}


def test_the_filter_holds_without_row_level_security(sqlite: Backend) -> None:
    """SQLite has no second wall at all, so this is the first one alone."""
    ada, bob = make_person(sqlite), make_person(sqlite)
    add_file(sqlite, bob)
    with sqlite.databases.tenant(ada.tenant_id) as session:
        assert names(session) == []
        session.execute(update(File).values(filename="stolen"))
    with sqlite.databases.tenant(bob.tenant_id) as session:
        assert session.scalars(select(File)).one().filename == "a.png"


def test_row_level_security_holds_without_the_filter(postgres: Backend) -> None:
    """Raw SQL knows nothing of our filter."""
    ada, bob = make_person(postgres), make_person(postgres, tokens=9)
    add_file(postgres, bob)
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert session.execute(text("SELECT id FROM files")).all() == []
        changed = session.execute(text("UPDATE token_wallets SET balance = 0"))
        assert changed.rowcount == 0  # type: ignore[attr-defined]
    with postgres.databases.tenant(bob.tenant_id) as session:
        assert ledger.balance(session, user_id=bob.user_id) == 9


def test_row_level_security_refuses_rows_for_others(postgres: Backend) -> None:
    ada, bob = make_person(postgres), make_person(postgres)
    insert = text(
        "INSERT INTO token_wallets (id, tenant_id, user_id, balance)"
        " VALUES (gen_random_uuid(), :tenant, :user, 1000)"
    )
    with (
        pytest.raises(ProgrammingError, match="row-level security"),
        postgres.databases.tenant(ada.tenant_id) as session,
    ):
        session.execute(insert, {"tenant": bob.tenant_id, "user": bob.user_id})


def test_a_transaction_that_names_no_tenant_sees_nothing(postgres: Backend) -> None:
    ada = make_person(postgres)
    add_file(postgres, ada)
    with postgres.databases.engine("pool:main").connect() as connection:
        assert connection.execute(text("SELECT id FROM files")).all() == []


def test_the_tenant_is_forgotten_when_the_transaction_ends(postgres: Backend) -> None:
    ada = make_person(postgres)
    add_file(postgres, ada)
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert len(names(session)) == 1
    engine = postgres.databases.engine("pool:main")
    with engine.connect() as connection:  # very likely the same connection
        assert connection.execute(text("SELECT id FROM files")).all() == []


def test_the_application_owns_no_table(postgres: Backend) -> None:
    with postgres.databases.engine("pool:main").connect() as connection:
        owned = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE tableowner = current_user")
        ).all()
        assert connection.scalar(text("SELECT current_user")) == "comfyfleet_app"
    assert owned == []


def test_every_table_of_a_pool_is_walled_off(postgres: Backend) -> None:
    """A table added later without a policy fails here."""
    url = postgres.settings.pools["main"]
    engine = make_engine(url, as_owner=True)
    with engine.connect() as connection:
        open_tables = connection.scalars(
            text(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace ="
                " 'public'::regnamespace AND NOT (relrowsecurity AND relforcerowsecurity)"
            )
        ).all()
    engine.dispose()
    assert open_tables == ["alembic_version"]


def test_a_row_of_another_tenant_cannot_be_added(backend: Backend, person: MakePerson) -> None:
    ada, bob = person(), person()
    with pytest.raises(PermissionError), backend.databases.tenant(ada.tenant_id) as session:
        session.add(Wallet(tenant_id=bob.tenant_id, user_id=bob.user_id))


def test_without_the_filter_everything_shows(sqlite: Backend) -> None:
    """So it is the filter that the tests above have tested."""
    add_file(sqlite, make_person(sqlite))
    with Session(sqlite.databases.engine("pool:main")) as unguarded:
        assert len(names(unguarded)) == 1
