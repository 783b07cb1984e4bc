"""Settings of a process for which something is away."""

from typing import Any

from tasks.backend import Backend


def pools(backend: Backend, *names: str) -> dict[str, Any]:
    """These pools do not answer; the others do."""
    nowhere = (
        "postgresql+psycopg2://nobody@127.0.0.1:1/x"
        if backend.databases.on_postgres
        else "sqlite:////proc/nowhere/at/all.db"
    )
    urls = {pool: nowhere if pool in names else url for pool, url in backend.settings.pools.items()}
    return {"pool_urls": " ".join(f"{pool}={url}" for pool, url in urls.items())}
