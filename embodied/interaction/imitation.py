"""Fitting a policy to demonstrations, up to the last step or until held-out episodes say that it gets no better.

Which samples make up a step, and how their pictures are changed, follows from the run's seed and the step's number
alone, so a resumed run goes on to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

import torch
import yaml
from tensordict import TensorDict

from embodied.algorithms.statistics import Mean, Statistic
from embodied.datasets import EpisodeDataset, open_datasets
from embodied.datasets.dataset import demonstrated_numbers
from embodied.errors import CheckpointError, ConfigurationError, EmbodiedError, RefusedInput
from embodied.interaction.augmentation import augment
from embodied.interaction.imitation_data import prepare, split_episodes, whole_pictures
from embodied.interaction.imitation_recipe import RECIPE_FILE, ImitationRecipe
from embodied.interaction.recipe import resolve_device
from embodied.interaction.seeing import learn_to_see, unsaid
from embodied.learner.learner import Learner
from embodied.learner.sharding import recompute_activations
from embodied.random import derive_seed, generator
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.files import OF_DISKS, anchored
from embodied.runs.folder import RunFolder
from embodied.runs.lock import writing_alone
from embodied.runs.metrics import MetricsLog, read_metrics
from embodied.runs.progress import RunProgress, spoken_time
from embodied.runs.turns import CheckpointTurns
from embodied.runs.versions import versions
from embodied.system.termination import interruption
from policies import registry
from policies.api import Imitation, Policy
from policies.vla import statistics
from policies.vla.gripper import demonstrated
from policies.vla.options import VLAConfig

_PREPARED = "prepared"
_BEFORE = ".policy.before"
_SUMMARY_ROWS = 4096
_BETTER = {"loss": -1.0, "distance": -1.0, "accuracy": 1.0}
_MEASURES = ("loss", "accuracy", "distance")


class Imitator(Protocol):
    """What a policy needs to be fitted."""

    def imitation(self, inputs: TensorDict, actions: torch.Tensor, valid: torch.Tensor | None = None) -> Imitation:
        """See `policies.api.Imitation`."""


@dataclasses.dataclass
class Progress:
    """How far a fit is: what a checkpoint keeps beside parameters and optimiser.

    best: the validation of the policy that is exported, with its step; stale: validations since without a better one.
    """

    step: int = 0
    seconds: float = 0.0
    best: dict[str, float] = dataclasses.field(default_factory=dict)
    stale: int = 0


@dataclasses.dataclass(frozen=True)
class Fitted:
    """policy: folder of the exported policy. env: options of the environment the demonstrations are of, if known."""

    policy: Path
    reason: str
    env: dict[str, Any]
    progress: Progress


class Fit:
    """One fit under way."""

    def __init__(
        self,
        recipe: ImitationRecipe,
        dataset: EpisodeDataset,
        split: tuple[list[int], list[int]],
        folder: RunFolder,
        screen: RunProgress,
    ) -> None:
        self.recipe, self.folder, self.screen = recipe, folder, screen
        self.device = resolve_device(recipe.machine.device)
        self.store = CheckpointStore(folder.checkpoints, keep=recipe.checkpoint.keep)
        self.checkpoints = CheckpointTurns(recipe.checkpoint)
        self.progress = Progress()
        self._clock = time.monotonic()
        training, held_out = split
        self._dataset, self._training = dataset, training
        self.policy = _build(recipe, dataset, training)
        screen.say(f"preparing {len(training) + len(held_out)} episodes, {len(held_out)} of them held out ...")
        with whole_pictures(self.policy):
            self.training = prepare(self.policy, dataset, training, folder.path / _PREPARED / "training")
        self.held_out = None
        if held_out:
            self.held_out = prepare(self.policy, dataset, held_out, folder.path / _PREPARED / "held_out")
        self.policy.to(self.device)
        for rows in torch.arange(len(self.training)).split(_SUMMARY_ROWS):
            self.policy.absorb(self.policy.summary(self.training.inputs, rows))
        if recipe.learner.activations == "recompute":
            recompute_activations(self.policy.blocks())
        self.learner = Learner(self.policy.parameter_groups(), recipe.learner, self.device)
        self.batch_size = min(recipe.learner.global_batch, len(self.training))
        self.steps_per_epoch = _steps_per_epoch(recipe, len(self.training))
        self.total = self.steps_per_epoch * recipe.learner.epochs

    def look(self) -> None:
        """Let the vision side learn alone, see `seeing`."""
        options = self.recipe.seeing
        _, state, privileged = demonstrated_numbers(self._dataset, self._training)
        assert privileged is not None, "checked before the fit began"
        targets = unsaid(torch.from_numpy(state), torch.from_numpy(privileged))
        screen = self.screen
        screen.say(
            f"learning to look: {options.steps:,} steps of the vision side, {targets.shape[1]} numbers a picture"
        )

        begun = time.monotonic()

        def report(step: int, error: float) -> None:
            if step % 100 == 0:
                left = spoken_time((time.monotonic() - begun) / step * (options.steps - step))
                screen.say(
                    f"  look {step:,} of {options.steps:,}, {left} left: squared error {error:.3f} (1: knows nothing)"
                )

        learn_to_see(self.policy, self.training.inputs, targets, options, self.recipe.seed, report)

    # -- one step -----------------------------------------------------------------------------------------------

    def _rows(self, step: int) -> torch.Tensor:
        """int64 [B]: the samples of a step; every epoch goes through all of them in an order of its own."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.training), generator=generator(self.recipe.seed, "shuffle", epoch))
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def advance(self) -> dict[str, float]:
        """One optimiser step; returns its metrics."""
        recipe, step = self.recipe, self.progress.step
        inputs, labels, valid = self.training.batch(self._rows(step))
        if recipe.augment is not None:
            draws = generator(recipe.seed, "augment", step)
            inputs["pixels"] = augment(inputs["pixels"].to(self.device), recipe.augment, draws)
        pieces = torch.arange(len(labels)).split(recipe.learner.micro_batch or len(labels))
        total = valid.sum().item()

        def loss_of(rows: torch.Tensor) -> tuple[torch.Tensor, dict[str, Statistic]]:
            found = self._measure(inputs[rows], labels[rows], valid[rows])
            count = valid[rows].sum().item()
            return found.loss * (count / total), _weighted(found, count)

        factor = recipe.schedule.factor(step, self.total)
        for group in self.learner.optimizer.param_groups:
            group["lr"] = recipe.learner.lr * factor
        torch.manual_seed(derive_seed(recipe.seed, "step", step))  # dropout
        self.policy.train()
        merged, _ = self.learner.step(pieces, loss_of)
        self.policy.eval()
        self.progress.step += 1
        metrics = {f"sft/{name}": float(merged[name].value()) for name in _MEASURES}
        metrics["learner/gradient_norm"] = float(merged["learner/gradient_norm"].value())
        return metrics | {
            "learner/lr": recipe.learner.lr * factor,
            "sft/epoch": self.progress.step / self.steps_per_epoch,
        }

    def _measure(self, inputs: TensorDict, labels: torch.Tensor, valid: torch.Tensor) -> Imitation:
        options = {"spread": self.recipe.labels.spread} if self.recipe.labels.spread else {}
        return self.policy.imitation(inputs.to(self.device), labels, valid, **options)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Measures on the held-out episodes, as the policy acts: centre crops, eval mode."""
        assert self.held_out is not None
        size = self.recipe.learner.micro_batch or self.batch_size
        parts = []
        for rows in torch.arange(len(self.held_out)).split(size):
            inputs, labels, valid = self.held_out.batch(rows)
            found = self._measure(inputs, labels, valid)
            parts.append(_weighted(found, valid.sum().item()))
        return {
            f"held_out/{name}": float(parts[0][name].merge(*(p[name] for p in parts[1:])).value()) for name in _MEASURES
        }

    # -- the best so far, and stopping --------------------------------------------------------------------------

    def note(self, measured: dict[str, float]) -> None:
        """Export the policy if it is better than any before."""
        key = f"held_out/{self.recipe.validation.metric}"
        sign = _BETTER[self.recipe.validation.metric]
        progress = self.progress
        better = not progress.best or sign * measured[key] > sign * progress.best[key]
        if better:
            progress.best = measured | {"step": float(progress.step)}
            self.export()
        progress.stale = 0 if better else progress.stale + 1
        self.screen.say(
            f"  step {progress.step:,}: held-out accuracy {measured['held_out/accuracy']:.1%}, distance "
            f"{measured['held_out/distance']:.4f}, loss {measured['held_out/loss']:.3f}"
            + ("  <- best" if better else "")
        )

    def export(self) -> None:
        """Write the policy to the run's folder, in one step."""
        target, partial = self.exported, self.folder.path / ".policy.part"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            registry.save(self.policy, partial)
            if target.exists():
                before = self.folder.path / _BEFORE
                shutil.rmtree(before, ignore_errors=True)
                os.replace(target, before)  # whoever kills us between these two lines loses nothing: see `restore`
            os.replace(partial, target)
            shutil.rmtree(self.folder.path / _BEFORE, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"the policy could not be written to {target}: {error}. Free some space.") from error

    @property
    def exported(self) -> Path:
        """Where the policy is exported to."""
        return self.folder.path / "policy"

    def over(self) -> str | None:
        """Why the fit is over, if it is."""
        patience = self.recipe.validation.patience
        if patience is not None and self.progress.stale >= patience:
            return f"{patience} validations in a row found no better {self.recipe.validation.metric}"
        if self.progress.step >= self.total:
            return f"all {self.recipe.learner.epochs} epochs are done"
        return None

    # -- going on later -----------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Wall seconds this fit has taken, stops left out."""
        return self.progress.seconds + time.monotonic() - self._clock

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.policy.named_parameters() if p.requires_grad}

    def _samples(self) -> list[int]:
        return [len(self.training), 0 if self.held_out is None else len(self.held_out)]

    def save(self) -> None:
        """Write a checkpoint."""
        self.progress.seconds, self._clock = self.seconds(), time.monotonic()
        state = {
            "progress": dataclasses.asdict(self.progress),
            "parameters": {name: p.detach() for name, p in self._trained().items()},
            "learner": self.learner.state_dict(),
            "samples": self._samples(),
        }
        with self.checkpoints.writing(), self.store.writing(self.progress.step, state):
            pass

    def restore(self) -> None:
        """Go on from the latest checkpoint, if there is one."""
        if (self.folder.path / _BEFORE).is_dir() and not self.exported.is_dir():
            os.replace(self.folder.path / _BEFORE, self.exported)
        checkpoint = self.store.latest()
        if checkpoint is None:
            self.screen.say("there is no checkpoint yet; starting from the beginning")
            return
        state = checkpoint.state()
        if state.get("samples", self._samples()) != self._samples():
            raise ConfigurationError(
                f"{' + '.join(self.recipe.data.folders)} is not the dataset that this fit began with: it had "
                f"{state['samples']} steps to learn from and to hold out, and has {self._samples()} now. Put back what "
                "it was, or start another fit."
            )
        with torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(state["parameters"][name])
        self.learner.load_state_dict(state["learner"])
        self.progress = Progress(**state["progress"])
        self.screen.say(f"resumed after step {self.progress.step:,}")


