"""Refuse what can't work before anything is started: other people's servers are asked first."""

import re

import requests
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from scripts.stack import Wishes
from scripts.state_folder import StateFolder

ANSWER_SECONDS = 3.0
OLDEST_REDIS = (6, 2)


class Unusable(RuntimeError):
    """An option names something that can't be used; the message says what is wrong with it."""


def check(wishes: Wishes, state: StateFolder) -> None:
    if re.search(r"\s", str(state.path)):
        raise Unusable(f"{state.path} has a space in it. Choose another folder with --state.")
    if bool(wishes.database_url) != bool(wishes.pool_url):
        raise Unusable("--database and --pool go together: they are two different databases.")
    if wishes.storage_url and not wishes.storage_url.startswith("s3://"):
        raise Unusable("--s3 takes s3://BUCKET or s3://BUCKET/PREFIX.")
    if wishes.redis_url:
        redis_version(wishes.redis_url)
    if wishes.comfyui_url:
        comfyui_version(wishes.comfyui_url)


def redis_version(url: str) -> str:
    """Its name and version, if it is one we can use."""
    try:
        with redis_client(url) as client:
            facts = client.info("server")
    except (RedisError, ValueError) as error:
        raise Unusable(f"Redis does not answer: {error}") from error
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    version = str(facts["redis_version"])
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST_REDIS:
        raise Unusable(f"Redis {version} is too old: 6.2 or newer is needed.")
    return f"Redis {version}"


def redis_client(url: str) -> Redis:
    once = Retry(NoBackoff(), retries=0)
    return Redis.from_url(
        url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS, retry=once
    )


def comfyui_version(url: str) -> str:
    """Its version, if a ComfyUI is what answers there."""
    if not re.match(r"https?://", url):
        raise Unusable(f"{url} is no address of a ComfyUI: it has to begin with http://.")
    try:
        answer = requests.get(f"{url.rstrip('/')}/system_stats", timeout=ANSWER_SECONDS)
        version = answer.json()["system"]["comfyui_version"]
    except requests.JSONDecodeError:
        raise Unusable(f"What answers at {url} is no ComfyUI.") from None
    except requests.RequestException:
        raise Unusable(f"No ComfyUI answers at {url}. Is it running, and reachable?") from None
    except (KeyError, TypeError):
        raise Unusable(f"What answers at {url} is no ComfyUI.") from None
    return str(version)
