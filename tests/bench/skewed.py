"""`headroom` on a machine whose clock is wrong: `python -m tests.bench.skewed SECONDS <headroom's arguments>`."""

import sys
import time

if __name__ == "__main__":
    SKEW, RIGHT = float(sys.argv.pop(1)), time.time
    time.time = lambda: RIGHT() + SKEW
    from pkg.cmd.main import main

    main()
