"""Peak memory of a call, as torch's allocator saw it."""

from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Work


def peak_megabytes(work: Work) -> float:
    """The most that torch had allocated at one time during a call, beyond what it had before."""
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak / 2**20
