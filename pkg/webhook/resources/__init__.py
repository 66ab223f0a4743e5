"""Validators and mutators, a module for each kind.

Promises: `decide` functions are pure; an update is judged by what it changes; a pod in a namespace with added headroom
passes where the base has room for it, or its own migration's entry.
Forbids: a denial without a sentence that says what would be allowed; hindering what raises a limit."""
