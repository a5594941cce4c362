"""Delivery of alerts: to real programs and real web servers, good ones, failing ones and one that hangs."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest

from harness.alerts import AlertKind, AlertOptions, DeliveryStatus
from harness.alerts.delivery import Delivery
from harness.alerts.destinations import DeliveryError, ProgramDestination, Webhook, filled
from harness.alerts.options import WebhookFormat, format_of, place_of
from harness.errors import UsageError
from tests.alert_factories import Receiver, an_alert
from tests.supervision import until

_SHORT_S = 0.2


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def test_slack_gets_its_text_escaped(receiver: Receiver) -> None:
    Webhook(receiver.url).send(an_alert(run="<!channel> & co"))
    (post,) = receiver.posts
    assert (post.path, post.headers["Content-Type"]) == ("/services/secret", "application/json")
    assert json.loads(post.body) == {"text": "Out of memory, &lt;!channel&gt; &amp; co: alert 1."}


def test_ntfy_gets_the_plain_text_with_title_and_priority(receiver: Receiver) -> None:
    webhook = Webhook(receiver.url, WebhookFormat.NTFY)
    webhook.send(an_alert(run="größe"))
    webhook.send(an_alert(AlertKind.FINISHED))
    bad, good = receiver.posts
    assert bad.body.decode() == "Out of memory, größe: alert 1."
    assert (bad.headers["Title"], bad.headers["Priority"]) == ("Stepscope: Out of memory", "high")
    assert good.headers["Priority"] == "default"


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://ntfy.sh/my-topic", WebhookFormat.NTFY),
        ("http://ntfy.example.com:8080/x", WebhookFormat.NTFY),
        ("https://hooks.slack.com/services/T0/B0/x", WebhookFormat.SLACK),
        ("https://chat.example.com/hooks/ntfy", WebhookFormat.SLACK),
    ],
)
def test_the_address_chooses_the_format(url: str, form: WebhookFormat) -> None:
    assert format_of(url) is form


@pytest.mark.parametrize(("answer", "is_final"), [(404, True), (403, True), (429, False), (503, False)])
def test_a_refusal_is_final_unless_it_may_pass(receiver: Receiver, answer: int, is_final: bool) -> None:
    receiver.answer = answer
    with pytest.raises(DeliveryError, match=f"it answered {answer}") as refused:
        Webhook(receiver.url).send(an_alert())
    assert refused.value.is_final is is_final


def test_a_server_that_hangs_is_left_after_the_time_limit(receiver: Receiver) -> None:
    receiver.hangs = True
    with pytest.raises(DeliveryError, match=r"no answer within 0\.2 s"):
        Webhook(receiver.url, timeout_s=_SHORT_S).send(an_alert())


@pytest.mark.slow
def test_a_server_that_drips_its_answer_is_left_after_the_time_limit(receiver: Receiver) -> None:
    timeout_s = 0.6
    receiver.drips_s = timeout_s / 30  # On a busy machine, too, much more often than the limit of a wait.
    webhook = Webhook(receiver.url, timeout_s=timeout_s)
    began_s = time.monotonic()
    for _ in range(5):
        with pytest.raises(DeliveryError, match=r"no complete answer within 0\.6 s"):
            webhook.send(an_alert())
    with pytest.raises(DeliveryError, match="5 requests have had no complete answer so far"):
        webhook.send(an_alert())
    assert time.monotonic() - began_s < 10


def test_nobody_at_the_address_is_a_sentence() -> None:
    with Receiver() as gone:
        url = gone.url
    with pytest.raises(DeliveryError, match="connection refused"):
        Webhook(url).send(an_alert())


@pytest.mark.slow
def test_a_failing_destination_is_reported_once_and_again_when_it_recovers(receiver: Receiver) -> None:
    said: list[str] = []
    receiver.answer = 500
    with Delivery(Webhook(receiver.url), said.append, pauses_s=(0.01, 0.01)) as delivery:
        delivery.enqueue(an_alert(number=1))
        delivery.enqueue(an_alert(number=2))
        until(lambda: len(receiver.posts), lambda posts: posts == 6)
        receiver.answer = 200
        delivery.enqueue(an_alert(number=3))
        until(lambda: len(said), lambda sentences: sentences == 2)
    place = place_of(receiver.url)
    assert said == [
        f"Alerts to {place} fail: it answered 500. Each one is tried 3 times.",
        f"Alerts to {place} are delivered again.",
        f"2 alerts to {place} could not be delivered.",
    ]
    assert "secret" not in "".join(said)


def test_the_status_has_the_times_the_reason_and_a_remedy_until_a_delivery_succeeds(
    receiver: Receiver,
) -> None:
    times_unix_ns = count(1)
    receiver.answer = 500
    webhook = Webhook(receiver.url)
    with Delivery(webhook, lambda _: None, pauses_s=(0.01,), unix_ns=lambda: next(times_unix_ns)) as delivery:
        assert delivery.status == DeliveryStatus(place_of(receiver.url))
        delivery.enqueue(an_alert(number=1))
        failing = until(lambda: delivery.status, lambda status: status.lost == 1)
        assert failing.failure is not None
        assert failing.failure[:3] == (1, 2, "it answered 500")
        assert "recover" in failing.failure.remedy
        receiver.answer = 200
        delivery.enqueue(an_alert(number=2))
        until(lambda: delivery.status, lambda status: status.delivered == 1)
        assert delivery.status == DeliveryStatus(place_of(receiver.url), None, 1, 3, lost=1)


@pytest.mark.slow
def test_an_alert_reaches_a_server_that_fails_at_first(receiver: Receiver) -> None:
    receiver.answer = 503
    with Delivery(Webhook(receiver.url), lambda _: None, pauses_s=(0.05,) * 20) as delivery:
        delivery.enqueue(an_alert())
        until(lambda: receiver.posts, bool)
        receiver.answer = 200
        tried = len(receiver.posts)
        until(lambda: len(receiver.posts), lambda posts: posts > tried)


def test_who_enqueues_never_waits_for_a_server_that_hangs(receiver: Receiver) -> None:
    receiver.hangs = True
    said: list[str] = []
    delivery = Delivery(Webhook(receiver.url, timeout_s=30), said.append)
    began_s = time.monotonic()
    for number in range(150):
        delivery.enqueue(an_alert(number=number))
    delivery.close(timeout_s=_SHORT_S)
    assert time.monotonic() - began_s < 5
    assert said == [f"150 alerts to {place_of(receiver.url)} could not be delivered."]


def test_a_program_gets_each_placeholder_as_part_of_one_argument(tmp_path: Path) -> None:
    target = tmp_path / "arguments.json"
    script = tmp_path / "take.py"
    script.write_text(f"import json, sys\njson.dump(sys.argv[1:], open({str(target)!r}, 'w'))")
    alert = an_alert(run="a b; $(reboot) {kind} 'q'")
    ProgramDestination(f"{sys.executable} {script} --title 'Run {{run}}' {{text}} {{kind}} {{other}}").send(
        alert
    )
    assert json.loads(target.read_text()) == ["--title", f"Run {alert.run}", alert.text, "oom", "{other}"]


def test_the_name_of_a_run_is_never_an_option() -> None:
    alert = an_alert(run="--help")
    assert filled("{run}", alert) == " --help"
    assert filled("--run={run}", alert) == "--run=--help"


@pytest.mark.slow
def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"sh -c 'sleep 60 & echo $! > {pid_file}; wait'"
    with pytest.raises(DeliveryError, match=r"it did not end within 0\.5 s"):
        ProgramDestination(command, timeout_s=0.5).send(an_alert())
    pid = int(pid_file.read_text())
    until(lambda: psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE, _is_false)


def _is_false(value: bool) -> bool:
    return not value


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sh -c 'echo bad thing >&2; exit 3'", "it ended with 3: bad thing"),
        ("no-such-program-anywhere {text}", "it cannot be started: no such file or directory"),
        ("false", "it ended with 1$"),
    ],
)
def test_a_program_that_fails_is_a_sentence(command: str, reason: str) -> None:
    with pytest.raises(DeliveryError, match=reason):
        ProgramDestination(command).send(an_alert())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (AlertOptions(commands=("notify 'x",)), "--on-alert cannot run .*: no closing quotation"),
        (AlertOptions(commands=(" ",)), "--on-alert needs a command"),
        (AlertOptions(webhooks=("file:///etc/passwd",)), "--alert-webhook cannot be 'file:///etc/'…"),
        (AlertOptions(webhooks=("https://",)), "takes an address that begins with"),
        (AlertOptions(webhooks=("http://[x",)), "takes an address that begins with"),
    ],
)
def test_a_destination_that_cannot_work_is_refused(options: AlertOptions, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        options.check()


def test_destinations_survive_the_environment() -> None:
    options = AlertOptions(("a {text}",), ("https://ntfy.sh/x",), WebhookFormat.NTFY)
    assert AlertOptions.from_json(options.to_json()) == options
    with pytest.raises(ValueError, match="is not the destinations of alerts"):
        AlertOptions.from_json('{"commands": 1}')
