"""Small networks, one per family of architectures, with what is particular to each.

They need torch alone. Sizes are the smallest that keep every operator busy: two heads, a few
tokens, an image of a few patches.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, WORDS = 16, 2, 6, 20


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """From (batch, length, width) to (batch, heads, length, width of a head)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def together(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    return scores.softmax(-1) @ v


def causal(length: int) -> Tensor:
    return torch.full((length, length), -1e9).triu(1)


class RMSNorm(nn.Module):
    def __init__(self, width: int = WIDTH, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.rand(width) + 0.5), offset

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale * (self.offset + self.weight)


def rotate(x: Tensor, width: int) -> Tensor:
    """Rotary embedding of the first `width` features; the others pass."""
    steps = torch.arange(x.shape[-2], dtype=torch.float32)
    rates = 10.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.cat([steps[:, None] * rates] * 2, -1)
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, -1)
    turned = turned * angles.cos() + torch.cat([-second, first], -1) * angles.sin()
    return torch.cat([turned, rest], -1)


class Tokens(nn.Module):
    """Embedding, a body, and a head that shares the embedding's weight."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.body = body
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids)))


class Bert(nn.Module):
    """Normalisation after the residual, learned positions, a mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        keep = torch.arange(LENGTH) < LENGTH - 1
        bias = torch.zeros(LENGTH).masked_fill(~keep, torch.finfo(torch.float32).min)
        mixed = attend(heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), bias)
        x = self.norms[0](x + self.o(together(mixed)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class GPT2(nn.Module):
    """Queries, keys and values out of one product, causal, GELU by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(part) for part in self.qkv(self.norms[0](x)).split(WIDTH, -1))
        x = x + self.o(together(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Llama(nn.Module):
    """RMS normalisation, rotary embedding, shared keys and values, a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
        self.norms = nn.ModuleList(RMSNorm() for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 24),
            nn.Linear(WIDTH, 24),
            nn.Linear(24, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k = rotate(heads(self.q(y)), 8), rotate(heads(self.k(y), 1), 8)
        k, v = (t.expand(-1, HEADS, -1, -1) for t in (k, heads(self.v(y), 1)))
        x = x + self.o(together(attend(q, k, v, causal(LENGTH))))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Gemma(nn.Module):
    """Scaled embeddings, normalised queries and keys, scores and outputs capped by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.after = RMSNorm(offset=1.0), RMSNorm(offset=1.0)
        self.of_heads = RMSNorm(WIDTH // HEADS, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x * math.sqrt(WIDTH)
        y = self.norm(x)
        q, k = (self.of_heads(heads(project(y))) for project in (self.q, self.k))
        scores = torch.tanh(q @ k.transpose(-1, -2) / 5.0) * 5.0
        mixed = (scores + causal(LENGTH)).softmax(-1) @ heads(self.v(y))
        return 3.0 * torch.tanh((x + self.after(self.o(together(mixed)))) / 3.0)


class NeoX(nn.Module):
    """Partial rotary embedding; attention and feed-forward part in parallel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = heads(self.qkv(y)).chunk(3, -1)
        mixed = attend(rotate(q, 4), rotate(k, 4), v, causal(LENGTH))
        return x + self.o(together(mixed)) + self.down(F.gelu(self.up(y)))


class T5(nn.Module):
    """Scores that are not scaled, with a learned bias by logarithmic distance."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.bias, self.norm = nn.Embedding(4, HEADS), RMSNorm()

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1])
        apart = (steps[:, None] - steps).abs()
        far = 2 + (torch.log(apart.clamp(min=1).float() / 2) / math.log(2)).clamp(0, 1).long()
        bias = self.bias(torch.where(apart < 2, apart, far)).permute(2, 0, 1)[None]
        y = self.norm(x)
        q, k, v = heads(self.q(y)), heads(self.k(y)), heads(self.v(y))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return x + self.o(mixed.transpose(1, 2).contiguous().view(x.shape))


class Bart(nn.Module):
    """An encoder, and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cross = Bert(), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.encoder(x)
        shifted = F.pad(x, (0, 0, 1, -1))
        return self.norm(shifted + self.cross(shifted, encoded, encoded)[0])


class Deberta(nn.Module):
    """Scores between contents and relative positions, gathered by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.distances = nn.Embedding(2 * LENGTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        positions = heads(self.k(self.distances.weight)[None])
        steps = torch.arange(LENGTH)
        index = (steps[:, None] - steps + LENGTH).expand(x.shape[0], HEADS, -1, -1)
        to_position = torch.gather(q @ positions.transpose(-1, -2), -1, index)
        of_position = torch.gather(k @ positions.transpose(-1, -2), -1, index)
        return x + together(attend(q, k, v, to_position + of_position.transpose(-1, -2)))


class Mixtral(nn.Module):
    """Every token goes to the best two of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, WIDTH, 24) / 4)
        self.down = nn.Parameter(torch.randn(4, 24, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        inner = F.silu(torch.einsum("nd,nkdf->nkf", rows, self.up[chosen]))
        outer = torch.einsum("nkf,nkfd->nkd", inner, self.down[chosen])
        return x + (outer * weights[..., None]).sum(1).view(x.shape)


class Mamba(nn.Module):
    """A causal depthwise convolution and a state that is scanned step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.parameters_of = nn.Linear(WIDTH, 1 + 2 * 4)
        self.rates = nn.Parameter(torch.rand(WIDTH, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.conv(x.transpose(1, 2))[..., :LENGTH].transpose(1, 2))
        step, to_state, from_state = self.parameters_of(y).split([1, 4, 4], -1)
        step = F.softplus(step)[..., None]
        decay = torch.exp(-step * self.rates.exp())
        drive = step * y[..., None] * to_state[:, :, None]
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for t in range(LENGTH):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * from_state[:, t, None]).sum(-1))
        return x + torch.stack(outputs, 1)


class FNet(nn.Module):
    """The real part of a Fourier transform over tokens and features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.norm(x + torch.fft.fftn(x, dim=(1, 2)).real))


class Longformer(nn.Module):
    """Keys of a sliding window, cut out with overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q = heads(self.q(x))
        k, v = (F.pad(heads(p(x)), (0, 0, 1, 1)).unfold(2, 3, 1) for p in (self.k, self.v))
        weights = torch.einsum("bhld,bhldw->bhlw", q, k).softmax(-1)
        return x + together(torch.einsum("bhlw,bhldw->bhld", weights, v))


class Perceiver(nn.Module):
    """A few learned latents attend to the inputs, the inputs to the latents."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.write = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        latents = self.read(latents, x, x)[0]
        return self.write(x, latents, latents)[0]


class Mixer(nn.Module):
    """Products over tokens and over features in turn, one gated by the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.features = nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        value, gate = self.features(x).chunk(2, -1)
        return x + value * torch.sigmoid(gate)


class ViT(nn.Module):
    """Patches by a strided convolution, a token for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.mix, self.head = (
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head((x + self.mix(x, x, x)[0])[:, 0])


class Swin(nn.Module):
    """Attention in windows that are shifted by a roll, and patches that are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.merge = nn.Linear(8, 24), nn.Linear(32, 16, bias=False)
        self.table = nn.Parameter(torch.randn(9, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(x.permute(0, 2, 3, 1), (-1, -1), (1, 2))
        windows = x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).transpose(2, 3).reshape(-1, 4, 8)
        place = torch.stack([torch.arange(4) // 2, torch.arange(4) % 2])
        apart = place[:, :, None] - place[:, None] + 1
        bias = self.table[apart[0] * 3 + apart[1]].permute(2, 0, 1)
        q, k, v = (heads(part) for part in self.qkv(windows).chunk(3, -1))
        mixed = together(attend(q, k, v, bias)).view(x.shape[0], 4, 4, 2, 2, 8)
        x = torch.roll(mixed.transpose(2, 3).reshape(x.shape), (1, 1), (1, 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(torch.cat(corners, -1))


class ConvNeXt(nn.Module):
    """A depthwise convolution with a large kernel, features last, scaled by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = F.gelu(self.up(y))
        y = y + y * y.norm(dim=(1, 2), keepdim=True) / (
            1e-3 + y.norm(dim=(1, 2), keepdim=True).mean(-1, keepdim=True)
        )
        return x + (self.scale * self.down(y)).permute(0, 3, 1, 2)


class MobileNet(nn.Module):
    """Narrow, wide, narrow; weights of channels from their means; piecewise linear activations."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)
        self.conv, self.norm = (
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
            nn.BatchNorm2d(16),
        )
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.norm(self.conv(F.hardswish(self.up(x)))))
        scale = F.hardsigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.down(y * scale)


class ResNet(nn.Module):
    """Batch statistics, a shortcut with a stride, the largest of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 12, 3, 2, 1, bias=False)
        self.norm, self.short = nn.BatchNorm2d(12), nn.Conv2d(8, 12, 1, 2)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.elu(self.stem(x)), 3, 1, 1)
        x = F.softplus(self.norm(self.conv(x)) + self.short(x))
        return self.head(x.mean((2, 3)))


class Segmenter(nn.Module):
    """Features of two scales, the smaller one interpolated to the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3, 2, 1)
        self.fuse = nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        coarse = F.interpolate(self.coarse(x), size=(8, 8), mode="bilinear", align_corners=False)
        return self.fuse(F.silu(torch.cat([self.fine(x), coarse], 1)))


class Wav2Vec2(nn.Module):
    """Strided convolutions over samples, normalised in groups, positions by convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 8, 5, 3, bias=False), nn.GroupNorm(8, 8)
        self.second = nn.Conv1d(8, WIDTH, 3, 2)
        self.direction = nn.Parameter(torch.randn(WIDTH, WIDTH // 2, 4))
        self.length = nn.Parameter(torch.rand(1, 1, 4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        weight = self.direction * self.length / self.direction.norm(dim=(0, 1), keepdim=True)
        return x + F.gelu(F.conv1d(x, weight, padding=2, groups=2)[..., :-1])


class Clip(nn.Module):
    """Two towers, compared by the cosine of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.text = nn.Embedding(WORDS, WIDTH), GPT2()
        self.image, self.scale = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.tensor(1.0))

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        ends = ids.argmax(-1)
        text = self.text(self.words(ids))[torch.arange(ids.shape[0]), ends]
        image = self.image(pixels).mean((2, 3))
        text, image = (t / t.norm(dim=-1, keepdim=True) for t in (text, image))
        return self.scale.exp() * text @ image.T


def ids() -> Tensor:
    return torch.randint(WORDS, (2, LENGTH))


OF_TOKENS = (
    Bert, GPT2, Llama, Gemma, NeoX, T5, Bart, Deberta, Mixtral, Mamba, FNet, Longformer, Perceiver,
    Mixer,
)  # fmt: skip
OF_IMAGES = {
    ViT: (2, 3, 8, 8), Swin: (2, 8, 8, 8), ConvNeXt: (2, 8, 8, 8), MobileNet: (2, 8, 6, 6),
    ResNet: (2, 8, 8, 8), Segmenter: (2, 8, 8, 8), Wav2Vec2: (2, 1, 40),
}  # fmt: skip


def network(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network of this name, in eval mode, and inputs for it."""
    torch.manual_seed(0)
    for kind in OF_TOKENS:
        if kind.__name__ == name:
            return Tokens(kind()).eval(), (ids(),)
    for kind, shape in OF_IMAGES.items():
        if kind.__name__ == name:
            return kind().eval(), (torch.randn(shape),)
    return Clip().eval(), (ids(), torch.randn(2, 3, 8, 8))


FAMILIES = [kind.__name__ for kind in (*OF_TOKENS, *OF_IMAGES, Clip)]
