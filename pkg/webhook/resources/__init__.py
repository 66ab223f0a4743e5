"""One package a kind: what may be done to it, and what is changed on the way.

Promises: `decide…` functions are pure; the classes around them fetch what they look at.
Forbids: a denial without a sentence that says what would be allowed.
"""
