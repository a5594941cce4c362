"""The variables of uv for the configuration of pip."""

import pytest

from tests.install_packages import uv_environment

_ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}


@pytest.mark.parametrize(
    ("lines", "variables"),
    [
        ([], {}),
        (
            ["global.index-url='https://user:a=b@index/simple'"],
            {"UV_DEFAULT_INDEX": "https://user:a=b@index/simple"},
        ),
        (["global.extra-index-url='\\nfile:///a\\nhttps://b'"], {"UV_INDEX": "file:///a https://b"}),
        (["global.find-links='/a https://b'"], {"UV_FIND_LINKS": "/a,https://b"}),
        (
            ["global.trusted-host='a b'", "global.cert='/c.crt'"],
            {"UV_INSECURE_HOST": "a b", "SSL_CERT_FILE": "/c.crt"},
        ),
        (["global.no-index='true'"], {"UV_OFFLINE": "true"}),
        (["global.timeout='60'", "download.index-url='https://other'"], {}),
    ],
)
def test_options_of_pip_become_variables_of_uv(lines: list[str], variables: dict[str, str]) -> None:
    assert uv_environment(lines) == _ALWAYS | variables


def test_the_options_of_an_install_and_variables_take_precedence_as_in_pip() -> None:
    lines = [":env:.find-links='/c'", "install.find-links='/b'", "install.cert='/b'", "global.cert='/a'"]
    variables = uv_environment(lines)
    assert (variables["UV_FIND_LINKS"], variables["SSL_CERT_FILE"]) == ("/c", "/b")
