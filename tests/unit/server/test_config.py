"""Settings: later wins, each value knows its origin, and mistakes name the remedy."""

import tomllib
from dataclasses import fields

import pytest

from syncline.errors import ConfigError
from syncline.server.config import Config, Origin, check_token, load
from syncline.server.origins import is_loopback
from syncline.server.settings import SETTINGS, Settings, Value
from syncline.server.websocket import WebSocketLimits

TOKEN = "a-token-that-is-long"


def load_all(
    text: str = "", variables: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> Config:
    return load("router.toml", text, variables or {}, flags or {})


def test_defaults_stand_without_anything_else() -> None:
    config = load(None, None, {"PATH": "/bin"}, {})
    assert config.settings == Settings()
    assert set(map(str, config.origins.values())) == {"default"}


def test_later_wins_and_says_so() -> None:
    text = "[http]\nport = 1\nhost = '::1'\n[log]\nlevel = 'debug'\n"
    config = load_all(
        text, {"SYNCLINE_HTTP_PORT": "2", "SYNCLINE_LOG_LEVEL": "error"}, {"http.port": "3"}
    )
    assert config.settings.http_port == 3
    assert config.settings.log_level == "error"
    assert config.settings.http_host == "::1"
    assert config.origins["http.port"] == Origin("flag", "http.port")
    assert str(config.origins["log.level"]) == "environment SYNCLINE_LOG_LEVEL"
    assert str(config.origins["http.host"]) == "file router.toml"
    assert str(config.origins["store.folder"]) == "default"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[http]\nprot = 1", "http.port"),
        ("[htpp]\nport = 1", "http"),
        ("[store]\nsegment_byte = 1", "store.segment_bytes"),
    ],
)
def test_unknown_keys_in_the_file_name_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {nearest}\\?"):
        load_all(text)


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5_000, "a = {" * 3_000, "[http]\nport = " + "9" * 5_000],
    ids=["lists", "tables", "digits"],
)
def test_what_is_too_deep_or_too_long_to_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no setting is like that"):
        load_all(text)


@pytest.mark.parametrize(
    "text", ['[store]\nfolder = "a\\u0000b"', '[websocket]\norigins = ["same", "a\\u0000b"]']
)
def test_a_text_with_a_nul_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="has a NUL"):
        load_all(text)


def test_unknown_variables_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"SYNCLINE_HTTP_PRT; did you mean SYNCLINE_HTTP_PORT\?"):
        load_all(variables={"SYNCLINE_HTTP_PRT": "1"})


def test_unknown_flags_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean store\.kind\?"):
        load_all(flags={"store.knd": "log"})


@pytest.mark.parametrize(
    "text",
    [
        "[http]\nport = '80'",
        "[http]\nport = true",
        "[http]\nallow_remote = 1",
        "[store]\nkind = 7",
        "http = 1",
        "[http\n",
    ],
)
def test_wrong_types_in_the_file_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be|section|TOML"):
        load_all(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("http.port", "65536"),
        ("http.port", "-1"),
        ("http.port", "many"),
        ("store.segment_bytes", "1"),
        ("queues.quota_default", "70000"),
        ("http.allow_remote", "maybe"),
        ("store.kind", "paper"),
        ("store.folder", ""),
    ],
)
def test_values_out_of_bounds_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_all(flags={key: value})


@pytest.mark.parametrize("word", ["true", "1", "YES"])
def test_switches_may_be_written_in_words(word: str) -> None:
    assert load_all(variables={"SYNCLINE_LOG_IDS": word}).settings.log_ids is True


def test_listening_to_other_machines_needs_a_switch_and_a_token() -> None:
    with pytest.raises(ConfigError, match="allow_remote"):
        load_all(flags={"http.host": "0.0.0.0"})
    with pytest.raises(ConfigError, match="no token"):
        load_all(flags={"http.host": "0.0.0.0", "http.allow_remote": "true"})
    remote = {"http.host": "0.0.0.0", "http.allow_remote": "true", "http.token": TOKEN}
    config = load_all(flags=remote | {"documents.enabled": "false"})
    assert config.settings.http_host == "0.0.0.0"


