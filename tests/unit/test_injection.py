"""Test what the setting `inject` can say."""

import pytest

from harness.errors import SettingError
from harness.settings.injection import DEFAULT_BYTES, Fault, Injection, parse_injection


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, None),
        ("", None),
        ("leak:list", Injection(Fault.LEAK_LIST, DEFAULT_BYTES)),
        ("leak:graph:64KiB", Injection(Fault.LEAK_GRAPH, 65_536)),
        ("Leak:Host:1.5mib", Injection(Fault.LEAK_HOST, 1_572_864)),
        ("fragmentation:512B", Injection(Fault.FRAGMENTATION, 512)),
        ("elsewhere:1MiB", Injection(Fault.ELSEWHERE, 2**20)),
        ("sync", Injection(Fault.SYNC)),
        ("oom:100", Injection(Fault.OOM, step=100)),
    ],
)
def test_a_fault_is_read_with_its_size_or_step(text: str | None, meant: Injection | None) -> None:
    assert parse_injection(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "leak",
        "leak:lists",
        "leak:list:",
        "leak:list:0B",
        "leak:list:5GB",
        "oom",
        "oom:0",
        "oom:x",
        "sync:1MiB",
        f"leak:list:{'9' * 400}MiB",  # Infinite, as a float.
        "leak:list:2\N{KELVIN SIGN}iB",
    ],
)
def test_anything_else_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(SettingError, match="inject") as caught:
        parse_injection(text)
    assert text in str(caught.value)
