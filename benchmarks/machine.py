"""Where a benchmark ran, how busy that machine was, and what its matrix product can do at best."""

import os
import platform
import statistics
from typing import Any

import torch

from benchmarks.timing import cpu_seconds
from e3bm.runs.folder.environment import describe_environment

SGEMM_SIZE = 1536


def sgemm_flops(repeats: int = 5, size: int = SGEMM_SIZE) -> float:
    """Operations per second of a large single-precision matrix product: the best that convolutions can hope for."""
    first, second = torch.rand(size, size), torch.rand(size, size)
    first @ second
    seconds = statistics.median(cpu_seconds(lambda: first @ second) for _ in range(repeats))
    return 2.0 * size**3 / seconds


def describe() -> dict[str, Any]:
    """The machine, the versions, and the load it was under when the run began."""
    about = describe_environment()
    about["memory_gigabytes"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    about["vector_instructions"] = torch.backends.cpu.get_cpu_capability()
    about["architecture"] = platform.machine()
    about["threads"] = torch.get_num_threads()
    about["sgemm_gflops_one_thread"] = round(sgemm_flops() / 1e9, 1)
    about["load_average_at_begin"] = [round(value, 2) for value in os.getloadavg()]
    return about
