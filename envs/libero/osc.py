"""Operational-space control of a seven-joint arm as one compiled function.

Source: Khatib, "A unified approach for motion and force control of robot manipulators" (1987), with the gains and the
decoupled position and orientation of robosuite's OSC_POSE.
"""

from __future__ import annotations

import math

import numba
import numpy as np

_STIFFNESS = 150.0
_DAMPING = 2.0 * math.sqrt(_STIFFNESS)
_REST_STIFFNESS = 10.0
_REST_DAMPING = 2.0 * math.sqrt(_REST_STIFFNESS)
_JOINTS = 7


@numba.njit(cache=True, error_model="numpy")
def _solve(matrix: np.ndarray, right: np.ndarray) -> None:
    """Overwrite `right` [n, k] with the solution of a symmetric positive definite system; destroys `matrix` [n, n]."""
    n = matrix.shape[0]
    columns = right.shape[1]
    for i in range(n):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = math.sqrt(total) if i == j else total / matrix[j, j]
    for c in range(columns):
        for i in range(n):
            total = right[i, c]
            for k in range(i):
                total -= matrix[i, k] * right[k, c]
            right[i, c] = total / matrix[i, i]
        for i in range(n - 1, -1, -1):
            total = right[i, c]
            for k in range(i + 1, n):
                total -= matrix[k, i] * right[k, c]
            right[i, c] = total / matrix[i, i]


@numba.njit(cache=True, error_model="numpy")
def osc_torques(
    mass: np.ndarray,
    jacobian: np.ndarray,
    joints: np.ndarray,
    velocity: np.ndarray,
    bias: np.ndarray,
    dofs: np.ndarray,
    position: np.ndarray,
    rotation: np.ndarray,
    goal_position: np.ndarray,
    goal_rotation: np.ndarray,
    rest: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """Joint torques [7].

    mass [nv, nv], jacobian [6, nv] and bias [nv] are those of the whole scene, of which `dofs` [7] picks the arm;
    joints, velocity and rest [7] are the arm's; rotation and goal_rotation [3, 3] are the hand's.
    """
    inertia = np.empty((_JOINTS, _JOINTS))
    arm = np.empty((6, _JOINTS))
    for i in range(_JOINTS):
        for j in range(_JOINTS):
            inertia[i, j] = mass[dofs[i], dofs[j]]
        for j in range(6):
            arm[j, i] = jacobian[j, dofs[i]]
    # columns 0..5 become M^-1 J^T
    response = np.ascontiguousarray(arm.T)
    _solve(inertia.copy(), response)
    mobility = arm @ response  # J M^-1 J^T, 6 x 6

    wanted = np.empty((6, 1))
    for i in range(3):
        wanted[i, 0] = _STIFFNESS * (goal_position[i] - position[i])
    error = np.zeros(3)
    for column in range(3):
        for i in range(3):
            a, b = (i + 1) % 3, (i + 2) % 3
            error[i] += 0.5 * (
                rotation[a, column] * goal_rotation[b, column] - rotation[b, column] * goal_rotation[a, column]
            )
    for i in range(3):
        wanted[3 + i, 0] = _STIFFNESS * error[i]
    for i in range(6):
        speed = 0.0
        for j in range(_JOINTS):
            speed += arm[i, j] * velocity[j]
        wanted[i, 0] -= _DAMPING * speed
    linear, angular = wanted[:3].copy(), wanted[3:].copy()
    _solve(mobility[:3, :3].copy(), linear)
    _solve(mobility[3:, 3:].copy(), angular)

    pull = np.empty(_JOINTS)
    for i in range(_JOINTS):
        pull[i] = _REST_STIFFNESS * (rest[i] - joints[i]) - _REST_DAMPING * velocity[i]
    posture = inertia @ pull
    # null-space part: (I - J^T (J M^-1 J^T)^-1 J M^-1) posture
    through = np.empty((6, 1))
    for i in range(6):
        total = 0.0
        for j in range(_JOINTS):
            total += response[j, i] * posture[j]
        through[i, 0] = total
    _solve(mobility.copy(), through)

    torques = np.empty(_JOINTS)
    for i in range(_JOINTS):
        total = bias[dofs[i]] + posture[i]
        for j in range(3):
            total += arm[j, i] * (linear[j, 0] - through[j, 0]) + arm[3 + j, i] * (angular[j, 0] - through[3 + j, 0])
        torques[i] = min(max(total, low[i]), high[i])
    return torques


@numba.njit(cache=True, error_model="numpy")
def rotate(axis_angle: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """`rotation` [3, 3] turned by `axis_angle` [3] (radians, not zero) in the world's frame."""
    angle = math.sqrt(axis_angle[0] ** 2 + axis_angle[1] ** 2 + axis_angle[2] ** 2)
    x, y, z = axis_angle / angle
    c, s = math.cos(angle), math.sin(angle)
    d = 1.0 - c
    turn = np.array(
        [
            [c + x * x * d, x * y * d - z * s, x * z * d + y * s],
            [y * x * d + z * s, c + y * y * d, y * z * d - x * s],
            [z * x * d - y * s, z * y * d + x * s, c + z * z * d],
        ]
    )
    return turn @ np.ascontiguousarray(rotation)
