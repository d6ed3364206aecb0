"""The small real training of the drill: model, data and loss, shared with the plain twin."""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import dataclass

import torch
from torch import nn

from runtime.worker.data import StepSampler

CONTEXT = 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (each.view(shape).transpose(1, 2) for each in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        y: torch.Tensor = x + self.dropout(self.mlp(self.norm_mlp(x)))
        return y


class ByteGpt(nn.Module):
    """A byte-level GPT. Each forward changes the buffer `seen`, so that voids must restore it."""

    seen: torch.Tensor

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += tokens.shape[0]
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Batch:
    ids: list[int]
    tokens: torch.Tensor  # [batch, context + 1] int64


class TopicsText:
    """Bytes of the English that every CPython carries, cut into samples of context + 1."""

    def __init__(self, steps: int, batch_size: int, context: int, seed: int) -> None:
        text = "\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
        body = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        self.samples = body[: len(body) // (context + 1) * (context + 1)].view(-1, context + 1)
        self.steps = steps
        self.samples_per_rank = batch_size
        self.tokens_per_rank = batch_size * context
        self._sampler = StepSampler(len(self.samples), batch_size, seed)

    def batch(self, step: int, rank: int, world_size: int) -> Batch:
        ids = self._sampler.ids(step, rank, world_size)
        return Batch(ids, self.samples[ids].long())


@dataclass
class Training:
    model: ByteGpt
    optimizer: torch.optim.AdamW
    scheduler: torch.optim.lr_scheduler.LambdaLR
    data: TopicsText

    def loss(self, batch: Batch) -> torch.Tensor:
        logits = self.model(batch.tokens[:, :-1])
        return nn.functional.cross_entropy(logits.reshape(-1, 256), batch.tokens[:, 1:].reshape(-1))


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    context: int
    batch_size: int


DRILL = Size(width=128, layers=6, heads=4, context=CONTEXT, batch_size=2)
DEMO = Size(width=256, layers=4, heads=8, context=64, batch_size=4)
SIZES = {"drill": DRILL, "demo": DEMO}


def build(size: Size, steps: int, seed: int) -> Training:
    """The same training, to the bit, in every process that asks with the same arguments."""
    torch.manual_seed(seed)
    model = ByteGpt(size.width, size.layers, size.heads, size.context, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / 10) * (1.0 - 0.5 * step / max(steps, 1))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    data = TopicsText(steps, size.batch_size, size.context, seed)
    return Training(model, optimizer, scheduler, data)
