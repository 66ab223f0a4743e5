"""kubeconfig files as structs, read by Go's rules of YAML and JSON (client-go: tools/clientcmd/api/v1, loader.go)."""

import base64
import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from kubeloop.client.errors import ConfigError
from kubeloop.client.lenient import without_nulls
from kubeloop.errors import one_line

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, where it is there: as Go's it takes tabs in JSON."""


class _Loader(_Base):  # type: ignore[misc]
    """A loader with Go's choice of plain texts that are no strings (`12:30` is one, `y` is true) and JSON's keys."""

    yaml_implicit_resolvers: Final[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        mapping = super().construct_mapping(node, deep)
        if None in mapping:
            raise yaml.constructor.ConstructorError(None, None, "a key is null", node.start_mark)
        return {("false", "true")[key] if isinstance(key, bool) else str(key): mapping[key] for key in mapping}

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """Returns any number: no field of a kubeconfig is one."""
        if node.value.lower()[-3:] in ("nan", "inf"):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no number in JSON", node.start_mark)
        return 0.0

    def construct_untagged(self, node: yaml.Node) -> Any:
        """Returns a node's value as if it had no tag: the tag is unknown."""
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        return self.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value


_BOOL = r"^(?:y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF)$"
_INT = r"^[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0[bB][01_]+|0|[1-9][0-9_]*)$"
_FLOAT = (
    r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
for _tag, _pattern, _first_characters in (
    ("bool", _BOOL, "yYtToOnNfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), [*_first_characters])
for _tag, _constructor in {
    "bool": lambda _, node: str(node.value).lower() in ("y", "yes", "true", "on"),
    "int": _Loader.construct_number,
    "float": _Loader.construct_number,
    "binary": lambda _, node: base64.b64decode(node.value).decode(errors="replace"),
}.items():
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _constructor)
_Loader.add_constructor(None, _Loader.construct_untagged)


class _Secret(msgspec.Struct):
    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Extension(msgspec.Struct):
    """An entry that another program keeps in the file."""

    name: str = ""
    extension: Any = None


class ClusterEntry(msgspec.Struct, rename="kebab"):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[Extension] = []
    folder: str = msgspec.field(default="", name="//folder")
    """The file's folder: relative paths begin there."""


class ExecVariable(_Secret):
    name: str = ""
    value: str = ""


class Exec(_Secret, rename="camel"):
    command: str = ""
    args: list[str] = []
    env: list[ExecVariable] = []
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(_Secret):
    name: str = ""
    config: dict[str, str] = {}


class User(_Secret, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    impersonate: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    username: str = ""
    password: str = ""
    auth_provider: AuthProvider | None = None
    exec: Exec | None = None
    extensions: list[Extension] = []
    folder: str = msgspec.field(default="", name="//folder")


class Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    extensions: list[Extension] = []


class _Entry(msgspec.Struct):
    """An entry of one of the file's lists."""

    name: str = ""


class _NamedCluster(_Entry):
    cluster: ClusterEntry = msgspec.field(default_factory=ClusterEntry)


class _NamedUser(_Entry):
    user: User = msgspec.field(default_factory=User)


class _NamedContext(_Entry):
    context: Context = msgspec.field(default_factory=Context)


class _KubeconfigFile(msgspec.Struct, rename="kebab"):
    kind: str = ""
    api_version: str = msgspec.field(default="", name="apiVersion")
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    preferences: dict[str, Any] = {}
    extensions: list[Extension] = []


class Kubeconfig(msgspec.Struct):
    """Several files as one: of each name the first entry counts."""

    current_context: str = ""
    clusters: dict[str, ClusterEntry] = {}
    users: dict[str, User] = {}
    contexts: dict[str, Context] = {}


def read(paths: list[str]) -> Kubeconfig:
    """Returns these files, merged as kubectl merges them. Raises ConfigError, with the file and the field."""
    merged = Kubeconfig()
    for path in paths:
        try:
            config = parsed(Path(path).read_bytes(), os.path.dirname(os.path.abspath(path)))
        except (OSError, ConfigError) as err:
            reason = getattr(err, "strerror", None) or str(err)
            raise ConfigError(f"{path}: {reason}" if len(paths) > 1 else reason) from err
        merged.clusters = config.clusters | merged.clusters
        merged.users = config.users | merged.users
        merged.contexts = config.contexts | merged.contexts
        merged.current_context = merged.current_context or config.current_context
    return merged


def parsed(content: str | bytes, folder: str) -> Kubeconfig:
    """A file's content; relative paths in it begin in `folder`. Raises ConfigError, with the field."""
    file = _file(content)
    clusters: dict[str, ClusterEntry] = _by_name(file, "cluster")
    users: dict[str, User] = _by_name(file, "user")
    entries: list[ClusterEntry | User] = [*clusters.values(), *users.values()]
    for entry in entries:
        entry.folder = folder
    return Kubeconfig(file.current_context, clusters, users, _by_name(file, "context"))


def _file(text: str | bytes) -> _KubeconfigFile:
    try:
        content = next(yaml.load_all(text, _Loader), None)  # kubectl reads the first document
    except yaml.MarkedYAMLError as err:
        # Not the whole text of the error: it may show the line, and a token in it.
        line = f" in line {err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"not valid YAML: {err.problem or err.context}{line}") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise ConfigError(f"not valid YAML: {type(err).__name__}: {one_line(getattr(err, 'reason', ''))}") from err
    if content is None:
        return _KubeconfigFile()
    if not isinstance(content, dict):
        raise ConfigError("not a kubeconfig: a mapping with clusters, contexts and users is expected")
    try:
        file = msgspec.convert(without_nulls(_KubeconfigFile, content), _KubeconfigFile)
    except msgspec.ValidationError as err:
        reason, _, path = str(err).replace("`float`", "a number").partition(" - at ")
        raise ConfigError(f"{path.strip('`').removeprefix('$.')}: {reason}") from err
    if file.kind not in ("", "Config") or file.api_version not in ("", "v1"):
        raise ConfigError(f"not a kubeconfig: it is a {file.kind or 'Config'} of {file.api_version or 'v1'}")
    return file


def _by_name(file: _KubeconfigFile, kind: str) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for entry in getattr(file, f"{kind}s"):
        if entry.name in by_name:
            raise ConfigError(f"{kind}s: two entries are called {entry.name!r}")
        value = by_name[entry.name] = getattr(entry, kind)
        extensions = [extension.name for extension in value.extensions]
        if len(extensions) > len(set(extensions)):
            raise ConfigError(f"{kind}s: {entry.name!r} has two extensions of one name")
    return by_name


def decoded(data: str, field: str) -> str:
    """The text of a `-data` field. Raises ConfigError, without the text."""
    try:
        return base64.b64decode(data.replace("\n", "").replace("\r", ""), validate=True).decode(errors="replace")
    except ValueError as err:
        raise ConfigError(f"{field} is not base64") from err
