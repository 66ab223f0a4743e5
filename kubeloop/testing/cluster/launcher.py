"""Becomes one process of the cluster: `python -I -S launcher.py SPEC` records itself, then execs what SPEC says.

A process that writes down its own pid and start time *before* it turns into etcd or kube-apiserver (exec keeps both)
can be found again by `down`, whenever its parent was killed. If the spec is gone by then, a `down` came in between:
end, instead of becoming a process without a record. (`down` removes the spec first and reads the record after.)

Only the standard library, and no import of this package: it runs before each of the cluster's processes."""

import json
import os
import sys


def identity(pid: int) -> str:
    """Returns what tells this process from a later one of the same pid: boot id, and start in ticks after the boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The command name stands in parentheses and may hold anything; field 22 counts from behind the last one.
        fields = file.read().rpartition(")")[2].split()
    return f"{boot} {fields[19]}"


def main(spec_path: str) -> None:
    os.setsid()
    try:
        with open(spec_path, encoding="utf-8") as file:
            spec = json.load(file)
    except FileNotFoundError:
        return
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The caller's open files, a lock of flock(1) or a pipe that is read to its end, are not the cluster's.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    record = spec_path.removesuffix(".json") + ".pid"
    with open(record + ".new", "w", encoding="ascii") as file:
        file.write(f"{os.getpid()} {identity(os.getpid())}\n")
    os.rename(record + ".new", record)
    if not os.path.exists(spec_path):
        return
    os.chdir(spec["cwd"])
    try:
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        sys.exit(f"{spec['argv'][0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1])
