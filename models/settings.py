"""Every setting of the backend: one list, read once from the environment.

A setting NAME is read from COMFYFLEET_NAME. docs/settings.md is compared with this
list by a test, so a setting without documentation does not pass.
"""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from models import logs
from models.log_secrets import scrub


class BadSetting(ValueError):
    """A setting can't be used as it is; the message names it and says what would do."""


def setting(default: Any, text: str, *, one_of: tuple[str, ...] = (), secret: bool = False) -> Any:
    return field(default=default, metadata={"help": text, "one_of": one_of}, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Settings:
    stage: str = setting("dev", "Deployment stage; fleets and workflow mappings belong to one.")
    log_format: str = setting(
        "auto",
        "`json`: an object on each line; `text`: for people; `auto`: text on a terminal only.",
        one_of=logs.FORMS,
    )
    log_level: str = setting("info", "What is said at all, from this on.", one_of=logs.LEVELS)

    central_url: str = setting(
        "sqlite:///.state/central.db", "SQLAlchemy URL of the central database.", secret=True
    )
    pool_urls: str = setting(
        "main=sqlite:///.state/pool-main.db",
        "Tenant pools as name=URL, separated by spaces. New tenants go to the first.",
        secret=True,
    )
    owner_urls: str = setting(
        "",
        "URLs of the schema owner for `db migrate`, as central=URL name=URL ...; "
        "empty: the same as the application's.",
        secret=True,
    )
    database_connections: int = setting(
        8, "Connections a process keeps to each database; as many again in a burst."
    )
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0", "Broker of the tickets, and rate limits.", secret=True
    )

    storage_url: str = setting(
        "file://.state/objects",
        "file://FOLDER (local disk, served by the webapp) or s3://BUCKET[/PREFIX].",
    )
    s3_endpoint_url: str = setting("", "Endpoint of an S3-compatible server; empty: AWS.")
    s3_region: str = setting("us-east-1", "Region used to sign S3 requests.")
    public_url: str = setting(
        "http://127.0.0.1:8000", "Address under which clients reach the webapp; signed local URLs."
    )
    secret_key: str = setting(
        "",
        "Signs the URLs of local storage; at least 32 characters. Required to serve.",
        secret=True,
    )

    url_seconds: int = setting(3600, "Lifetime of a presigned URL.")
    upload_max_bytes: int = setting(2 * 1024**3, "Largest upload accepted.")
    multipart_from_bytes: int = setting(
        100 * 1024**2, "Uploads larger than this are sent in parts."
    )
    image_max_pixels: int = setting(50_000_000, "Largest image accepted, width times height.")
    video_max_pixels: int = setting(4096 * 2304, "Largest video frame accepted.")
    video_max_seconds: int = setting(600, "Longest video accepted.")
    probe_seconds: int = setting(20, "Time a file may take to decode before it is refused.")
    probe_memory_mb: int = setting(1536, "Memory a file may take to decode before it is refused.")

    catalog_seconds: int = setting(
        2, "How long a process may go on with an effect as it read it; changes show after this."
    )
    allowed_nodes: str = setting(
        "core",
        "Types of nodes a graph may have, between commas: `core` (ComfyUI's own), a name, or one "
        "with `*` for any characters; `*` alone allows all.",
    )
    max_active_jobs: int = setting(5, "Active jobs a user may have at once.")
    max_attempts: int = setting(3, "Times a job is tried before it is given up.")
    lease_seconds: int = setting(180, "How long a worker holds a job without a heartbeat.")
    heartbeat_seconds: int = setting(30, "How often a worker reports, at the longest.")
    job_seconds: int = setting(3600, "How long a worker may work on one try of a job.")
    retry_seconds: int = setting(
        10, "Pause before a job's third try, if it went wrong through no fault of its own."
    )
    fleet_secrets: str = setting(
        "",
        "What workers show to register: SECRET (any fleet) or SLUG=SECRET, separated by spaces; "
        "several are valid at once.",
        secret=True,
    )
    worker_gone_seconds: int = setting(
        180, "A worker not heard of for this long has left: its id and its place are free."
    )
    worker_forgotten_seconds: int = setting(
        7200, "A worker not heard of for this long is removed; what it held is for others."
    )
    check_instances: str = setting(
        "off",
        "`on`: a worker called like an EC2 instance must be in its fleet's Auto Scaling Group.",
    )
    reconcile_seconds: int = setting(
        10, "How often the reconciler looks for what a crash or a lost ticket left behind."
    )
    control_step_seconds: int = setting(
        60, "How long one step of a control task works before it leaves the rest to its next run."
    )
    control_patience_seconds: int = setting(
        20, "How long a control task waits for one answer of a database."
    )
    submitting_timeout_seconds: int = setting(
        300, "A job still in `submitting` after this is failed and refunded."
    )
    upload_timeout_seconds: int = setting(86_400, "An upload never finished is removed after this.")

    metrics_seconds: int = setting(5, "How long figures are remembered before they are read anew.")
    metrics_token: str = setting(
        "", "What opens /metrics as a bearer token, from anywhere; several, separated by spaces."
    )
    metrics_networks: str = setting(
        "127.0.0.0/8 ::1/128", "Networks whose machines may read /metrics without a token."
    )
    cloudwatch_namespace: str = setting(
        "", "Namespace in which figures are published to CloudWatch every minute; empty: nowhere."
    )
    cloudwatch_region: str = setting(
        "", "AWS region to publish in; empty: the one that the environment names."
    )

    wallet_low_tokens: int = setting(
        20, "A wallet that an order takes below this is told as `wallet.low`; 0: none is."
    )
    wallet_low_seconds: int = setting(60, "How often wallets are looked at for that.")
    webhook_max_endpoints: int = setting(10, "Webhook endpoints a tenant may have.")
    webhook_max_url_length: int = setting(2000, "Longest URL of an endpoint.")
    webhook_http: str = setting("off", "`on`: endpoints may be http:// too, not https:// only.")
    webhook_allowed_networks: str = setting(
        "",
        "Networks that are not public and may be sent to all the same, separated by spaces.",
    )
    webhook_retry_seconds: str = setting(
        "5 300 1800 7200 18000 36000 50400 72000 86400",
        "Pauses between the tries of a delivery; after the last one it has failed.",
    )
    webhook_max_pause_seconds: int = setting(
        86_400, "Longest pause that a receiver may ask for with Retry-After."
    )
    webhook_connect_seconds: int = setting(5, "Time a receiver may take to be connected to.")
    webhook_answer_seconds: int = setting(15, "Time a receiver may take after that, in all.")
    webhook_senders: int = setting(
        16, "Deliveries a control worker sends at once; as many again to receivers that fail."
    )
    webhook_endpoint_senders: int = setting(4, "Of these, to one endpoint; to one that fails, 1.")
    webhook_poll_seconds: int = setting(5, "How often due deliveries are looked for.")
    webhook_disable_days: int = setting(
        5, "An endpoint is switched off after so many days of nothing but failures."
    )
    webhook_overlap_seconds: int = setting(
        86_400, "How long an endpoint's secret goes on signing after it was replaced."
    )
    webhook_keep_days: int = setting(30, "Deliveries older than this are removed.")

    upload_days: int = setting(30, "An upload without a result expires after this; 0: never.")
    result_days: int = setting(
        30, "Results expire this long after the last of them, with their upload; 0: never."
    )

    access_token_days: int = setting(30, "Lifetime of a sign-in.")
    rate_limits: str = setting(
        "auth=20/minute register=10/minute submit=600/minute upload=120/minute api=1200/minute "
        "worker=30000/minute",
        "Requests allowed per token (before sign-in: per IP), by class of call.",
    )
    trusted_proxies: int = setting(0, "Proxies in front of the webapp that set X-Forwarded-For.")
    cors_origins: str = setting("", "Origins a browser may call from, separated by spaces.")
    max_streams: int = setting(2000, "Event streams a web process holds open at once.")
    max_user_streams: int = setting(20, "Event streams of one user in one web process.")
    stream_seconds: int = setting(3600, "An event stream is ended after this; its client returns.")
    stream_keep_alive_seconds: int = setting(
        15, "A comment is sent on an event stream that was quiet for so long."
    )
    max_body_bytes: int = setting(4 * 1024**2, "Largest JSON body accepted.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> "Settings":
        values: dict[str, Any] = {}
        for option in fields(cls):
            text = environ.get(f"COMFYFLEET_{option.name.upper()}")
            if text is not None:
                values[option.name] = _parse(option, text)
        return cls(**{**values, **overrides})

    @property
    def pools(self) -> dict[str, str]:
        return _pairs("pool_urls", self.pool_urls)

    def fleet_secrets_for(self, slug: str) -> list[str]:
        """Every secret that opens this fleet."""
        valid = []
        for word in self.fleet_secrets.split():
            fleet, equals, secret = word.partition("=")
            if not (equals and secret.strip("=")):  # base64 may end in "=" or "=="
                valid.append(word)
            elif fleet == slug:
                valid.append(secret)
        return valid

    @property
    def secrets(self) -> list[str]:
        """What must not be read in a log: texts, and addresses with passwords in them."""
        words = self.fleet_secrets.split()
        urls = [self.central_url, self.redis_url, *self.pools.values(), *self.owners.values()]
        return [self.secret_key, *words, *(word.partition("=")[2] for word in words), *urls]

    @property
    def owners(self) -> dict[str, str]:
        return _pairs("owner_urls", self.owner_urls)


def _parse(option: "Field[Any]", text: str) -> Any:
    variable, one_of = f"COMFYFLEET_{option.name.upper()}", option.metadata["one_of"]
    if one_of and text not in one_of:
        raise BadSetting(f"{variable} is {text!r}; it takes {', '.join(one_of)}.")
    if not isinstance(option.default, int):
        return text
    try:
        return int(text)
    except ValueError:
        raise BadSetting(f"{variable} is {text!r}; it takes a number.") from None


def _pairs(name: str, text: str) -> dict[str, str]:
    pairs = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            shown = scrub(word)
            raise BadSetting(f"COMFYFLEET_{name.upper()}: {shown!r} is not of the form name=value.")
        pairs[key] = value
    return pairs
