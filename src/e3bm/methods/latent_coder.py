"""LEO's networks (Rusu et al., ICLR 2019): from a support set to a code for each class, and from codes to weights."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.methods.heads.labelled import LabelledSupport

SMALLEST_DEVIATION = 1e-10


class LatentCoder(nn.Module):
    """Matrices without biases, [inputs, outputs]: an encoder, a relation network over pairs of examples, a decoder."""

    def __init__(self, features: int, latents: int) -> None:
        super().__init__()
        self.features, self.latents = features, latents
        self.encoder = nn.Parameter(torch.empty(features, latents))
        self.relation = nn.ParameterList(torch.empty(2 * latents, 2 * latents) for _ in range(3))
        self.decoder = nn.Parameter(torch.empty(latents, 2 * features))
        for matrix in self.parameters():
            nn.init.xavier_uniform_(matrix)

    def codes(
        self, support: Float[Tensor, "T S D"], labelled: LabelledSupport
    ) -> tuple[Float[Tensor, "T W L"], Float[Tensor, "T W L"]]:
        """Mean and deviation of every class's code: the mean over its examples of their relations to all examples."""
        own, others = (support @ self.encoder) @ self.relation[0].view(2, self.latents, -1).unsqueeze(1)
        pairs = (own.unsqueeze(2) + others.unsqueeze(1)).relu()  # T S S 2L
        pairs = (pairs @ self.relation[1]).relu()
        # The last layer is linear: means first, so that it is applied to classes and not to pairs.
        related = (labelled.share.unsqueeze(2) @ pairs).squeeze(2)  # T S 2L
        mean, exponent = (labelled.class_share @ related @ self.relation[2]).chunk(2, -1)
        return mean, exponent.expm1().clamp_min(SMALLEST_DEVIATION)

    def decode(
        self, latents: Float[Tensor, "T W C L"], noise: Float[Tensor, "T W C D"] | None
    ) -> tuple[Float[Tensor, "T W C D"], Float[Tensor, "T W C D"] | None]:
        """Weights, and their slope in the decoder's second half; without noise they are the first half."""
        mean, exponent = (latents @ self.decoder).chunk(2, -1)
        if noise is None:
            return mean, None
        ways = latents.shape[1]
        deviation = exponent.expm1() + (2 / (ways + self.features)) ** 0.5
        slope = exponent.exp() * noise * (deviation > SMALLEST_DEVIATION)
        return mean + deviation.clamp_min(SMALLEST_DEVIATION) * noise, slope

    def back(
        self, gradient: Float[Tensor, "T W C D"], slope: Float[Tensor, "T W C D"] | None
    ) -> Float[Tensor, "T W C L"]:
        """The gradient by the codes, from that by the weights."""
        if slope is None:
            return gradient @ self.decoder[:, : self.features].mT
        return torch.cat([gradient, gradient * slope], -1) @ self.decoder.mT

    def half_squares(self) -> Float[Tensor, ""]:
        """Half the sum of squares of all matrices."""
        return torch.stack([matrix.square().sum() for matrix in self.parameters()]).sum() / 2

    def correlation(self) -> Float[Tensor, ""]:
        """How far the decoder's rows are from orthogonal: the mean square of their cosines minus the identity."""
        rows = nn.functional.normalize(self.decoder, dim=-1)
        one = torch.eye(self.latents, dtype=rows.dtype, device=rows.device)
        return (rows @ rows.mT - one).square().mean()
