"""Functions of torch in the company of others, differentiated by both arguments.

PyTorch's own table calls each operator by itself, and differentiates what the call says. Here what
an exporter writes for one stands beside what it writes for another, through both exporters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ..cases import TorchCase

PACKAGES: list[str] = []
BATCH = 40
TWICE = torch.tensor([0, 2, 0, 2, 2])
BEHIND, MIXED = torch.tensor([-1, 0, -2, 1, -1]), torch.tensor([1, -1, 0, 0, 2])
PLACES = torch.tensor([[0, 2, 0, 2, 2], [1, 1, 1, 0, 0], [3, 3, 0, 0, 1], [2, 2, 2, 2, 2]])
SOME = torch.tensor([True, False, True, True])

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _written_slices(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[1:3, ::2] = s[1:3, ::2]
    return y * 2


def _written_places(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[TWICE % 4, MIXED] = s[0] * 0 + 1.0
    y[0] += s[1]
    return y * 2


def _safe_softmax(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """As attention has it; the plain one is read, too."""
    y = x.softmax(1)
    return torch.where(s[:, :1] > 0, torch.zeros_like(y), y) + y * s


def _nan_softmax(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = x.softmax(1)
    return torch.where(y.isnan(), torch.zeros_like(y), y) * s + y.square()


def _attention(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Weights are a result, too; the first row is masked."""
    mask = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -1e9)
    weights = (x @ s.t() / 2 + mask).softmax(-1)
    return torch.cat([weights @ s, weights], 1)


