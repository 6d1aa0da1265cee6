"""Profiles before and after: which operators take the time of the plain side and of ours, and how often they run."""

from torch.profiler import ProfilerActivity, profile

from benchmarks import heads, maml, sib
from benchmarks.rows import Table
from benchmarks.timing import Work

SHOWN = 7
COLUMNS = ("work", "side", "ms", "operator calls", "where the time goes: operator (share of time, calls)")


def profiled(work: Work) -> tuple[float, int, str]:
    """Milliseconds, calls of operators that compute, and the costliest of them."""
    for _ in range(2):
        work()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        work()
    events = [event for event in recorded.key_averages() if event.key.startswith("aten::") or "Backward" in event.key]
    total = sum(event.self_cpu_time_total for event in events)
    costly = sorted(events, key=lambda event: -event.self_cpu_time_total)[:SHOWN]
    names = [event.key.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ") for event in costly]
    shares = [
        f"{name} ({event.self_cpu_time_total / total:.0%}, {event.count})"
        for name, event in zip(names, costly, strict=True)
    ]
    calls = sum(event.count for event in events if event.key.startswith("aten::"))
    return total / 1e3, calls, ", ".join(shares)


def pairs(quick: bool) -> dict[str, tuple[Work, Work]]:
    """The plain side and ours of the rows that teach something."""
    found = {
        "cosine head, forward, 1-shot, T=1": heads.sides(heads.Case("cosine", "fc", "forward", 1, 1, 10)),
        "cosine head, second order, 1-shot, T=64": heads.sides(heads.Case("cosine", "fc", "second order", 1, 64, 100)),
        "SIB, forward and backward, 1-shot, T=64": sib.sides(1, sib.TASKS),
    }
    for size, shots in ((16, 1),) if quick else ((32, 1), (84, 1)):
        batch, model = maml.tasks_of_images(size, shots), maml.learner(size)
        plain = maml.reference_step(maml.reference(model, size), batch)
        found[f"MAML, second order, {size} px, {shots}-shot"] = plain, maml.our_step(model, batch)
    return found


def tables(quick: bool) -> list[Table]:
    """Each work on both sides."""
    lines: list[tuple[str | float, ...]] = []
    for name, (slow, fast) in pairs(quick).items():
        for side, work in (("plain", slow), ("this package", fast)):
            lines.append((name, side, *profiled(work)))
    about = (
        "One call each under torch.profiler, which itself takes time when there are many calls. For heads the plain "
        f"side does one task, for SIB {sib.FEW_TASKS}; ours does all T. Shares are of the time inside operators."
    )
    return [Table("Profiles before and after", about, COLUMNS, tuple(lines))]
