"""Makes a process work that was forked from one which had already computed on several threads.

The threads of torch's pool do not exist in the child, and its first computation would wait for them for ever: this is
what users of gunicorn and of multiprocessing's `fork` do. With one thread there is nobody to wait for.
"""

import os
import sys
from functools import cache

import torch


@cache
def survive_forks() -> None:
    """From now on processes forked from this one compute on one thread; calling it again changes nothing."""
    if sys.platform != "win32":  # which has no fork
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
