"""Validators and mutators, a package for each kind.

Promises: `decide…` functions are pure; the classes around them fetch the input.
Forbids: a denial without a sentence that says what would be allowed.
"""
