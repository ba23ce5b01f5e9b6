"""pip's settings in uv's words."""

from pathlib import Path

import pytest

from model_optimizer.host.pipsettings import pip_options, uv_env


@pytest.fixture
def places(tmp_path):
    """A system, user, site and extra configuration file, all in one folder; the environment that leads pip there."""

    def go(*, system: str = "", user: str = "", site: str = "", extra: str = "", **environ: str) -> dict[str, str]:
        files = {"xdg/pip/pip.conf": system, "config/pip/pip.conf": user, "prefix/pip.conf": site, "extra.conf": extra}
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        env = {"XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        if extra:
            env["PIP_CONFIG_FILE"] = str(tmp_path / "extra.conf")
        return pip_options(env | environ, home=tmp_path / "home", prefix=tmp_path / "prefix", etc=tmp_path / "etc")

    return go


def test_later_files_win_and_variables_win_over_files(places):
    found = places(
        system="[global]\nindex-url = https://one/simple\ntimeout = 5\n",
        user="[global]\nindex-url = https://two/simple\nproxy = cache:3128\n",
        site="[install]\nindex-url = https://three/simple\n",
        PIP_TIMEOUT="60",
    )
    assert found["index-url"] == "https://three/simple"
    assert found["timeout"] == "60"
    assert found["proxy"] == "cache:3128"


def test_the_install_section_wins_over_global_and_others_do_not_count(places):
    found = places(
        user="[install]\nindex_url = https://a/simple\n[global]\nindex-url = https://b/simple\n[wheel]\nproxy = x:1\n"
    )
    assert found == {"index-url": "https://a/simple"}


def test_pip_config_file_is_read_last(places):
    found = places(site="[global]\nindex-url = https://a/simple\n", extra="[global]\nindex-url = https://b/simple\n")
    assert found["index-url"] == "https://b/simple"


def test_files_switched_off(places):
    found = places(user="[global]\nindex-url = https://a\n", PIP_CONFIG_FILE="/dev/null", PIP_CERT="/c")
    assert found == {"cert": "/c"}


def test_a_file_that_cannot_be_read_is_passed_over(places):
    assert places(user="index-url = no section\n", site="[global]\ncert = /c\n") == {"cert": "/c"}


def test_in_uvs_words(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    env = uv_env(
        {},
        {
            "index-url": "https://mirror.example/simple",
            "extra-index-url": "https://a.example/simple\nhttps://b.example/simple",
            "find-links": f"{tmp_path} https://c.example/wheels/",
            "trusted-host": "mirror.example a.example:8080",
            "cert": str(tmp_path / "ca.pem"),
            "proxy": "user:pw@proxy.example:3128",
            "timeout": "60",
            "retries": "7",
            "no-index": "false",
        },
    )
    assert env == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path},https://c.example/wheels/",
        "UV_INSECURE_HOST": "mirror.example a.example:8080",
        "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
        "ALL_PROXY": "http://user:pw@proxy.example:3128",
        "UV_HTTP_TIMEOUT": "60",
        "UV_HTTP_RETRIES": "7",
    }


def test_nothing_set_changes_nothing():
    assert uv_env({}, {}) == {}


def test_places_that_do_not_exist_are_left_out(tmp_path):
    there = Path(tmp_path).as_uri()
    options = {
        "index-url": "file:///nowhere/simple",
        "extra-index-url": f"file:///nowhere/more {there}",
        "find-links": "/nowhere/wheels",
        "cert": "/nowhere/ca.pem",
    }
    assert uv_env({}, options) == {"UV_INDEX": there, "UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("UV_DEFAULT_INDEX", "index-url"), ("UV_INDEX_URL", "index-url"),
        ("UV_INDEX", "extra-index-url"), ("UV_EXTRA_INDEX_URL", "extra-index-url"),
    ],
)  # fmt: skip
def test_uvs_own_variables_win(variable, option):
    env = uv_env({variable: "https://mine/simple"}, {option: "https://pips/simple"})
    assert "https://pips/simple" not in env.values()


def test_pips_other_name_for_the_time_limit(places):
    assert places(PIP_DEFAULT_TIMEOUT="180") == {"timeout": "180"}
    assert places(PIP_DEFAULT_TIMEOUT="180", PIP_TIMEOUT="20") == {"timeout": "20"}
