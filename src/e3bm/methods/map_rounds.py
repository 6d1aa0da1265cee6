"""MAP without balance: rounds of soft assignment on features that were centred on their task.

The rounds of PT+MAP (Hu, Gripon, Pateux, ICANN 2021) with a softmax in place of its balanced transport, so that nothing
is assumed of how many queries a class has. Usual: 20 epochs at rate 0.2, a vote for the last.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from e3bm.core.episode import TaskBatch
from e3bm.errors import SettingsError
from e3bm.methods.base import Encoder
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.prototype_rounds import PrototypeRounds


class MapRounds(nn.Module):
    """Unit features minus the mean of the task's support and queries; shares are softmax(-c |q - p|^2), c = 10."""

    scale: Tensor

    def __init__(self, encoder: Encoder, *, scale: float = 10.0) -> None:
        super().__init__()
        if not scale > 0:
            raise SettingsError(f"The scale of MAP's distances must be positive, found {scale}.")
        self.encoder = encoder
        self.register_buffer("scale", torch.tensor(float(scale)))

    def begin(self, batch: TaskBatch) -> PrototypeRounds:
        support, query = self.encoder(batch.support, batch.support_mask), self.encoder(batch.query)
        support, query = centred_on_task(unit(support), unit(query), batch.mask)
        return PrototypeRounds(support, query, batch.support_labels, batch.mask, batch.ways, scale=self.scale)


def centred_on_task(
    support: Float[Tensor, "T S D"], query: Float[Tensor, "T Q D"], mask: Bool[Tensor, "T S"]
) -> tuple[Float[Tensor, "T S D"], Float[Tensor, "T Q D"]]:
    """Both minus the mean over all real examples of the task."""
    real = mask.to(support.dtype).unsqueeze(-1)
    total = (real * support).sum(1, keepdim=True) + query.sum(1, keepdim=True)
    mean = total / (real.sum(1, keepdim=True) + query.shape[1])
    return support - mean, query - mean
