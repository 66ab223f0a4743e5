"""The command line: one module a subcommand, mounted by `main`.

Promises: one line on stderr for whatever goes wrong, exit code 2 for a wrong call or configuration, 1 for a
failure at work, never a traceback; the offline commands start fast.
Forbids: decisions. They live in `pkg.util`, where they are tested without a process."""
