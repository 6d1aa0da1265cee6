"""MAP without balance: rounds of soft assignment on features that were centred on their task.

The rounds of PT+MAP (Hu, Gripon, Pateux, ICANN 2021) with a softmax in place of its balanced transport, so that nothing
is assumed of how many queries a class has. Usual: 20 epochs at rate 0.2, a vote for the last. Some balance can be set,
or learned from training tasks.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import METHODS, Encoder, InnerLoopMethod, InnerLoopSettings, Parts
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds, each_alone


class MapRoundsSettings(InnerLoopSettings):
    """MAP without balance: rounds of soft assignment on features centred on their task."""

    title = "MAP"
    any_features = True
    transductive = True

    name: Literal["map_rounds"] = "map_rounds"
    epochs: int = Field(default=20, ge=1, le=1000)
    """Rounds; 20 as published."""
    rate: float = Field(default=0.2, gt=0)
    """How far prototypes move in a round before training; 0.2 as published."""
    order: Literal["second"] = "second"
    """Rounds are not gradients: the outer loop always sees all of them."""
    scale: float = Field(default=10.0, gt=0)
    """Factor on the squared distances, or its start."""
    learned_scale: bool = False
    """Whether the factor is trained, on a logarithmic scale."""
    balance: float = Field(default=0.0, ge=-1, le=1)
    """How far classes are brought to equally many queries, or its start: 0 not at all, 1 about as far as PT+MAP's
    transport; below 0 a class that has many gets more."""
    learned_balance: bool = False
    """Whether the balance is trained."""


@METHODS.register("map_rounds")
class MapRounds(InnerLoopMethod):
    """Unit features minus the mean of the task's support and queries; shares are softmax(-c |q - p|^2), c = 10.

    With a balance b other than 0, shares are softmax(-c |q - p|^2 - b log m): a class's mass m is the sum of its shares
    without b.
    """

    settings = MapRoundsSettings
    scale: Tensor
    balance: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        scale: float = 10.0,
        learned_scale: bool = False,
        balance: float = 0.0,
        learned_balance: bool = False,
    ) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of MAP's distances must be positive, found {scale}.")
        if not -1 <= balance <= 1:
            raise SettingsError(f"MAP's balance must be from -1 to 1, found {balance}.")
        self.encoder, self.balanced = encoder, learned_balance or balance != 0
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.register_buffer("balance", torch.tensor(float(balance)), persistent=False)
        # What training changes is a factor's logarithm and a difference: at zero both are exactly as in the settings.
        self.log_factor = nn.Parameter(torch.tensor(0.0)) if learned_scale else None
        self.shift = nn.Parameter(torch.tensor(0.0)) if learned_balance else None

    @classmethod
    def from_settings(cls, settings: MapRoundsSettings, parts: Parts) -> "MapRounds":
        return cls(
            parts.encoder,
            scale=settings.scale,
            learned_scale=settings.learned_scale,
            balance=settings.balance,
            learned_balance=settings.learned_balance,
        )

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        support, query = centred_on_task(unit(support), unit(query), batch.mask)
        scale = self.scale if self.log_factor is None else self.scale * self.log_factor.exp()
        balance = self.balance if self.shift is None else self.balance + self.shift
        return PrototypeRounds(
            support,
            query,
            batch.support_labels,
            batch.mask,
            batch.ways,
            scale=scale,
            assign=(lambda scores: partly_balanced(scores, balance)) if self.balanced else each_alone,
        )


def partly_balanced(scores: Float[Tensor, "T Q W"], balance: Float[Tensor, ""]) -> Float[Tensor, "T Q W"]:
    """A softmax over the classes of the scores minus the balance times the logarithm of the class's mass without it."""
    mass = scores.log_softmax(-1).logsumexp(1, keepdim=True)
    return (scores - balance * mass).log_softmax(-1)


def centred_on_task(
    support: Float[Tensor, "T S D"], query: Float[Tensor, "T Q D"], mask: Bool[Tensor, "T S"]
) -> tuple[Float[Tensor, "T S D"], Float[Tensor, "T Q D"]]:
    """Both minus the mean over all real examples of the task."""
    real = mask.to(support.dtype).unsqueeze(-1)
    total = (real * support).sum(1, keepdim=True) + query.sum(1, keepdim=True)
    mean = total / (real.sum(1, keepdim=True) + query.shape[1])
    return support - mean, query - mean
