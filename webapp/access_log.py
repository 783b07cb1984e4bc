"""The lines of gunicorn: its own, and one for each request, in the form of all others."""

import logging
from datetime import timedelta
from typing import Any

from gunicorn import glogging

from models import logs
from models.log_secrets import keep_secret
from models.settings import Settings

#: In the environment of a request: what was known of it at its end. The line comes later.
KNOWN = "comfyfleet.known"


class Logger(glogging.Logger):  # type: ignore[misc]
    """What gunicorn logs with; logs begin for the whole process as soon as it is made."""

    def setup(self, cfg: Any) -> None:
        settings = Settings.from_env()
        logs.start(settings.log_format, settings.log_level)
        keep_secret(*settings.secrets)
        self.cfg = cfg
        for log in (self.error_log, self.access_log):
            log.handlers.clear()
            log.propagate = True

    @property
    def access_log_enabled(self) -> bool:
        return bool(self.cfg.accesslog)

    def access(self, resp: Any, _req: Any, environ: Any, request_time: timedelta) -> None:
        if not (self.access_log_enabled and self.access_log.isEnabledFor(logging.INFO)):
            return
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]  # without its query
        status = int(str(resp.status or 500).split()[0])
        seconds = request_time.total_seconds()
        fields = {
            "method": method,
            "path": path,
            "status": status,
            "bytes": resp.sent,
            "seconds": seconds,
            "remote": environ.get("REMOTE_ADDR"),
        }
        told = (method, path, status, seconds * 1000)
        with logs.about(**environ.get(KNOWN, {})):
            self.access_log.info("%s %s %d in %.0f ms", *told, extra={"fields": fields})