def _normalised(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
    return (x - mean) / (var + 1e-5).sqrt() * s + mean


def _gated(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """The sigmoid is read twice."""
    gate = x.sigmoid()
    return x * gate + s * (1 - gate)


def _guarded_log(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.clamp(min=1e-6).log(), s) + torch.where(x > 0, x, x.exp())


def _focal(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    p, t = x.sigmoid(), (s > 0).to(x.dtype)
    loss = functional.binary_cross_entropy_with_logits(x, t, reduction="none")
    return loss * (1 - (p * t + (1 - p) * (1 - t))) ** 2 * s


def _dice(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    p, t = x.softmax(1), s.softmax(1)
    return 1 - 2 * (p * t).sum(1) / (p.square().sum(1) + t.square().sum(1))


def _contrastive(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    a, b = functional.normalize(x), functional.normalize(s)
    scores = a @ b.t() / 0.1
    labels = torch.arange(4)
    return functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.t(), labels)


FUNCTIONS: dict[str, Function] = {
    "softmax beside a safe one": _safe_softmax,
    "softmax without NaN": _nan_softmax,
    "attention and its weights": _attention,
    "layer norm by hand": _normalised,
    "gate": _gated,
    "guarded logarithm": _guarded_log,
    "focal loss": _focal,
    "dice loss": _dice,
    "contrastive loss": _contrastive,
    "log of a softmax": lambda x, s: x.softmax(1).log() * s,
    "entropy": lambda x, s: -(x.softmax(1) * x.log_softmax(1)).sum(1) * s[:, 0],
    "xlogy of softmaxes": lambda x, s: torch.xlogy(x.softmax(1), s.softmax(1)),
    "gelu beside its operand": lambda x, s: functional.gelu(x) * s + x,
    "mish times": lambda x, s: functional.mish(x) * functional.silu(s),
    "relu squared": lambda x, s: functional.relu(x).square() * s,
    "straight through": lambda x, s: (x.round() - x).detach() * s + x * s,
    "maxima twice": lambda x, s: x.max(1).values * s[:, 0] + x.max(0).values.sum(),
    "index_add": lambda x, s: torch.index_add(x, 1, TWICE, s),
    "index_add alpha": lambda x, s: torch.index_add(x, 1, TWICE, s, alpha=2.5),
    "Tensor.index_add": lambda x, s: x.index_add(-1, TWICE, s),
    "index_add_": lambda x, s: (x * 1).index_add_(1, TWICE, s),
    "scatter_add": lambda x, s: x.scatter_add(1, PLACES, s),
    "index_put, added": lambda x, s: x.index_put((TWICE % 4, MIXED % 5), s[0], accumulate=True),
    "index_put_, added": lambda x, s: (x * 1).index_put_(
        (TWICE % 4, MIXED % 5), s[0], accumulate=True
    ),
    "put, added": lambda x, s: x.put(TWICE, s[0], accumulate=True),
    "x[i, j] from behind": lambda x, s: x[BEHIND, MIXED] * s[0],
    "x[i] from behind": lambda x, s: x[BEHIND] * s[:1],
    "x[:, i] from behind": lambda x, s: x[:, BEHIND] * s,
    "take from behind": lambda x, s: x.take(BEHIND) * s[0],
    "x[mask]": lambda x, s: x[torch.ones(4, 5, dtype=torch.bool).tril()] * 2,
    "x[i,mask]": lambda x, s: (x[:, torch.tensor([True, False, True, True, False])]) * 2,
    "x[mask, i]": lambda x, s: (x[SOME, torch.tensor([0, -1, 2])]) * 2,
    "index_copy": lambda x, s: x.index_copy(1, torch.tensor([0, 2, 1, 4, 3]), s),
    "index_reduce": lambda x, s: x.index_reduce(1, TWICE, s, "amax"),
    "scatter_reduce sum": lambda x, s: x.scatter_reduce(1, PLACES, s, "sum"),
    "scatter_reduce mean": lambda x, s: x.scatter_reduce(1, PLACES, s, "mean"),
    "masked_scatter": lambda x, s: x.masked_scatter(x > 0, s),
    "roll": lambda x, s: x.roll(2, 1) * s,
    "written slices": _written_slices,
    "written places": _written_places,
    "max binary": torch.max,
    "unfold": lambda x, s: x.unfold(1, 3, 2).sum() + s.sum(),
    "gather": lambda x, s: x.gather(1, PLACES) * s,
    "repeat_interleave": lambda x, s: x.repeat_interleave(2, 1).sum(0) * 1,
    "renorm": lambda x, s: torch.renorm(x, 2, 0, 1.0) * s,
    "bucketize": lambda x, s: (
        x * torch.bucketize(x.detach(), torch.tensor([-0.5, 0.0, 0.5])).float()
    ),
    "logcumsumexp": lambda x, s: torch.logcumsumexp(x, 1) * s,
    "std": lambda x, s: x.std(1) * s[:, 0],
    "var without correction": lambda x, s: x.var(1, correction=0) * s[:, 0],
    "frac": lambda x, s: torch.frac(x) * s,
    "remainder neg": lambda x, s: torch.remainder(x, -0.7) * s,
    "fmod": lambda x, s: torch.fmod(x, 0.7) * s,
    "lerp": lambda x, s: torch.lerp(x, s, 0.3),
    "addcdiv": lambda x, s: torch.addcdiv(x, s, s.square() + 1, value=0.5),
    "norm, infinite": lambda x, s: x.norm(float("inf"), 1) * s[:, 0],
    "norm of a half": lambda x, s: (x.abs() + 0.1).norm(0.5, 1) * s[:, 0],
    "prod": lambda x, s: x.prod(1) * s[:, 0],
    "cumprod": lambda x, s: x.cumprod(1) * s,
    "hstack": lambda x, s: torch.hstack([x, s]) * 2,
    "tensordot": lambda x, s: torch.tensordot(x, s, ([0, 1], [0, 1])),
    "baddbmm": lambda x, s: torch.baddbmm(
        x[None], x[None] @ x.t()[None], s[None], beta=0.5, alpha=2
    ),
    "rot90": lambda x, s: torch.rot90(x, 1) * s.t(),
    "celu": lambda x, s: torch.celu(x, 0.3) * s,
    "elu": lambda x, s: functional.elu(x, 0.3) * s,
    "hardshrink": lambda x, s: functional.hardshrink(x, 0.3) * s,
    "softplus with a threshold": lambda x, s: functional.softplus(x, 3.0, 1.0) * s,
    "threshold": lambda x, s: functional.threshold(x, 0.3, -2.0) * s,
    "glu": lambda x, s: functional.glu(torch.cat([x, s], 1), 1),
    "rrelu": lambda x, s: functional.rrelu(x) * s,
    "normalize": lambda x, s: functional.normalize(x, dim=0) * s,
    "cosine_similarity": lambda x, s: torch.cosine_similarity(x, s, 1),
    "pairwise_distance": torch.pairwise_distance,
    "amax with ties": lambda x, s: (x.round()).amax(1) * s[:, 0],
    "median": lambda x, s: x.median(1).values * s[:, 0],
    "sort": lambda x, s: x.sort(1, descending=True).values * s,
    "topk small": lambda x, s: x.topk(2, 1, largest=False).values * s[:, :2],
    "where with a number": lambda x, s: torch.where(x > 0, x, 0.0) * s,
    "softmax of masked": lambda x, s: x.masked_fill(x < -1, -1e9).softmax(1) * s,
    "cumsum of a flip": lambda x, s: x.flip(1).cumsum(1) * s,
    "var_mean": lambda x, s: torch.var_mean(x, 1)[0] * s[:, 0],
    "aminmax": lambda x, s: x.aminmax(dim=1).max * s[:, 0],
    "narrow": lambda x, s: x.narrow(1, -3, 2) * 2,
    "select from behind": lambda x, s: x.select(1, -2) * s[:, 0],
    "pad, cut off": lambda x, s: functional.pad(x, (-1, 2)) * 1.5,
    "pad, circular": lambda x, s: functional.pad(x[None], (2, 1), mode="circular") * 1.5,
    "bilinear": lambda x, s: functional.interpolate(
        x[None, None], size=(7, 3), mode="bilinear", align_corners=False
    ),
    "nearest": lambda x, s: functional.interpolate(x[None, None], size=(7, 3), mode="nearest"),
    "nearest-exact": lambda x, s: functional.interpolate(
        x[None, None], size=(7, 3), mode="nearest-exact"
    ),
    "area": lambda x, s: functional.interpolate(x[None, None], size=(7, 3), mode="area"),
    "bicubic": lambda x, s: functional.interpolate(x[None, None], scale_factor=1.7, mode="bicubic"),
    "antialiased": lambda x, s: functional.interpolate(
        x[None, None], size=(2, 3), mode="bilinear", antialias=True
    ),
    "avg_pool2d, ceil": lambda x, s: functional.avg_pool2d(
        x[None, None], 2, stride=2, ceil_mode=True, padding=1, count_include_pad=False
    ),
    "max_pool2d, ceil": lambda x, s: functional.max_pool2d(
        x[None, None], 2, stride=3, ceil_mode=True
    ),
    "unfold of images": lambda x, s: functional.unfold(x[None, None], 2, stride=2, padding=1),
    "fold": lambda x, s: functional.fold(x.reshape(1, 4, 5)[:, :, :4], (4, 4), 2, stride=2),
    "kl_div": lambda x, s: functional.kl_div(x.log_softmax(1), s.softmax(1), reduction="batchmean"),
    "kl_div of logarithms": lambda x, s: functional.kl_div(
        x.log_softmax(1), s.log_softmax(1), log_target=True, reduction="sum"
    ),
    "smooth_l1": lambda x, s: functional.smooth_l1_loss(x, s, beta=0.3),
    "huber": lambda x, s: functional.huber_loss(x, s, delta=0.3),
    "bce with weights": lambda x, s: functional.binary_cross_entropy_with_logits(
        x, s.sigmoid(), pos_weight=torch.full((5,), 2.0)
    ),
    "cross entropy, smoothed": lambda x, s: (
        functional.cross_entropy(x, TWICE[:4], label_smoothing=0.1) * s.sum()
    ),
    "cross entropy, weighted": lambda x, s: functional.cross_entropy(
        x, TWICE[:4], weight=torch.arange(1.0, 6.0)
    ),
    "cross entropy of shares": lambda x, s: functional.cross_entropy(x, s.softmax(1)),
    "poisson_nll": lambda x, s: functional.poisson_nll_loss(x, s.abs() + 1, full=True),
    "gaussian_nll": lambda x, s: functional.gaussian_nll_loss(x, s, x.square() + 0.1),
    "hinge_embedding": lambda x, s: functional.hinge_embedding_loss(x, s.sign()),
    "triplet_margin": lambda x, s: functional.triplet_margin_loss(x, s, x.flip(0)),
    "multilabel_soft_margin": lambda x, s: functional.multilabel_soft_margin_loss(
        x, (s > 0).float()
    ),
    "margin_ranking": lambda x, s: functional.margin_ranking_loss(
        x, s, torch.sign(x.detach() - s.detach()), margin=0.1
    ),
    "cosine_embedding": lambda x, s: functional.cosine_embedding_loss(
        x, s, torch.tensor([1, -1, 1, -1])
    ),
    "group_norm": lambda x, s: functional.group_norm(x[None], 2),
    "instance_norm": lambda x, s: functional.instance_norm(x[None]),
    "local_response_norm": lambda x, s: functional.local_response_norm(x[None], 3),
    "rms_norm": lambda x, s: functional.rms_norm(x, (5,)),
    "einsum": lambda x, s: torch.einsum("ij,kj->ik", x, s),
    "einsum diag": lambda x, s: torch.einsum("ii->i", x[:, :4]) * s[0, :4],
    "outer": lambda x, s: torch.outer(x[0], s[0]),
    "cross": lambda x, s: torch.linalg.cross(x[:, :3], s[:, :3]),
    "cdist": torch.cdist,
    "logsumexp": lambda x, s: torch.logsumexp(x, (0, 1)) * s.sum(),
    "sinc": lambda x, s: torch.sinc(x) * s,
    "xlogy": lambda x, s: torch.xlogy(x, s.abs() + 0.1),
    "hypot": torch.hypot,
    "atan2": torch.atan2,
    "logit": lambda x, s: torch.logit(x.sigmoid(), 1e-3) * s,
    "trapezoid": torch.trapezoid,
    "diff": lambda x, s: torch.diff(x, dim=1) * 2,
    "movedim": lambda x, s: x[None].movedim(0, 2) * 1.5,
    "unflatten": lambda x, s: x[:, :4].unflatten(1, (2, 2)) * 1.5,
    "chunk uneven": lambda x, s: x.chunk(2, 1)[1] * 1.5,
    "split": lambda x, s: x.split([1, 4], 1)[1] * 1.5,
    "tensor_split": lambda x, s: x.tensor_split(3, 1)[2] * 1.5,
    "index_select": lambda x, s: x.index_select(1, TWICE) * s,
    "cartesian": lambda x, s: torch.cartesian_prod(x[0], s[0]),
    "block_diag": torch.block_diag,
    "tril": lambda x, s: x.tril(-1) * s,
    "clamp": lambda x, s: x.clamp(-0.5, 0.5) * s,
    "clamp by a tensor": lambda x, s: x.clamp(min=s),
    "sign": lambda x, s: x.sign() * s,
    "copysign": torch.copysign,
    "nan_to_num": lambda x, s: (
        torch.nan_to_num(x / (x > 0).float(), nan=1.0, posinf=2.0, neginf=3.0) * s
    ),
    "ldexp": lambda x, s: torch.ldexp(x, TWICE) * s,
    "logaddexp": torch.logaddexp,
    "addmv": lambda x, s: torch.addmv(x[:, 0], s, x[0], beta=0.5, alpha=2),
    "cov": lambda x, s: torch.cov(x) * 1.5,
    "corrcoef": lambda x, s: torch.corrcoef(x) * 1.5,
    "matrix_power": lambda x, s: torch.matrix_power(x[:, :4], 3),
    "det": lambda x, s: torch.det(x[:, :4]),
    "quantile": lambda x, s: torch.quantile(x, 0.3, dim=1) * 1.5,
    "nansum": lambda x, s: torch.nansum(x, 1) * 1.5,
    "kthvalue": lambda x, s: x.kthvalue(2, 1).values * 1.5,
}
"""Of two matrices of four rows of five numbers."""


class Of(torch.nn.Module):
    """A function of two arguments."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return self.function(x, s)


def names() -> list[str]:
    """One a function."""
    return list(FUNCTIONS)


def case(name: str) -> TorchCase:
    """The function at a random place."""
    torch.manual_seed(0)
    x, s = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    return TorchCase(
        Of(FUNCTIONS[name]), (x, s), exporters=("dynamo", "torchscript"), second_order=True,
        steps=0, timing=False,
    )  # fmt: skip
