"""The few-shot classifier's prior: a base learner and its E3BM hyperprior, free of ways, shots and feature size."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.core.context import Basis, Context, Observation, SharedReading
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner
from e3bm.core.schedules import Generated, LastOnly, Learned, equal_values
from e3bm.errors import SettingsError
from e3bm.fewshot.prior.head import PrincipalAxes, PrincipalHead, SupportSpace, balanced_share, class_targets

TASK_STATS = 7
EPOCHS = 12
HIDDEN = 8
RIDGES = (0.3, 0.002)  # before training: of the first and of the last epoch, geometric between
FIRST_RATE = 0.2
FIRST_SCALE = 2.0

Votes = Literal["e3bm", "learned", "last"]


@runtime_checkable
class ObservedScalars(Protocol):
    """An observation that hands out its scalars."""

    def scalars(self) -> Float[Tensor, "T C"]: ...


@dataclass(frozen=True)
class TaskStats:
    """What the hyperprior sees of a task: scalars that mean the same for any ways, shots and features.

    They are gradient norm and loss as in the summary `stats`, in units of the task, and its ways, shots and scatter.
    """

    scalars: int = TASK_STATS

    @property
    def size(self) -> int:
        return self.scalars

    def bind(
        self, basis: Basis, rows: Float[Tensor, "G R C"], constant: Float[Tensor, "G T R"], detach: bool
    ) -> SharedReading:
        def see(observation: Observation) -> Tensor:
            if not isinstance(observation, ObservedScalars):
                raise SettingsError("The summary of a few-shot prior needs the head on principal axes.")
            scalars = observation.scalars()
            return scalars.detach() if detach else scalars

        return SharedReading(see, rows, constant)


class PrincipalMethod(InnerLoopMethod):
    """The base learner: support space, principal axes, and class means as the start."""

    def __init__(self, epochs: int = EPOCHS) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(FIRST_SCALE).log())
        self.bias_share = nn.Parameter(torch.tensor(0.0))
        steps = torch.linspace(0, 1, epochs)
        first, last = (torch.tensor(ridge).log() for ridge in RIDGES)
        self.log_ridges = nn.Parameter(first + steps * (last - first))

    def begin(self, batch: TaskBatch) -> PrincipalHead:
        return self.open(batch)[0]

    def open(
        self, batch: TaskBatch, *, unit_length: bool = True, weights: Float[Tensor, "T S"] | None = None
    ) -> tuple[PrincipalHead, SupportSpace]:
        """The moves of the inner loop on a batch of tasks, and the space in which its features are.

        An example of weight 2 counts as two equal ones; without ``weights`` each counts once.
        """
        targets = class_targets(batch.support_labels, batch.mask, batch.ways, batch.support.dtype)
        amounts = targets if weights is None else targets * weights.to(targets.dtype).unsqueeze(1)
        share = balanced_share(amounts)
        space = SupportSpace.of(batch.support, share, unit_length=unit_length)
        support = space(batch.support) * batch.mask.unsqueeze(-1)
        principal = PrincipalAxes.of(support, share, targets, amounts)
        head = PrincipalHead(
            support @ principal.axes,
            space(batch.query) @ principal.axes,
            targets,
            amounts,
            share,
            principal,
            self.ridges(),
            scale=self.log_scale.exp(),
            bias_share=self.bias_share,
        )
        return head, space

    def ridges(self) -> Tensor:
        """The ridges l_1..M of the epochs, from strong to weak."""
        return self.log_ridges.exp()


def build_prior(votes: Votes = "e3bm", *, epochs: int = EPOCHS, hidden: int = HIDDEN, seed: int = 0) -> MetaLearner:
    """A prior before training; with 'learned' or 'last' (the ablations) votes and rates do not depend on the task."""
    torch.manual_seed(seed)
    rates = [FIRST_RATE] * epochs
    if votes == "e3bm":
        generator = LstmGenerator(Context(TaskStats()), 2, hidden=hidden)
        hyperprior = Hyperprior(Generated(rates), Generated(equal_values(epochs)), generator, mixing="scaled")
    elif votes == "learned":
        hyperprior = Hyperprior(Learned(rates), Learned(equal_values(epochs)))
    else:
        hyperprior = Hyperprior(Learned(rates), LastOnly())
    return MetaLearner(PrincipalMethod(epochs), hyperprior, epochs)
