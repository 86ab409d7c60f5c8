"""From measurements to a time model: least squares of the relative error over non-negative coefficients.

The fit tries every subset of the four terms that the measurements can tell apart and keeps the one that best predicts
left-out measurements, so a stage measured on one device gets no term for devices. The error it states is that of the
left-out predictions and of the measurements themselves, not of the fitted points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from embodied.errors import ConfigurationError
from embodied.scheduler.planner.profile import Measurement, TimeModel

TERMS = ("fixed", "per_item", "per_item_squared", "per_doubling")


def features(items: np.ndarray, replicas: np.ndarray) -> np.ndarray:
    """[rows, 4]: the factors of the four coefficients."""
    share = np.ceil(items / replicas)
    return np.stack([np.ones_like(share), share, share**2, np.log2(replicas)], axis=-1)


def fit_time(measurements: Sequence[Measurement], devices_per_replica: int = 1) -> TimeModel:
    """The model that predicts `measurements` best. Raises ConfigurationError without at least one positive timing."""
    if not measurements or any(m.seconds <= 0 for m in measurements):
        raise ConfigurationError(
            f"a time model needs measurements of more than 0 seconds; got {[m.seconds for m in measurements]}"
        )
    items = np.array([m.items for m in measurements], float)
    replicas = np.maximum(1, np.array([m.devices for m in measurements]) // devices_per_replica).astype(float)
    seconds = np.array([m.seconds for m in measurements])
    factors = features(items, replicas) / seconds[:, None]  # so that a residual of 0.1 means 10 %
    best: tuple[float, tuple[int, ...], np.ndarray] | None = None
    for size in range(1, len(TERMS) + 1):
        for terms in itertools.combinations(range(len(TERMS)), size):
            chosen = factors[:, terms]
            if np.linalg.matrix_rank(chosen, tol=1e-6 * np.abs(chosen).max()) < size or (
                size > 1 and size == len(seconds)
            ):
                continue
            solution = np.linalg.lstsq(chosen, np.ones(len(seconds)), rcond=None)[0]
            # a non-negative optimum has its zero terms in a smaller subset: an infeasible one is not lost by skipping
            if (solution < 0).any():
                continue
            error = _left_out_error(chosen)
            # fewer terms come first: a further one has to earn its place by a tenth of the error
            if best is None or error < 0.9 * best[0] - 1e-9:
                best = (error, terms, solution)
    if best is None:  # reached only if every single-term fit were negative, which positive timings exclude
        raise ConfigurationError("no time model fits the measurements; measure at least one more size")
    error, terms, solution = best
    noise = float(np.sqrt(np.mean([(m.deviation / m.seconds) ** 2 / m.repeats for m in measurements])))
    coefficients = {TERMS[term]: float(value) for term, value in zip(terms, solution, strict=True)}
    return TimeModel(**coefficients, error=float(np.hypot(error, noise)))


def _left_out_error(factors: np.ndarray) -> float:
    """Relative root mean square error of predicting each row from the others (PRESS, from the hat matrix)."""
    rows = len(factors)
    if rows == 1:
        return 0.0
    inverse = np.linalg.pinv(factors.T @ factors)
    leverage = np.einsum("ij,jk,ik->i", factors, inverse, factors)
    residual = 1.0 - factors @ (inverse @ factors.sum(axis=0))
    # a point that alone determines a coefficient has leverage 1: its own prediction says nothing, its residual is 0
    return float(np.sqrt(np.mean((residual / np.maximum(1.0 - leverage, 1e-3)) ** 2)))
