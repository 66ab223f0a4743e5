"""One package a kind: which writes are allowed, and what is changed in them.

Promises: `decide…` functions are pure; the classes around them fetch the input.
Forbids: a denial without a sentence that says what would be allowed.
"""
