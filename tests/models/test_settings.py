"""What the environment may say, and what is refused at once with one line."""

import pytest

from models.settings import BadSetting, Settings


@pytest.mark.parametrize("name", ["LOG_FORMAT", "LOG_LEVEL"])
def test_a_word_that_is_none_of_those_allowed_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match=f"COMFYFLEET_{name} is 'loud'; it takes (auto|debug)"):
        Settings.from_env({f"COMFYFLEET_{name}": "loud"})


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_URL_SECONDS is 'soon'; it takes a number"):
        Settings.from_env({"COMFYFLEET_URL_SECONDS": "soon"})


def test_what_is_said_counts_and_the_rest_is_as_usual() -> None:
    settings = Settings.from_env({"COMFYFLEET_LOG_FORMAT": "json", "COMFYFLEET_URL_SECONDS": "7"})
    assert (settings.log_format, settings.log_level, settings.url_seconds) == ("json", "info", 7)


def test_secrets_show_neither_in_the_settings_nor_in_what_is_said_of_a_wrong_one() -> None:
    url = "postgresql://login:very-secret@host/db"
    told = {f"COMFYFLEET_{name}": url for name in ("CENTRAL_URL", "REDIS_URL", "SECRET_KEY")}
    told |= {"COMFYFLEET_FLEET_SECRETS": f"a=very-secret {url}"}
    told |= {f"COMFYFLEET_{name}_URLS": f"main={url}" for name in ("POOL", "OWNER")}
    assert "very-secret" not in repr(Settings.from_env(told))
    with pytest.raises(BadSetting, match="is not of the form name=value") as refused:
        _ = Settings.from_env(told | {"COMFYFLEET_POOL_URLS": url}).pools
    assert "very-secret" not in str(refused.value)