def test_documents_are_open_to_this_machine_only() -> None:
    remote = {"http.host": "0.0.0.0", "http.allow_remote": "true", "http.token": TOKEN}
    with pytest.raises(ConfigError, match=r"documents are open to all; set documents\.token_key"):
        load_all(flags=remote)
    with_key = load_all(flags=remote | {"documents.token_key": "k" * 32})
    assert with_key.settings.has_token_keys
    with_file = load_all(flags=remote | {"documents.token_key_files": "a.pem, b.pem"})
    assert with_file.settings.documents_token_key_files == ("a.pem", "b.pem")
    assert not load_all(flags={"http.host": "::1"}).settings.has_token_keys


def test_a_list_is_an_array_in_the_file_and_has_commas_elsewhere() -> None:
    wanted = ("same", "https://app.example", "http://localhost:3000")
    text = "[websocket]\norigins = ['same', 'https://app.example', 'http://localhost:3000']"
    for config in (
        load_all(text),
        load_all(variables={"SYNCLINE_WEBSOCKET_ORIGINS": ",".join(wanted)}),
        load_all(flags={"websocket.origins": " , ".join((*wanted, ""))}),
    ):
        assert config.value("websocket.origins") == wanted
    assert load_all(flags={"websocket.origins": ""}).settings.websocket_origins == ()


@pytest.mark.parametrize("value", ["'same'", "[1]", "['same', 2]", "{}", "true"])
def test_what_is_no_list_of_texts_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"websocket\.origins .* must be a list of texts"):
        load_all(f"[websocket]\norigins = {value}")


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/page", "ws://x", "null"])
def test_an_origin_that_no_page_has_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"such as https://app\.example"):
        load_all(flags={"websocket.origins": f"same,{origin}"})


def test_every_page_may_come_only_where_tokens_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="every page"):
        load_all(flags={"websocket.origins": "*"})
    load_all(flags={"websocket.origins": "*", "documents.token_key": "k" * 32})


def test_limits_reach_the_websockets() -> None:
    flags = {
        "websocket.message_bytes_max": "2000",
        "websocket.connection_count_max": "3",
        "websocket.connections_per_address_max": "2",
        "websocket.heartbeat_seconds": "7",
        "websocket.waiting_bytes_max": "70000",
        "websocket.all_waiting_bytes_max": "70000000",
        "websocket.slow_seconds_max": "8",
        "websocket.close_seconds_max": "9",
        "websocket.messages_per_second": "10",
        "websocket.bytes_per_second": "4000",
    }
    limits = load_all(flags=flags).settings.websocket_limits()
    found = {f"websocket.{each.name}": str(getattr(limits, each.name)) for each in fields(limits)}
    assert found == flags
    assert Settings().websocket_limits() == WebSocketLimits()


@pytest.mark.parametrize("token", ["short", "a token with spaces in it", "ein-schlüssel-wort"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        check_token(token, "http.token")


def test_one_token_is_enough() -> None:
    with pytest.raises(ConfigError, match="keep one"):
        load_all(flags={"http.token": TOKEN, "http.token_file": "x"})


@pytest.mark.parametrize("key", ["http.token", "documents.token_key"])
def test_a_token_is_not_shown(key: str) -> None:
    assert SETTINGS[key].is_secret
    assert TOKEN not in repr(load_all(flags={key: TOKEN}))


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="must be text") as caught:
        load_all("[documents]\ntoken_key = ['a-token-that-is-long']")
    assert TOKEN not in str(caught.value)


def test_a_message_must_fit_a_request() -> None:
    with pytest.raises(ConfigError, match="body_bytes_max"):
        load_all(flags={"http.body_bytes_max": "1024"})


def test_relaxed_durability_reaches_the_store() -> None:
    assert load_all().settings.store_options().is_durable
    relaxed = load_all(flags={"store.durability": "relaxed"}).settings.store_options()
    assert not relaxed.is_durable


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_every_setting_has_a_field_of_its_name() -> None:
    assert [key.replace(".", "_") for key in SETTINGS] == [each.name for each in fields(Settings)]
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


def test_defaults_can_be_written_in_a_file() -> None:
    lines = [f"{key} = {as_toml(setting.default)}" for key, setting in SETTINGS.items()]
    text = "\n".join(lines)
    assert set(tomllib.loads(text)) == {
        "store",
        "audit",
        "queues",
        "smp",
        "http",
        "websocket",
        "documents",
        "upkeep",
        "log",
    }
    assert load_all(text).settings == Settings()


def as_toml(value: Value) -> str:
    if isinstance(value, tuple):
        return repr(list(value))
    return str(value).lower() if isinstance(value, bool) else repr(value)
