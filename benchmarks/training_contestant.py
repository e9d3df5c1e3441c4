"""One training of a small network, by one way of writing the loop, in a process of its own.

Every contestant gets the same data, network, optimizer and number of steps, one CPU thread, and says what its last 100
steps' mean loss was every 100 steps. The time runs from the end of the warm-up to the end of the last step, and is
printed as a line of JSON, with the CPU time of all threads. Imports, and what comes after the last step, are left out.
"""

import argparse
import itertools
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

logger = logging.getLogger("loop")

REPORT = 100  # steps
WARM_UP = 200  # steps

SIZES = {  # rows of data, batch size, widths
    "small": (2048, 64, (64, 128, 10)),
    "large": (4096, 256, (512, 1280, 1024, 10)),  # a step takes 20 ms and more
}


class Clock:
    """Reads the time when the warm-up ends and when the last step has."""

    def __init__(self, steps: int) -> None:
        self._last = steps
        self._done = 0
        self._began = self._cpu = self.seconds = self.cpu_seconds = 0.0

    def step(self) -> None:
        """Called after each step."""
        self._done += 1
        if self._done == WARM_UP:
            self._began, self._cpu = time.perf_counter(), time.process_time()
        elif self._done == self._last:
            self.seconds = time.perf_counter() - self._began
            self.cpu_seconds = time.process_time() - self._cpu


def dataset(size: str) -> torch.utils.data.TensorDataset:
    rows, _, widths = SIZES[size]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, widths[0], generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, : widths[-1]].argmax(1))


def network(size: str) -> torch.nn.Module:
    widths = SIZES[size][2]
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def loader(size: str) -> Any:
    return torch.utils.data.DataLoader(dataset(size), batch_size=SIZES[size][1], shuffle=True)


def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def forever(batches: Any) -> Any:
    while True:
        yield from batches


def report(step: int, losses: list[torch.Tensor]) -> None:
    logger.info("step %d: loss %.4f", step, torch.stack(losses).mean().item())
    losses.clear()


def raw(size: str, clock: Clock, steps: int) -> None:
    """What one writes by hand."""
    model = network(size)
    step_by = optimizer(model)
    losses: list[torch.Tensor] = []
    for step, batch in zip(range(1, steps + 1), forever(loader(size))):  # noqa: B905 - the loader has no end
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        step_by.step()
        step_by.zero_grad()
        losses.append(loss.detach())
        if step % REPORT == 0:
            report(step, losses)
        clock.step()


def determined(size: str, clock: Clock, steps: int) -> None:
    """A PyTorchTrial under the Trainer with its defaults: this project's or the official one, as installed."""
    from determined import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model(network(size))
            self.optimizer = context.wrap_optimizer(optimizer(self.model))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx:
                clock.step()  # the last batch's: whatever the loop does between two batches is counted
            loss = loss_of(self.model, batch)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> Any:
            return {"validation_loss": loss_of(self.model, batch)}

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(dataset(size), batch_size=SIZES[size][1], shuffle=True)

        def build_validation_data_loader(self) -> Any:
            rows = torch.utils.data.Subset(dataset(size), range(SIZES[size][1]))
            return pytorch.DataLoader(rows, batch_size=SIZES[size][1])

    with pytorch.init() as context:
        # One step more than is measured: the time of a step ends where the next one begins.
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(steps + 1))


def fabric(size: str, clock: Clock, steps: int) -> None:
    from lightning.fabric import Fabric

    lightning = Fabric(accelerator="cpu", devices=1)
    model = network(size)
    model, step_by = lightning.setup(model, optimizer(model))
    losses: list[torch.Tensor] = []
    batches = forever(lightning.setup_dataloaders(loader(size)))
    for step, batch in zip(range(1, steps + 1), batches):  # noqa: B905
        loss = loss_of(model, batch)
        lightning.backward(loss)
        step_by.step()
        step_by.zero_grad()
        losses.append(loss.detach())
        if step % REPORT == 0:
            report(step, losses)
        clock.step()


def accelerate(size: str, clock: Clock, steps: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(size)
    model, step_by, batches = accelerator.prepare(model, optimizer(model), loader(size))
    losses: list[torch.Tensor] = []
    for step, batch in zip(range(1, steps + 1), forever(batches)):  # noqa: B905
        loss = loss_of(model, batch)
        accelerator.backward(loss)
        step_by.step()
        step_by.zero_grad()
        losses.append(loss.detach())
        if step % REPORT == 0:
            report(step, losses)
        clock.step()


def lightning(size: str, clock: Clock, steps: int) -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(size)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.trainer.global_step:
                clock.step()
            loss = loss_of(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer(self.model)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps + 1,
        log_every_n_steps=REPORT,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(Path.cwd()),
    )
    trainer.fit(Module(), loader(size))


CONTESTANTS = {
    "raw": raw,
    "determined": determined,
    "fabric": fabric,
    "accelerate": accelerate,
    "lightning": lightning,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not os.environ.get("DET_TRIAL_ID"):
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    clock = Clock(options.steps)
    CONTESTANTS[options.contestant](options.size, clock, options.steps)
    steps = options.steps - WARM_UP
    found = {"steps_per_second": steps / clock.seconds, "cpu_ms": 1000 * clock.cpu_seconds / steps}
    print("MEASURED " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