def _weighted(found: Imitation, count: float) -> dict[str, Statistic]:
    """Averages over `count` valid actions that can be merged with those of other batches."""
    measures = {"loss": found.loss.detach(), "accuracy": found.accuracy, "distance": found.distance}
    return {
        name: Mean(torch.stack([value.double().cpu() * count, torch.tensor(float(count), dtype=torch.float64)]))
        for name, value in measures.items()
    }


def _steps_per_epoch(recipe: ImitationRecipe, samples: int) -> int:
    return -(-samples // max(1, min(recipe.learner.global_batch, samples)))


def _split(recipe: ImitationRecipe, dataset: EpisodeDataset) -> tuple[list[int], list[int]]:
    """The episodes to learn from and those held out. Raises ConfigurationError where there are too few."""
    count = len(dataset) if recipe.data.episodes is None else recipe.data.episodes
    if count > len(dataset):
        raise ConfigurationError(f"data.episodes is {count}, but {dataset.where} has {len(dataset)}.")
    training, held_out = split_episodes(count, recipe.data.held_out, recipe.seed)
    if recipe.validation.patience is not None and not held_out:
        raise ConfigurationError(
            f"validation.patience is {recipe.validation.patience}, but no episode is held out (data.held_out "
            f"{recipe.data.held_out:g} of {count}), so nothing tells when to stop; set validation.patience=null."
        )
    return training, held_out


def demonstrations(recipe: ImitationRecipe) -> tuple[EpisodeDataset, tuple[list[int], list[int]]]:
    """The recipe's dataset, and its episodes to learn from and to hold out. Raises ConfigurationError or AssetError for
    one that this fit cannot use; writes nothing."""
    dataset = open_datasets(recipe.data.folders)
    if recipe.seeing.steps and not dataset.spec.privileged_dim:
        raise ConfigurationError(
            "seeing.steps learns from what only the simulator knows, and these demonstrations have none of it "
            "(ManiSkill's with env.obs=rgb do); set seeing.steps=0."
        )
    return dataset, _split(recipe, dataset)


def _build(recipe: ImitationRecipe, dataset: EpisodeDataset, training: list[int]) -> Policy:
    """The policy with the dataset's interface and statistics. Raises ConfigurationError for one that cannot imitate."""
    interface, known = registry.interface_of(dataset.spec), None
    if isinstance(recipe.policy, VLAConfig):
        labels, state, privileged = demonstrated_numbers(dataset, training)
        labels = demonstrated(torch.from_numpy(labels), recipe.policy.gripper).numpy()
        proprio = state if state.shape[1] else None
        known = {dataset.spec.id: statistics.compute(labels, len(training), proprio, privileged=privileged)}
    policy = registry.build(recipe.policy, interface, seed=derive_seed(recipe.seed, "policy"), known=known)
    if not hasattr(policy, "imitation"):
        raise ConfigurationError(
            f"policy {recipe.policy.name} has no way to be fitted to actions (a method `imitation`, see "
            "policies.api.Imitation)."
        )
    return policy


def fit(recipe: ImitationRecipe, folder: RunFolder, *, command: str, resume: bool = False) -> Fitted:
    """Fit `recipe` in `folder`, from the start or from its latest checkpoint; returns when it is over.

    Raises KeyboardInterrupt on Ctrl-C and EmbodiedError on failure, both after result.json says so. What is refused
    before a first step leaves no folder behind.
    """
    with writing_alone(folder.path):
        try:
            return _fit(recipe, folder, command=command, resume=resume)
        except (ConfigurationError, RefusedInput):
            if not resume and not (folder.metrics.is_file() and read_metrics(folder.metrics)):
                folder.discard()
            raise


def _fit(recipe: ImitationRecipe, folder: RunFolder, *, command: str, resume: bool) -> Fitted:
    torch.set_num_threads(recipe.machine.threads)
    dataset, split = demonstrations(recipe)
    if not resume:
        values = anchored(recipe.as_dict(), ("data.folders", "policy.checkpoint"))
        (folder.path / RECIPE_FILE).write_text(yaml.safe_dump(values, sort_keys=False))
    result = {"recipe": recipe.name, "seed": recipe.seed, "command": command, "versions": versions()}
    lengths = dataset.lengths()
    total = recipe.learner.epochs * _steps_per_epoch(recipe, sum(lengths[index] for index in split[0]))
    status, reason, refused = "failed", "", False
    try:
        with RunProgress(folder.log, total=total, unit="steps") as screen:
            screen.say(f"run folder: {folder.path}")
            run = Fit(recipe, dataset, split, folder, screen)
            if resume:
                run.restore()
            reason = _loop(run, resume)
        status = "done"
        result |= {"policy": str(run.exported), "progress": dataclasses.asdict(run.progress)}
        return Fitted(run.exported, reason, dict(dataset.origin.get("env") or {}), run.progress)
    except KeyboardInterrupt:
        status, reason = "interrupted", interruption()
        raise
    except (ConfigurationError, RefusedInput) as error:
        reason, refused = str(error), True
        raise
    except EmbodiedError as error:
        reason = str(error)
        raise
    except OSError as error:
        if error.errno not in OF_DISKS:
            raise
        reason = f"{folder.path} cannot be written: {error}. Free space; `embodied sft --resume` goes on with it."
        raise EmbodiedError(reason) from error
    finally:
        shutil.rmtree(folder.path / _PREPARED, ignore_errors=True)
        if not (resume and refused):  # else nothing was done: what the folder says of the fit still holds
            with contextlib.suppress(OSError):  # a disk that is full must not hide why
                folder.write_result(result | {"status": status, "reason": reason})


def _loop(run: Fit, resumed: bool) -> str:
    """The order of events. Returns why it ended."""
    recipe, progress, screen = run.recipe, run.progress, run.screen
    parameters = sum(p.numel() for p in run.policy.parameters())
    screen.say(
        f"fitting {recipe.policy.name} ({parameters / 1e6:.1f} M parameters) to {len(run.training):,} steps: "
        f"{run.total:,} optimiser steps of {run.batch_size}"
    )
    every = recipe.validation.every or run.steps_per_epoch
    tensorboard = run.folder.tensorboard if recipe.logger.tensorboard else None
    log = MetricsLog(run.folder.metrics, tensorboard, after=progress.step if resumed else None)
    try:
        if recipe.seeing.steps and progress.step == 0:
            run.look()
        screen.count_from(progress.step)
        while (reason := run.over()) is None:
            metrics = run.advance()
            last = progress.step >= run.total
            if run.held_out is not None and (last or progress.step % every == 0):
                measured = run.validate()
                metrics |= measured
                run.note(measured)
            log.write(progress.step, progress.step * run.batch_size, run.seconds(), metrics)
            screen.update(progress.step, f"loss {metrics['sft/loss']:.3f}, accuracy {metrics['sft/accuracy']:.0%}")
            if run.checkpoints.due(progress.step) or run.over() is not None:
                run.save()
        if run.held_out is None:
            run.export()
    finally:
        log.close()
    screen.say(f"{progress.step:,} steps in {spoken_time(run.seconds())}")
    return reason
