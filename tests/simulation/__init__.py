"""The whole stack in virtual time: headroom's controllers and webhooks, unchanged, on the fake API server with the real
one's traits, beside KubeVirt's and Rancher's stand-ins, people, a hostile tenant, and everything that goes wrong.

    make simulate                 stories from ever new seeds, for HOURS=1 or SEEDS=200, on every core
    make simulate SEED=4711       one of them again, step by step the same, and shrunk when a promise is broken
    make simulate PLANTED=clock   the same with one rule of headroom's broken: is it found?

A *story* (story.py) is what a seed stands for: *traits* of the cluster, and *actions* at their times. A *process*
(process.py) is a program that runs in it and can be killed at any await. The *promises* (promises.py) are those of
docs/security.md, checked at every write.

Promises: a story is the same whenever it is told, in whichever process. Nothing here knows how headroom decides.
Forbids: a kinder cluster than the real one.
"""
