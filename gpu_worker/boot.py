"""From settings to a worker at work: wait for ComfyUI, join the fleet, take tickets."""

import logging
import os
import platform
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from gpu_worker import app as celery_app
from gpu_worker import identity, logs, spans, tracing
from gpu_worker.assets import AssetCache
from gpu_worker.backend import Backend, LeaseLost, Membership, Refused, Unreachable
from gpu_worker.door import DRAINING, REFUSED, STOPPING, Door
from gpu_worker.health import HealthWatch
from gpu_worker.imds import Imds, MetadataUnavailable
from gpu_worker.job import Tools
from gpu_worker.lease_keeper import LeaseKeeper
from gpu_worker.log_secrets import keep_secret
from gpu_worker.provider import Provider, Unwell
from gpu_worker.scale_in import ScaleInProtection
from gpu_worker.self_hosted import SelfHosted
from gpu_worker.settings import BadSetting, Settings
from gpu_worker.spot import SpotMonitor
from gpu_worker.stopping import Stopping
from gpu_worker.uploads import Uploads

logger = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 2.0
SAY_AGAIN_SECONDS = 30.0

PROVIDERS: dict[str, Callable[[Settings], Provider]] = {
    "self_hosted": lambda settings: SelfHosted(
        settings.comfyui_url,
        stall_seconds=settings.stall_seconds,
        queue_stall_seconds=settings.queue_stall_seconds,
        tidy_folder=Path(settings.comfyui_dir) if settings.comfyui_dir else None,
    ),
}


def main() -> int:
    """Exit code 0 after a stop, 2 when it can't work as it was set up."""
    logs.start()  # for what is wrong with the settings
    # Of running as root, as in a container. It is about pickles, and we take none.
    warnings.simplefilter("ignore", SecurityWarning)
    # Of what Celery 6 will do to a task when the broker goes away. We have it as it is now.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)
    # Until Celery has its own: a worker that still waits for others has nothing to hand back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        settings = Settings.from_env()
        logs.start(settings.log_format, settings.log_level)
        settings = identity.complete(settings)
        logs.start(settings.log_format, settings.log_level, worker_id=settings.worker_id)
        keep_secret(settings.fleet_secret, settings.redis_url)
        providers = {name: _provider(name, settings) for name in settings.providers.split()}
        return Boot(settings, providers).run()
    except (BadSetting, MetadataUnavailable) as bad:
        logger.error("%s", bad)
    except Refused as refused:
        logger.error("The webapp refuses this worker. %s", refused)
    except KeyboardInterrupt:
        return 0  # before there was anything to hand back
    return 2


def _provider(name: str, settings: Settings) -> Provider:
    if name not in PROVIDERS:
        raise BadSetting(f"COMFYFLEET_PROVIDERS names {name!r}; known: {', '.join(PROVIDERS)}.")
    return PROVIDERS[name](settings)


