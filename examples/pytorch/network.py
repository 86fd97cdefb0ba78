"""A small convolutional network that learns to say which way the stripes of a picture run.

torch is imported where it is used, and so in the worker's child: CUDA cannot be used in a process whose parent had
begun to use it before the fork, and the worker forks its child when it has imported the tasks. Besides, neither the
worker's main process nor a sender needs torch then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

SIZE, BATCH = 16, 64


class Training:
    """The network, its optimizer, and how far it has come; on the GPU if there is one.

    The worker lets a task see its own GPU only, so `cuda` is the right one.
    """

    def __init__(self, checkpoint: Path | None = None) -> None:
        """Begins, or goes on where the checkpoint was written."""
        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.set_num_threads(
            1
        )  # on a CPU so small a network gains nothing by more, and they would wait for each other
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(16, 2),
        ).to(self.device)  # fmt: skip
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        self.loss_of = nn.CrossEntropyLoss()
        self.step, self.loss = 0, float("nan")
        if checkpoint:
            saved = torch.load(checkpoint, map_location=self.device, weights_only=True)
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.loss = saved["step"], saved["loss"]

    def advance(self) -> None:
        """One step of training."""
        pictures, directions = stripes(seed=1_000_000 + self.step, device=self.device)
        loss = self.loss_of(self.network(pictures), directions)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step, self.loss = self.step + 1, loss.item()

    def save(self, path: Path) -> None:
        """Writes all that is needed to go on."""
        import torch

        saved = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**saved, "step": self.step, "loss": self.loss}, path)

    def share_right(self, seed: int) -> float:
        """How many of some new pictures it gets right, 0 to 1."""
        import torch

        pictures, directions = stripes(seed, self.device)
        with torch.no_grad():
            answers = self.network(pictures).argmax(1)
        return (answers == directions).float().mean().item()


def stripes(seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Noisy pictures of stripes, upright (1) or level (0): the same for the same seed."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    directions = torch.randint(2, (BATCH,), generator=chance)
    waves = torch.sin(torch.arange(SIZE) * 1.5 + torch.rand(BATCH, 1, generator=chance) * 6.3)
    level = waves[:, None, :, None].expand(BATCH, 1, SIZE, SIZE)
    pictures = torch.where(directions.bool()[:, None, None, None], level.transpose(2, 3), level)
    noise = torch.randn(pictures.shape, generator=chance)
    return (pictures + noise).to(device), directions.to(device)
