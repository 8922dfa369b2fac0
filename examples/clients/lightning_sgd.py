"""Lightning on Hocket (pip install lightning).

    python examples/clients/lightning_sgd.py

The backend is an argument of Lightning's strategies; the rest is an ordinary Lightning program.
"""

import sys

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A small network and its training step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def main(backend: str) -> None:
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    strategy = DDPStrategy(process_group_backend=backend)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=10, **quiet)
    trainer.fit(Regression(), data)
    if trainer.is_global_zero:
        print(f"{dist.get_backend()}, {trainer.world_size} ranks: loss {trainer.callback_metrics['loss']:.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