class Boot:
    def __init__(self, settings: Settings, providers: dict[str, Provider]) -> None:
        self.settings, self.providers = settings, providers
        self.folder = Path(settings.state_dir) / settings.worker_id
        self.stopping = Stopping(seconds=settings.stop_seconds)
        self.backend = Backend(
            settings.backend_url,
            Membership(
                worker_id=settings.worker_id,
                fleet_slug=settings.fleet_slug,
                stage=settings.stage,
                fleet_secret=settings.fleet_secret,
                providers=list(providers),
                capabilities={"host": platform.node(), "python": platform.python_version()},
            ),
            token=self._kept_token(),
            on_token=self._keep_token,
            kept_token=self._kept_token,
        )

    def run(self) -> int:
        self._clear_leftovers()
        _until(self._well, "ComfyUI")
        joined = _until(self.backend.register, "the webapp")
        queue = str(joined["queue"])
        logger.info("%s has joined the fleet %s.", self.settings.worker_id, queue)
        tracing.begin()
        app = celery_app.make_app(self.settings.redis_url, queue)
        door = Door(queue)
        tools = self._tools(door, idle_seconds=float(joined["heartbeat_seconds"]))
        tools.protection.idle()  # instances may start protected
        self._prepare_to_stop(door, tools)
        tickets = celery_app.Tickets(tools, door, self.stopping)
        celery_app.install(app, tickets, tools, door, self.stopping)
        self._watch_instance()
        code = celery_app.start(app, queue=queue, worker_id=self.settings.worker_id)
        self.stopping.leave()
        spans.end()
        return code

    def _tools(self, door: Door, *, idle_seconds: float) -> Tools:
        settings = self.settings
        keeper = LeaseKeeper(
            self.backend,
            idle_seconds=idle_seconds,
            on_draining=lambda draining: (door.close if draining else door.open)(DRAINING),
            on_refused=lambda refused: (door.close if refused else door.open)(REFUSED),
        )
        self.health = HealthWatch(
            self.providers.values(), door, is_busy=lambda: keeper.held is not None
        )
        keeper.start()
        self.health.start()
        return Tools(
            backend=self.backend,
            keeper=keeper,
            cache=AssetCache(self.folder / "cache", settings.cache_max_bytes),
            uploads=Uploads(keeper),
            providers=self.providers,
            protection=ScaleInProtection(
                enabled=settings.protects_from_scale_in,
                instance_id=settings.worker_id,
                group=settings.asg_name,
                region=settings.region,
            ),
            folder=self._jobs_folder(),
            job_seconds=settings.job_seconds,
            stop_reason=lambda: self.stopping.reason,
            on_unwell=self.health.report,
        )

    def _prepare_to_stop(self, door: Door, tools: Tools) -> None:
        self.stopping.on_begin(lambda: door.close(STOPPING))
        self.stopping.on_begin(tools.keeper.stop_work)
        self.stopping.on_begin(self.health.close)  # ComfyUI is to be stopped, not looked after

        def leave() -> None:
            tools.keeper.close()
            try:
                self.backend.deregister()
            except (Unreachable, Refused, LeaseLost) as trouble:
                logger.warning("Left without a word: %s", trouble)
            else:
                self._token_file().unlink(missing_ok=True)
            tools.protection.close()
            tools.cache.close()
            if tools.keeper.held is None:  # otherwise it is still being stopped
                for provider in self.providers.values():
                    provider.close()

        self.stopping.on_leave(leave, after=tools.keeper.await_report)

    def _watch_instance(self) -> None:
        if not self.settings.on_ec2:
            return

        def notice(reason: str) -> None:
            self.stopping.begin(reason)
            os.kill(os.getpid(), signal.SIGTERM)  # Celery's own way out, from here on

        monitor = SpotMonitor(
            Imds(self.settings.metadata_url),
            every_seconds=self.settings.spot_poll_seconds,
            on_notice=notice,
        )
        monitor.start()
        self.stopping.on_begin(monitor.cease)

    def _well(self) -> None:
        for provider in self.providers.values():
            provider.check()

    def _jobs_folder(self) -> Path:
        return self.folder / "jobs"

    def _clear_leftovers(self) -> None:
        """Of jobs that a crash cut short. The folder is this worker's alone."""
        shutil.rmtree(self._jobs_folder(), ignore_errors=True)
        try:
            self._jobs_folder().mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise BadSetting(
                f"COMFYFLEET_STATE_DIR: {self._jobs_folder()} can't be used: {error.strerror}."
            ) from error
        for provider in self.providers.values():
            provider.take_over(self.folder)

    def _token_file(self) -> Path:
        return self.folder / "token"

    def _kept_token(self) -> str:
        try:
            token = self._token_file().read_text().strip()
        except OSError:
            return ""
        keep_secret(token)
        return token

    def _keep_token(self, token: str) -> None:
        """So that after a crash it can show that it is who it was."""
        keep_secret(token)
        self._token_file().parent.mkdir(parents=True, exist_ok=True)
        self._token_file().touch(mode=0o600)
        self._token_file().write_text(token)


def _until(step: Callable[[], Any], whom: str) -> Any:
    """Try until it works, and say now and then what is being waited for."""
    said = -SAY_AGAIN_SECONDS
    while True:
        try:
            return step()
        except (Unwell, Unreachable) as trouble:
            if time.monotonic() - said >= SAY_AGAIN_SECONDS:
                logger.warning("Waiting for %s: %s", whom, trouble)
                said = time.monotonic()
            time.sleep(TRY_AGAIN_SECONDS)
        except Refused as refused:
            # Our old self may be at work still, or not yet be taken for gone.
            if refused.code not in ("worker_id_taken", "fleet_full"):
                raise
            logger.warning("Waiting for %s: %s", whom, refused)
            time.sleep(TRY_AGAIN_SECONDS * 5)
