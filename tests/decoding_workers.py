"""What decoding processes are asked to do in tests: a module that they can import by itself."""

import os

from e3bm.data.read.decode import decode


def first_pixels(payloads):
    return [decode(payload)[0, 0, 0] for payload in payloads]


def dies(payloads):
    os._exit(9)
