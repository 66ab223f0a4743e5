"""docs/reference.md: every flag and every event, from the code. `deploy.render` writes it."""

import inspect
from collections import defaultdict
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin

from typer.models import ArgumentInfo

from deploy.events import EVENTS, Event
from pkg.cmd.main import application

_HEAD: Final = """\
# Reference

Made by `make manifests` from the code: flags and events. See also [metrics](metrics.md),
[keys on objects](behaviour.md#on-objects) and [what is promised](upgrade.md#what-is-promised) about all of them.

"""
_FLAGS: Final = """\
## Flags

A flag can be set in the environment, too: `HEADROOM_` and its name in capitals, `HEADROOM_HOLD_LIMIT` for
`--hold-limit`, and `HEADROOM_NAMESPACE` for `--headroom-namespace`; those with a * can't. `headroom COMMAND --help`
says the same. Durations are in seconds.

"""
_EVENTS: Final = """\
## Events

`kubectl -n NS get events --field-selector reason=MaxExtraReached` shows those of one reason. There is one event for
each state: amounts in it may change, repeats are counted. A VMMRQ is a VirtualMachineMigrationResourceQuota, a VMIM a
VirtualMachineInstanceMigration. Those on the ConfigMap `headroom` are in headroom's own namespace.

"""
_OFFLINE: Final = """
## Offline

```sh
kubectl get kubevirts,settings.harvesterhci.io,namespaces,resourcequotas,limitranges,pods,vmis -A -o yaml \\
  | headroom delta -f - --estimate exact
```

Nothing but the input is read, and to its end first; the files of a support bundle will do. Plain KubeVirt has no
`settings.harvesterhci.io`: leave it out. Add `runtimeclasses` and `network-attachment-definitions` where they are in
use; for VirtualMachines, `virtualmachineclusterinstancetypes`, `virtualmachineclusterpreferences` and those of
namespaces, before `vms`. Without any such object, the quota is assumed to limit cpu and memory, the ratio to be 1.5
and KubeVirt to be 1.8.

The output is one JSON line per VMI: `target` is everything that quota will count of the target launcher and its
attachment pods, by resource name. An object in the input applies to the VMIs that follow it, until a later one of the
same kind, namespace and name. A running VMI's source pod is the one that the VMI controls and that is on its node.
[What quota counts](dev/architecture.md#what-quota-counts) of a pod differs between Kubernetes releases.
"""


def reference() -> str:
    return f"{_HEAD}{_FLAGS}{_flags()}{_EVENTS}{_warnings()}{_others()}{_OFFLINE}"


def _flags() -> str:
    """A table for each set of commands that share flags."""
    owners: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for command in application().registered_commands:
        assert command.callback is not None
        for parameter in inspect.signature(command.callback).parameters.values():
            owners[_row(parameter)].append(command.name or "")
    tables: dict[tuple[str, ...], list[tuple[str, str, str]]] = defaultdict(list)
    for row, names in owners.items():
        tables[tuple(names)].append(row)
    shown = sorted(tables.items(), key=lambda each: -len(each[0]))
    return "".join(
        f"### {', '.join(f'`{name}`' for name in names)}\n\n| flag | default | |\n|---|---|---|\n"
        + "".join(f"| {' | '.join(row)} |\n" for row in rows)
        + "\n"
        for names, rows in shown
    )


def _row(parameter: inspect.Parameter) -> tuple[str, str, str]:
    """A flag's spelling, its default and its help."""
    kind, info = get_args(parameter.annotation)
    if isinstance(info, ArgumentInfo):
        return f"`{info.metavar}`", "", info.help or ""
    long = f"--{parameter.name.replace('_', '-')}"
    given = [each for each in (info.default, *(info.param_decls or ())) if str(each).startswith("-")]
    names = given or [f"{long}/--no-{long[2:]}" if kind is bool else long]
    spelled = ", ".join(sorted(names, key=len))
    value = info.metavar or "|".join(_choices(kind))
    default = "" if parameter.default in (None, inspect.Parameter.empty) else _shown(parameter.default)
    mark = "" if info.envvar else " *"
    text = f"{spelled} {value}".strip().replace("|", "\\|")
    return f"`{text}`{mark}", default, info.help or ""


def _choices(kind: Any) -> list[str]:
    """The values of an enum or a Literal, also of one that may be repeated or left out."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.value for each in kind]
    return [value for inner in get_args(kind) for value in _choices(inner)]


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"`{default:g}`" if isinstance(default, float) else f"`{getattr(default, 'value', default)}`"


def _warnings() -> str:
    rows = [each for each in EVENTS if each.kind == "Warning"]
    return "| warning | on | | what to do |\n|---|---|---|---|\n" + "".join(
        f"| `{each.reason}` | {each.about} | {each.meaning} | {each.remedy} |\n" for each in rows
    )


def _others() -> str:
    rows: list[Event] = [each for each in EVENTS if each.kind != "Warning"]
    return "\n| normal event | on | |\n|---|---|---|\n" + "".join(
        f"| `{each.reason}` | {each.about} | {each.meaning} |\n" for each in rows
    )
