"""The page of `status --html`: what it shows, and that nothing of a tenant's is more than text."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kubeloop.api.core import Event, ObjectReference
from pkg.report.page import page
from pkg.report.snapshot import Snapshot
from tests.decisions import charged
from tests.kinds import edited
from tests.objects import HARD, MARKS, launcher, quota, vmi, vmim
from tests.pkg.util.resourcequota.snapshots import NOON, cluster, settled

HERE, SOURCE = vmi(nodeName="node-1"), launcher()
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Its elements and attributes, its text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(snapshot: Snapshot) -> Page:
    return Page(page(snapshot))


def test_a_raised_quota_is_a_bar_of_base_added_and_used() -> None:
    html_page = page_of(settled(cluster([quota(HARD, MARKS)], [vmim()], [SOURCE], [HERE])))
    widths = [attrs["style"] for tag, attrs in html_page.elements if tag in ("i", "u") and "style" in attrs]
    assert widths[:3] == ["width:59.8%", "width:40.2%", "width:40.2%"]
    assert "2015m of 5015m (base 3 + 2015m)" in html_page.text
    assert "vm1 Pending" in html_page.text


def test_what_waits_is_shown_with_what_is_missing() -> None:
    html_page = page_of(cluster([quota(HARD, MARKS)], [vmim(refused=True)], [SOURCE], [HERE]))
    assert "waits for quota: migration-of-vm1 does not fit: default-abc lacks 1030m of limits.cpu" in html_page.text
    assert "headroom: " not in html_page.text, "it is about to raise the quota"
    html_page = page_of(cluster([quota(HARD, labels={"a": "b"})], [vmim(refused=True)], [SOURCE], [HERE]))
    assert "limits.memory; headroom: nothing: it is not Rancher's default quota and has no label" in html_page.text


def test_what_waits_in_another_namespace_is_not_on_the_page_of_one() -> None:
    """The migrations of the whole cluster are read, for KubeVirt's limits; VMs and quotas of the namespace alone."""
    elsewhere = edited(vmim(refused=True), metadata={"namespace": "ns2"})
    snapshot = cluster([quota(HARD, MARKS)], [elsewhere, vmim(refused=True)], [SOURCE], [HERE])
    html_page = page_of(snapshot)
    assert "1 waiting" in html_page.text
    assert "ns2/" not in html_page.text


def test_raises_of_the_last_hour_are_shown_the_latest_first() -> None:
    def event_at(time: str, message: str, reason: str = "ResourceQuotaRaised") -> Event:
        regarding = ObjectReference(kind="VirtualMachineInstance", name="vm1", namespace="ns1")
        return Event(involved_object=regarding, reason=reason, message=message, last_timestamp=time)

    events = [
        event_at("2026-01-01T11:30:00Z", "raised first"),
        event_at("2026-01-01T11:50:00Z", "given back", "ResourceQuotaGivenBack"),
        event_at("2026-01-01T10:30:00Z", "of before"),
        event_at("2026-01-01T11:55:00Z", "of another kind", "Created"),
    ]
    html_page = page_of(replace(cluster([quota(HARD, MARKS)]), failures=events))
    assert html_page.text.index("given back") < html_page.text.index("raised first")
    assert not any(text in html_page.text for text in ("of before", "of another kind"))


EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_what_a_tenant_wrote_is_text_and_nothing_is_fetched() -> None:
    pending = edited(vmim(refused=True), metadata={"name": EVIL})
    odd = edited(charged(quota(HARD, {**MARKS, f"harvesterhci.io/migrating-{EVIL}": "{}"}), [SOURCE]))
    snapshot = replace(cluster([odd], [pending], [SOURCE], [HERE]), now=NOON)
    regarding = ObjectReference(kind="VirtualMachineInstance", name=EVIL, namespace="ns1")
    event = Event(
        involved_object=regarding, reason="ResourceQuotaRaised", message=EVIL, last_timestamp="2026-01-01T11:59:00Z"
    )
    html_page = page_of(replace(snapshot, failures=[event]))
    assert EVIL in html_page.text
    assert {tag for tag, _ in html_page.elements}.isdisjoint({"script", "img", "link", "iframe", "object", "a"})
    attributes = {name for _, attrs in html_page.elements for name in attrs}
    assert attributes <= {"lang", "charset", "name", "content", "http-equiv", "class", "style"}


def test_a_thousand_quotas_are_a_page_of_less_than_a_megabyte() -> None:
    many = [charged(quota(HARD, MARKS, name=f"q{number}"), [SOURCE]) for number in range(1000)]
    text = page(cluster(many, [], [SOURCE], [HERE]))
    assert text.count("<section>") == 1000
    assert len(text) < 1_000_000


CHROMIUM = shutil.which("chromium") or ""


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [1200, 400], ids=["a desk", "a telephone"])
def test_a_browser_shows_every_word_within_its_width(width: int, tmp_path: Path) -> None:
    """Nothing is wider than the window: the browser says so itself."""
    long = edited(quota(HARD, MARKS), metadata={"name": "q" * 200})
    snapshot = settled(cluster([quota(HARD, MARKS), long], [vmim(refused=True)], [SOURCE], [HERE]))
    text = page(snapshot).replace("default-src 'none'", "default-src 'unsafe-inline'")
    measured = "<script>document.title = `${document.documentElement.scrollWidth} of ${innerWidth}`</script>"
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{measured}</body>"), "utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    widths = re.search(r"<title>(\d+) of (\d+)</title>", completed.stdout)
    assert widths is not None, completed.stderr[-2000:]
    assert int(widths[1]) <= int(widths[2])
