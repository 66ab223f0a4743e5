"""kubeconfig files for tests."""

import base64
import json
from pathlib import Path
from typing import Any


def kubeconfig(
    user: Any = None, *, server: str = "https://10.0.0.1:6443", cluster: dict[str, Any] | None = None, name: str = "a"
) -> dict[str, Any]:
    """A kubeconfig with one context, one cluster and one user, all called `name`."""
    context = {"cluster": name, "user": name, "namespace": f"ns-{name}"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": context}],
        "clusters": [{"name": name, "cluster": {"server": server} | (cluster or {})}],
        "users": [{"name": name, "user": user if user is not None else {}}],
    }


def write(folder: Path, content: Any, name: str = "config") -> str:
    """The content as a file (JSON is YAML); text goes in as it is."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def data(text: str) -> str:
    """Encodes a text as the `-data` fields hold it."""
    return base64.b64encode(text.encode()).decode()


class Plugin:
    """A credential plugin: a script that writes down how it was called and prints what the test wants."""

    API = "client.authentication.k8s.io/v1"
    HANGS = 30

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "plugin.sh"
        self.path.write_text(
            "#!/bin/sh\n"
            f'echo "$@" >> {folder}/calls\n'
            f'printf %s "$KUBERNETES_EXEC_INFO" > {folder}/info\n'
            f'printf %s "$MOOD" > {folder}/mood\n'
            f"pwd > {folder}/folder\n"
            f"if [ -f {folder}/sleep ]; then exec sleep {self.HANGS}; fi\n"
            f"cat {folder}/complaint >&2\n"
            f"cat {folder}/answer\n"
            f"exit $(cat {folder}/code)\n"
        )
        self.path.chmod(0o755)
        self.answers({"token": "t"})

    def answers(self, status: dict[str, Any]) -> None:
        """The status it gives from now on."""
        credential = {"apiVersion": self.API, "kind": "ExecCredential", "status": status}
        self.prints(json.dumps(credential))

    def prints(self, text: str, code: int = 0, complaint: str = "") -> None:
        """Sets what the plugin prints and how it exits."""
        (self._folder / "answer").write_text(text)
        (self._folder / "code").write_text(str(code))
        (self._folder / "complaint").write_text(complaint)

    def hangs(self) -> None:
        """It takes HANGS seconds from now on."""
        (self._folder / "sleep").touch()

    def recovers(self) -> None:
        """It answers at once again."""
        (self._folder / "sleep").unlink()

    @property
    def calls(self) -> list[str]:
        """The arguments of each run so far."""
        calls = self._folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def info(self) -> Any:
        """The KUBERNETES_EXEC_INFO of the last run."""
        return json.loads((self._folder / "info").read_text())

    def folder(self) -> str:
        """Returns the folder of the last run."""
        return (self._folder / "folder").read_text().strip()

    def mood(self) -> str:
        """The variable MOOD of the last run."""
        return (self._folder / "mood").read_text()

    def user(self, **fields: Any) -> dict[str, Any]:
        """A kubeconfig user that runs it."""
        exec_ = {"apiVersion": self.API, "command": str(self.path), "interactiveMode": "Never"}
        return {"exec": exec_ | fields}
