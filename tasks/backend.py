"""What a process of ours needs to work: settings, databases, object storage, the bell."""

from dataclasses import dataclass

from models.object_store import ObjectStore, open_store
from models.session import Databases
from models.settings import Settings
from tasks.tickets import Bell


@dataclass(frozen=True)
class Backend:
    settings: Settings
    databases: Databases
    store: ObjectStore
    bell: Bell

    @classmethod
    def open(cls, settings: Settings) -> "Backend":
        return cls(
            settings=settings,
            databases=Databases(settings),
            store=open_store(settings),
            bell=Bell(settings.redis_url),
        )

    def close(self) -> None:
        self.databases.close()
        self.bell.close()
