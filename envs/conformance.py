"""The conformance suite of the VectorEnv contract: what every adapter must get right, each rule by name.

It sees an environment from outside only, so it runs on adapters of other packages as well; a violated rule raises
`ConformanceError`. Rules that need an episode's end wait for one as long as the spec's time limit says.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from embodied.errors import CorrectnessAlarm, SimulatorError
from envs.api import Assignments, AutoReset, EnvConfig, Observation, StepResult, VectorEnv
from envs.conformance_runs import (
    CHUNK,
    CHUNKS,
    ConformanceError,
    Script,
    advance,
    difference,
    draw_actions,
    draw_assignments,
    make_script,
    require,
    require_equal,
    run,
)
from envs.conformance_shapes import check_render, check_shapes, check_spec

logger = logging.getLogger(__name__)

_MORE_STEPS = 1000  # how long to wait for an episode's end where there is no time limit


def check(target: VectorEnv | Callable[[], VectorEnv] | EnvConfig) -> None:
    """Run every rule that applies. Raises ConformanceError for the first that is violated.

    Args:
        target: an environment (is reset, and stays open); or a function that makes one, so that two can be compared;
            or a configuration, which is checked in this process and in worker processes, with both kinds of
            auto-reset.
    """
    if isinstance(target, EnvConfig):
        for factory in _variants(target):
            check(factory)
        return
    if isinstance(target, VectorEnv):
        _check_one(target)
        return
    with target() as env:
        _check_one(env)
        with target() as other:
            _check_instances(env, other)


def _variants(config: EnvConfig) -> Iterator[Callable[[], VectorEnv]]:
    from envs.registry import make

    for auto_reset in AutoReset:
        for processes in (0, min(2, config.num_envs // config.slots)):
            variant = dataclasses.replace(config, auto_reset=auto_reset.value, processes=processes)
            yield lambda variant=variant: make(variant)


def _check_one(env: VectorEnv) -> None:
    rules: list[Callable[[VectorEnv], None]] = [
        check_spec,
        check_shapes,
        check_render,
        _check_seeds,
        _check_chunks,
        _check_nan_guard,
    ]
    if env.spec.exact_reset:
        rules += [_check_exact_reset, _check_chunking, _check_independence, _check_partial_reset, _check_state]
    rules.append(_check_same_step if env.auto_reset is AutoReset.SAME_STEP else _check_disabled)
    for rule in rules:
        rule(env)
        logger.info("%s: %s holds", env.spec.id, rule.__name__.strip("_").removeprefix("check_"))


# -------------------------------------------------------------------- rules


def _check_seeds(env: VectorEnv) -> None:
    """Whether seeds make a difference is for people to judge: there are worlds in which nothing is drawn."""
    script, other = make_script(env, "seeds"), make_script(env, "other seeds")
    table = script.assignments.stack()
    table[:, 2] = other.assignments.seed
    first = [env.reset(script.assignments), *run(env, script)]
    second = [env.reset(Assignments.unstack(table)), *run(env, script)]
    if difference(_shown(first), _shown(second)) is None:
        logger.warning(
            "%s: other seeds gave the same episodes. If anything is to be drawn in them, reset must draw it from the "
            "assignment's seed.",
            env.spec.id,
        )


def _shown(results: list[Any]) -> list[Observation]:
    """The observations of a reset and of the chunks after it."""
    return [results[0], *(result.observation for chunk in results[1:] for result in chunk)]


def _check_chunks(env: VectorEnv) -> None:
    """Valid steps come first; nothing outside of them counts; ends and statistics agree with them."""
    rule = "chunk_validity"
    script = make_script(env, "chunks", chunks=12)
    env.reset(script.assignments)
    length = torch.zeros(env.num_envs, dtype=torch.int64)
    returns = torch.zeros(env.num_envs)
    for results in run(env, script):
        for slot, result in enumerate(results):
            rows = env.rows(slot)
            valid = result.valid
            require(bool((valid[:, :-1] >= valid[:, 1:]).all()), rule, "a valid step follows one that is not.")
            for name in ("reward", "terminated", "truncated", "success"):
                outside = getattr(result, name)[~valid]
                require(not outside.any(), rule, f"{name} is not 0 outside the valid steps.")
            length[rows] += valid.sum(1)
            for step in range(valid.shape[1]):
                returns[rows] += result.reward[:, step]
            # a row without valid steps finished earlier (auto-reset disabled): its statistics stay what they were
            require(torch.equal(result.episodes.length, length[rows]), rule, "episodes.length is not the valid steps.")
            require(torch.allclose(result.episodes.returns, returns[rows], rtol=1e-4, atol=1e-4), rule,
                     "episodes.returns is not the sum of rewards.")  # fmt: skip
            require(torch.equal(result.final_rows, result.ended.nonzero().flatten()), rule,
                     "final_rows are not the rows that ended.")  # fmt: skip
            require(not (~result.episodes.success_once & result.episodes.success_at_end).any(), rule,
                     "success_at_end without success_once.")  # fmt: skip
            require(env.spec.has_success or not result.success.any(), rule, "success without spec.has_success.")
            limit = env.spec.episode_steps
            require(not limit or int(length.max()) <= limit, rule, f"an episode is longer than {limit} steps.")
            if env.auto_reset is AutoReset.SAME_STEP:
                length[rows][result.ended] = 0
                returns[rows][result.ended] = 0


def _check_nan_guard(env: VectorEnv) -> None:
    rule = "nan_guard"
    script = make_script(env, "nan", chunks=1)
    env.reset(script.assignments)
    broken = script.actions[0].clone()
    broken[-1, -1, -1] = float("nan")
    slot = env.slots - 1
    rows = env.rows(slot)
    try:
        env.send(broken[rows], slot, script.following[0][rows])
        env.recv(slot)
    except SimulatorError:
        env.reset(script.assignments)
        advance(env, script.actions[0], script.following[0])
        return
    raise ConformanceError(rule, "an action that is not a number was executed instead of raising SimulatorError.")


def _check_exact_reset(env: VectorEnv) -> None:
    script, other = make_script(env, "exact"), make_script(env, "past")
    first = [env.reset(script.assignments), *run(env, script)]
    env.reset(other.assignments)
    run(env, other)
    second = [env.reset(script.assignments), *run(env, script)]
    require_equal(first, second, "exact_reset", "the same assignments and actions gave something else after another "
                   "past. Make reset depend on the assignment alone, or set spec.exact_reset=False")  # fmt: skip


def _check_chunking(env: VectorEnv) -> None:
    script = make_script(env, "chunking", chunks=1, steps=4)
    env.reset(script.assignments)
    whole = run(env, script)[0]
    env.reset(script.assignments)
    singles = [advance(env, script.actions[0][:, [j]], script.following[0]) for j in range(4)]
    for slot, result in enumerate(whole):
        running = torch.ones(env.slot_size, dtype=torch.bool)
        for step, results in enumerate(singles):
            single = results[slot]
            same = torch.equal(result.reward[running, step], single.reward[running, 0])
            require(same, "chunk_validity", f"step {step} of a chunk has another reward than the same single step.")
            running &= ~single.ended


def _check_independence(env: VectorEnv) -> None:
    if env.slot_size == 1:
        return
    script, other = make_script(env, "rows"), make_script(env, "neighbours")
    mine = torch.arange(env.num_envs) % env.slot_size == 0
    mixed = Script(
        _mix(mine, script.assignments, other.assignments),
        torch.where(mine[None, :, None, None], script.actions, other.actions),
        [_mix(mine, a, b) for a, b in zip(script.following, other.following, strict=True)],
    )
    env.reset(script.assignments)
    alone = run(env, script)
    env.reset(mixed.assignments)
    for left, right in zip(alone, run(env, mixed), strict=True):
        for a, b in zip(left, right, strict=True):
            pair = [(r.reward[0], r.valid[0], r.observation.select(slice(0, 1))) for r in (a, b)]
            require_equal(list(pair[0]), list(pair[1]), "independence", "what an environment does depends on what its "
                           "neighbours do")  # fmt: skip


def _mix(mask: torch.Tensor, left: Assignments, right: Assignments) -> Assignments:
    return Assignments.unstack(torch.where(mask[:, None], left.stack(), right.stack()))


def _check_partial_reset(env: VectorEnv) -> None:
    if env.num_envs == 1:
        return
    rule = "partial_reset"
    script, other = make_script(env, "partial", chunks=3), make_script(env, "replacement", chunks=3)
    mask = torch.arange(env.num_envs) % 2 == 0
    env.reset(script.assignments)
    advance(env, script.actions[0], script.following[0])
    before = env.reset(script.assignments, torch.zeros(env.num_envs, dtype=torch.bool))
    undisturbed = advance(env, script.actions[1], script.following[1])
    fresh = env.reset(other.assignments)
    env.reset(script.assignments)
    advance(env, script.actions[0], script.following[0])
    after = env.reset(other.assignments, mask)
    require_equal(after.select(~mask), before.select(~mask), rule, "a reset changed environments outside its mask")
    require_equal(
        after.select(mask), fresh.select(mask), rule, "a partial reset starts other episodes than a whole one"
    )
    disturbed = advance(env, script.actions[1], script.following[1])
    for slot, (a, b) in enumerate(zip(undisturbed, disturbed, strict=True)):
        outside = ~mask[env.rows(slot)]
        require_equal(a.reward[outside], b.reward[outside], rule, "environments outside the mask went on differently")
        require_equal(a.observation.select(outside), b.observation.select(outside), rule,
                       "environments outside the mask went on differently")  # fmt: skip


def _check_state(env: VectorEnv) -> None:
    script = make_script(env, "state")
    env.reset(script.assignments)
    half = CHUNKS // 2
    for chunk in range(half):
        latest = advance(env, script.actions[chunk], script.following[chunk])
    saved = env.state_dict()
    shown = [result.observation for result in latest]
    expected = run(env, script, half)
    env.reset(draw_assignments(env, "elsewhere"))
    _compare_loaded(env, saved, script, half, shown, expected)


def _compare_loaded(
    env: VectorEnv,
    saved: dict[str, Any],
    script: Script,
    begin: int,
    shown: list[Observation],
    expected: list[list[StepResult]],
) -> None:
    try:
        observation = env.load_state_dict(saved)
    except CorrectnessAlarm as alarm:
        raise ConformanceError("state", str(alarm)) from alarm
    loaded = [observation.select(env.rows(slot)) for slot in range(env.slots)]
    message = "loading a saved state does not continue to the bit"
    require_equal(shown, loaded, "state", message)
    require_equal(expected, run(env, script, begin), "state", message)


def _run_to_end(env: VectorEnv, name: str) -> tuple[Assignments, list[StepResult]]:
    """Chunk after chunk until one in which an episode ended: its next assignments and its results.

    Where no time limit promises an end, there may be none.
    """
    limit = env.spec.episode_steps or _MORE_STEPS
    for chunk in range(limit // CHUNK + 1):
        following = draw_assignments(env, name, "next", chunk)
        results = advance(env, draw_actions(env.spec, (env.num_envs, CHUNK), name, chunk), following)
        for result in results:
            _check_end(env, result)
        if any(result.ended.any() for result in results):
            return following, results
    require(not env.spec.episode_steps, "time_limit", f"no episode ended within spec.episode_steps={limit} steps.")
    logger.warning("%s: no episode ended in %d steps; rules about ends were not checked.", env.spec.id, limit)
    return following, results


def _check_end(env: VectorEnv, result: StepResult) -> None:
    """The step that ends an episode is its last valid one."""
    rule = "episode_end"
    last = (result.valid.sum(1) - 1).clamp(min=0)[:, None]
    flagged = (result.terminated | result.truncated).gather(1, last)[:, 0]
    require(
        bool(flagged[result.ended].all()), rule, "an episode ended without a terminated or truncated last valid step."
    )
    ended = result.ended
    partial = ~result.valid.all(1) & result.valid.any(1)
    require(not (partial & ~ended).any(), rule, "a chunk stopped counting although no episode ended.")


def _check_same_step(env: VectorEnv) -> None:
    rule = "auto_reset_same_step"
    env.reset(draw_assignments(env, "same_step"))
    following, results = _run_to_end(env, "same_step")
    ended = torch.cat([result.ended for result in results])
    shown = [result.observation for result in results]
    continued = advance(env, draw_actions(env.spec, (env.num_envs, 1), "continue"), following)
    for slot, result in enumerate(continued):
        rows = ended[env.rows(slot)]
        lengths = result.episodes.length[rows]
        require(bool((lengths == 1).all()), rule, "a new episode's first step is not its step 1.")
        table, wanted = result.episodes.assignments.stack()[rows], following[env.rows(slot)].stack()[rows]
        require(torch.equal(table, wanted), rule, "a new episode does not run its next_assignments.")
    if not env.spec.exact_reset:
        return
    fresh = env.reset(following)
    for slot, observation in enumerate(shown):
        rows = ended[env.rows(slot)]
        new = fresh.select(env.rows(slot)).select(rows)
        require_equal(
            observation.select(rows), new, rule, "after an end the observation is not the new episode's first"
        )


def _check_disabled(env: VectorEnv) -> None:
    rule = "auto_reset_disabled"
    script = draw_assignments(env, "disabled")
    env.reset(script)
    following, results = _run_to_end(env, "disabled")
    for result in results:
        if result.final_observation is not None:
            shown = result.observation.select(result.final_rows)
            require_equal(shown, result.final_observation, rule, "a finished environment does not show its end")
    finished = torch.cat([result.ended for result in results])
    later = advance(env, draw_actions(env.spec, (env.num_envs, 2), "after the end"), following)
    for slot, (old, new) in enumerate(zip(results, later, strict=True)):
        rows = finished[env.rows(slot)]
        require(not new.valid[rows].any(), rule, "a finished environment's steps are valid.")
        require(not new.ended[rows].any(), rule, "a finished episode ended once more.")
        require_equal(old.observation.select(rows), new.observation.select(rows), rule,
                       "a finished environment's observation changed")  # fmt: skip
        require_equal(old.episodes.length[rows], new.episodes.length[rows], rule, "a finished episode's length changed")
    env.reset(script, finished)
    again = advance(env, draw_actions(env.spec, (env.num_envs, 1), "again"), following)
    valid = torch.cat([result.valid[:, 0] for result in again])
    require(bool(valid[finished].all()), rule, "a reset environment's steps are not valid.")


def _check_instances(env: VectorEnv, other: VectorEnv) -> None:
    """Two environments of the same configuration do the same, and one continues the other's saved state."""
    script = make_script(env, "instances")
    results = []
    for instance in (env, other):
        first = instance.reset(script.assignments)
        results.append([first, *run(instance, script)])
    if env.spec.exact_reset:
        require_equal(results[0], results[1], "determinism", "two environments of one configuration differ")
        half = CHUNKS // 2
        env.reset(script.assignments)
        for chunk in range(half):
            latest = advance(env, script.actions[chunk], script.following[chunk])
        saved = env.state_dict()
        shown = [result.observation for result in latest]
        _compare_loaded(other, saved, script, half, shown, run(env, script, half))
