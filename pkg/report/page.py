"""Renders one HTML page of its own from a snapshot: quotas as bars, what waits, and what was raised lately. Pure.

No script, no style or picture from elsewhere; every word of a tenant is escaped. Light or dark like the browser."""

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from kubeloop.api.meta import rfc3339
from pkg.report.explain import Verdict, explain
from pkg.report.snapshot import Snapshot
from pkg.report.status import QuotaStatus, headline, status
from pkg.util.amounts import format_amounts
from pkg.util.constants import EVENT_GIVEN_BACK, EVENT_RAISED

_MOST_WAITING, _MOST_EVENTS = 100, 200
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --page: #fff; --line: #d9dee5;
  --base: #cfd8e3; --added: #3b82c4; --used: #1c2430; --wrong: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --page: #14181e; --line: #2d3540;
  --base: #38434f; --added: #5aa2e0; --used: #e6e9ee; --wrong: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.alarm, .problem { color: var(--wrong); } .soft { color: var(--soft); }
section { border-top: 1px solid var(--line); padding: .6rem 0; content-visibility: auto; contain-intrinsic-size: 5rem; }
.name { font-weight: 600; overflow-wrap: anywhere; }
.row { display: grid; grid-template-columns: 14rem 1fr 19rem; gap: .8rem; align-items: center; }
.bar { position: relative; height: .9rem; display: flex; background: none; border-radius: 3px; overflow: hidden; }
.bar i { display: block; height: 100%; } .b { background: var(--base); } .a { background: var(--added); }
.bar u { position: absolute; bottom: 0; left: 0; height: 4px; background: var(--used); }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td:not(:last-child) { min-width: 9rem; }
@media (max-width: 50rem) { td:not(:last-child) { min-width: 0; } .row { grid-template-columns: 1fr; gap: .1rem; } }
"""


def page(snapshot: Snapshot) -> str:
    """Returns the document. `snapshot.failures` has the events of raises, too."""
    quotas = status(snapshot)
    ordered = sorted(quotas, key=lambda quota: (quota.is_quiet, quota.namespace, quota.name))
    time_text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.now))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>headroom</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(headline(snapshot, quotas))}</h1><p class="soft">{time_text}</p>',
        *(f'<p class="alarm">{escape(alarm)}</p>' for alarm in snapshot.installed.alarms()),
        *_waiting(snapshot),
        "<h2>Quotas</h2>",
        '<p class="soft">Grey: the base. Blue: added for migrations. Dark line: used.</p>',
        *(part for quota in ordered for part in _quota(quota, snapshot)),
        *_recent_events(snapshot),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _quota(quota: QuotaStatus, snapshot: Snapshot) -> Iterator[str]:
    yield f'<section><div class="name">{escape(quota.namespace)}/{escape(quota.name)} '
    yield f'<span class="soft">{escape(snapshot.installed.keeper_title(quota.kept_by))}</span></div>'
    for name, row in quota.resources.items():
        whole = max(row.hard, row.used, row.base_or_rest + row.added).nanos
        base, added, used = (
            round(100 * max(0, amount.nanos) / whole, 1) if whole > 0 else 0.0
            for amount in (row.base_or_rest, row.added, row.used)
        )
        yield (
            f'<div class="row"><span>{escape(name)}</span><span class="bar"><i class="b" style="width:{base}%"></i>'
            f'<i class="a" style="width:{added}%"></i><u style="width:{used}%"></u></span>'
            f"<span>{escape(row.sentence(name))}</span></div>"
        )
    for entry in quota.additions:
        sentence = entry.sentence(snapshot.now, snapshot.basis.hold_limit)
        yield f"<div>{escape(f'{entry.vm} {sentence}, {format_amounts(entry.resources)}')}</div>"
    if quota.compensation:
        yield f"<div>refused pods: compensation {escape(format_amounts(quota.compensation))}</div>"
    yield from (f'<div class="problem">{escape(problem)}</div>' for problem in quota.problems)
    yield "</section>"


def _waiting(snapshot: Snapshot) -> Iterator[str]:
    rows = []
    for migration in snapshot.waiting[:_MOST_WAITING]:
        name, namespace = migration.spec.vmi_name, migration.namespace
        instance = snapshot.source.instances.get(namespace=namespace, name=name)
        text = "its VM does not run, or may not be read"
        if instance is not None:
            explanation = explain(snapshot, instance)
            text = f"{explanation.verdict}: {explanation.summary}"
            if explanation.verdict is Verdict.WAITS_FOR_QUOTA:
                text = "; headroom: ".join([text, *(fit.action for fit in explanation.fits if not fit.fits_then)])
        rows.append((f"{namespace}/{name}", migration.name, text))
    yield from _table("Waiting", ("VM", "migration", "why"), rows)
    if (more := len(snapshot.waiting) - _MOST_WAITING) > 0:
        yield f'<p class="soft">and {more} more</p>'


def _recent_events(snapshot: Snapshot) -> Iterator[str]:
    """Yields a table of what was raised and given back in the last hour, the latest first."""
    hour_ago = rfc3339(snapshot.now - 3600.0)
    events = [
        (event.last_timestamp or "", f"{event.involved_object.namespace}/{event.involved_object.name}", event.message)
        for event in snapshot.failures
        if event.reason in (EVENT_RAISED, EVENT_GIVEN_BACK) and (event.last_timestamp or "") > hour_ago
    ]
    yield from _table("Events of the last hour", ("at", "VM", ""), sorted(events, reverse=True)[:_MOST_EVENTS])


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"<h2>{title}</h2><table><tr>" + "".join(f"<th>{heading}</th>" for heading in headings) + "</tr>"
        yield from ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows)
        yield "</table>"
