"""All rows and objects of a house as they are now, to be had again and again."""

import shutil
from pathlib import Path

from redis import Redis
from sqlalchemy import Engine, text

from models.schema import METADATA
from models.session import make_engine
from tasks.backend import Backend


class Snapshot:
    def __init__(self, backend: Backend, folder: Path) -> None:
        self._redis_url = backend.settings.redis_url
        self._objects = Path(backend.settings.storage_url.removeprefix("file://"))
        self._copy = folder / "objects-as-they-were"
        urls = {"central": backend.settings.central_url, "tenant": backend.settings.pools["main"]}
        self._owners = {family: make_engine(url, as_owner=True) for family, url in urls.items()}
        shutil.copytree(self._objects, self._copy)
        for family, owner in self._owners.items():
            self._save(owner, family)

    def _save(self, owner: Engine, family: str) -> None:
        with owner.begin() as connection:
            connection.execute(text("DROP SCHEMA IF EXISTS saved CASCADE"))
            connection.execute(text("CREATE SCHEMA saved"))
            for name in METADATA[family].tables:
                connection.execute(text(f"CREATE TABLE saved.{name} AS SELECT * FROM {name}"))

    def restore(self) -> None:
        for family, owner in self._owners.items():
            names = list(METADATA[family].tables)
            with owner.begin() as connection:
                connection.execute(text("SET LOCAL session_replication_role = replica"))
                connection.execute(text(f"TRUNCATE {', '.join(names)}"))
                for name in names:
                    connection.execute(text(f"INSERT INTO {name} SELECT * FROM saved.{name}"))
        shutil.rmtree(self._objects)
        shutil.copytree(self._copy, self._objects)
        with Redis.from_url(self._redis_url) as redis:
            redis.flushdb()

    def close(self) -> None:
        for owner in self._owners.values():
            with owner.begin() as connection:
                connection.execute(text("DROP SCHEMA saved CASCADE"))
            owner.dispose()
