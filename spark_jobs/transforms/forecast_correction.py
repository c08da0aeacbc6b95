"""Corrects a forecast by its errors at earlier moments: a weighted ridge regression per step ahead. NumPy only.

The regression learns from one bucket what an extrapolation gets wrong there, for example how far a burst continues.
Moments that resemble the present one have most of the weight (local regression: Cleveland, 1979). The errors that
remain at earlier moments are corrected for having been fitted themselves (leave-one-out residuals), else they would be
too small for an interval.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RIDGE = 0.02  # share of each feature's weighted square that is added to the normal equations
_SMALLEST = 1e-9
_MOST_LEVERAGE = 0.7


class Correction(NamedTuple):
    """`added`: what to add to the present forecast (steps); `left`: errors that remain (moments x steps)."""

    added: Array
    left: Array


def corrected(errors: Array, features: Array, weights: Array, present: Array) -> Correction:
    """`errors`: moments x steps; `features`: moments x steps x features; `weights`: one per moment; `present`: features
    of the present moment, steps x features. Features beyond those of the earlier moments count as the greatest or
    smallest of these."""
    by_step = features.transpose(1, 0, 2)
    weighted = by_step * weights[None, :, None]
    normal = weighted.transpose(0, 2, 1) @ by_step
    diagonal = np.arange(features.shape[2])
    normal[:, diagonal, diagonal] *= 1 + RIDGE
    normal[:, diagonal, diagonal] += _SMALLEST
    inverse = np.linalg.inv(normal)
    fitted = np.einsum("sfg,smg,ms->sf", inverse, weighted, errors, optimize=True)
    leverage = ((weighted @ inverse) * by_step).sum(axis=2).T
    left = (errors - np.einsum("smf,sf->ms", by_step, fitted)) / (1 - np.minimum(leverage, _MOST_LEVERAGE))
    known = np.clip(present, features.min(axis=0), features.max(axis=0))
    return Correction((known * fitted).sum(axis=1), left)
