"""The run loop by itself, with a workload that counts beans: what it does is the same whatever is trained."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import shutil

import pytest

from embodied.commands import report, workloads
from embodied.errors import CheckpointError, ConfigurationError, EmbodiedError, RefusedInput, WorkerDied
from embodied.runs import turns
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.folder import RunFolder, create_run_folder
from embodied.runs.lock import writing_alone
from embodied.runs.metrics import MetricsLog, read_metrics
from embodied.runs.options import CheckpointConfig
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.follow import Following, Verdict
from embodied.training.loop import new_folder, started_with, train
from tests.training.toy_workload import BeanGoal, BeanRecipe, BeanRun, BeanWorkload, Every, Field


def recipe(**changes) -> BeanRecipe:
    return dataclasses.replace(BeanRecipe(), **changes)


def carried_out(workload: BeanWorkload, folder, **options):
    made = RunFolder(folder) if options.get("resume") else create_run_folder(folder.parent, "beans", folder)
    return train(workload, made, command="beans train beans", **options)


def curve(folder) -> list[tuple[int, int, dict[str, float]]]:
    return [
        (
            r["iteration"],
            r["env_steps"],
            {k: v for k, v in r["metrics"].items() if not k.startswith(("time/", "host/"))},
        )
        for r in read_metrics(RunFolder(folder).metrics)
    ]


@pytest.fixture
def whole(tmp_path):
    carried_out(BeanWorkload(), tmp_path / "whole")
    return curve(tmp_path / "whole")


def test_a_run_counts_evaluates_keeps_checkpoints_and_ends_at_its_limit(tmp_path):
    goal = BeanGoal(at_least=1000.0, beans=15)
    outcome = carried_out(BeanWorkload(recipe(goal=goal)), tmp_path / "run")
    assert outcome.status == "limit"
    assert (
        outcome.reason == "the limit of 15 beans was reached before the beans weighed at least 1000 in one evaluation"
    )
    result = json.loads(outcome.folder.result.read_text())
    assert (result["iterations"], result["beans"], result["command"]) == (5, 15, "beans train beans")
    assert result["before"] == {"eval/total": 0.0}
    assert result["best"] == result["after"] | {"iteration": 5.0, "beans": 15.0}
    steps = sorted(path.name for path in outcome.folder.checkpoints.iterdir())
    assert steps == [f"step_{i}" for i in range(1, 6)]
    found = curve(tmp_path / "run")
    assert [(iteration, beans) for iteration, beans, _ in found] == [(i, 3 * i) for i in range(6)]
    # evaluated before, every second time, and at the end
    assert [i for i, _, metrics in found if "eval/total" in metrics] == [0, 2, 4, 5]
    # totals by hand: 0+1+2 = 3; then 3 times half the total on top of 1+2+3
    assert [m["learner/total"] for _, _, m in found[1:3]] == [3.0, 3 + 3 * 1.5 + 6]
    assert (outcome.folder.checkpoints / "step_5" / "policy" / "total.txt").is_file()
    log = outcome.folder.log.read_text()
    assert log.count("warning: heavy") == 1  # the same one rests
    assert "bottleneck learner" in log


def test_the_goal_counts_evaluations_in_a_row(tmp_path):
    # after 2 iterations 13.5, after 4 far more
    goal = BeanGoal(at_least=14.0, in_a_row=2, beans=60)
    outcome = carried_out(BeanWorkload(recipe(goal=goal)), tmp_path / "run")
    assert (outcome.status, outcome.reason) == ("reached", "the beans weighed at least 14 in 2 evaluations in a row")
    assert outcome.result["iterations"] == 6


def test_a_resumed_run_has_the_metrics_of_one_that_never_stopped(tmp_path, whole):
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "stopped" / "checkpoints" / f"step_{step}")
    carried_out(BeanWorkload(), tmp_path / "stopped", resume=True)
    assert curve(tmp_path / "stopped") == whole


def test_a_dead_worker_costs_the_time_since_the_last_checkpoint_and_no_bit(tmp_path, whole, monkeypatch):
    deaths = iter([True, True])

    class Dying(BeanRun):
        async def learn(self, iteration):
            if iteration == 2 and next(deaths, False):
                raise EmbodiedError("nobody answers")
            return await super().learn(iteration)

    async def dead(self):
        return ["field[0]"]

    monkeypatch.setattr(InlineLauncher, "dead", dead)
    outcome = carried_out(BeanWorkload(run=Dying), tmp_path / "run")
    assert outcome.folder.log.read_text().count("starting all workers again") == 2
    assert curve(tmp_path / "run") == whole
    deaths = iter([True])
    none_left = dataclasses.replace(BeanRecipe().cluster, restarts=0)
    with pytest.raises(WorkerDied, match=r"field\[0\] died: nobody answers"):
        carried_out(BeanWorkload(recipe(cluster=none_left), run=Dying), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "result.json").read_text())["status"] == "failed"


def test_a_worker_that_dies_before_the_first_checkpoint_leaves_one_curve(tmp_path, whole, monkeypatch):
    deaths = iter([True])

    class Dying(BeanRun):
        async def learn(self, iteration):
            if next(deaths, False):
                raise EmbodiedError("nobody answers")
            return await super().learn(iteration)

    async def dead(self):
        return ["field[0]"]

    monkeypatch.setattr(InlineLauncher, "dead", dead)
    carried_out(BeanWorkload(run=Dying), tmp_path / "run")
    assert curve(tmp_path / "run") == whole


def test_the_limit_in_minutes_is_looked_at_after_every_iteration(tmp_path):
    class Slow(BeanRun):
        def seconds(self):
            return 61.0 * self.progress.iteration

    goal, seldom = BeanGoal(minutes=1, beans=60), CheckpointConfig(every=10, keep=2)
    made = recipe(goal=goal, evaluation=Every(every=10), checkpoint=seldom)
    outcome = carried_out(BeanWorkload(made, run=Slow), tmp_path / "run")
    assert (outcome.status, outcome.result["iterations"]) == ("limit", 1)
    assert "minutes was reached" in outcome.reason


def test_a_limit_that_passes_while_a_checkpoint_is_written_still_has_its_evaluation(tmp_path):
    class Slow(BeanRun):
        saved = 0

        async def save(self):
            made = await super().save()
            self.saved = self.progress.iteration
            return made

        def seconds(self):
            return 61.0 * min(self.saved, 1)

    goal = BeanGoal(minutes=1, beans=60)
    made = recipe(goal=goal, evaluation=Every(every=10))
    outcome = carried_out(BeanWorkload(made, run=Slow), tmp_path / "run")
    assert outcome.status == "limit"
    last = curve(tmp_path / "run")[-1][2]
    assert last["eval/total"] == last["learner/total"] == outcome.result["after"]["eval/total"]


def test_no_checkpoint_is_written_over_itself_at_the_end(tmp_path, monkeypatch):
    written, genuine = [], CheckpointStore.writing

    def noted(self, step, state):
        written.append(step)
        return genuine(self, step, state)

    monkeypatch.setattr(CheckpointStore, "writing", noted)
    carried_out(BeanWorkload(), tmp_path / "run")
    assert written == [1, 2, 3, 4]


def test_a_full_disk_in_the_middle_does_not_stop_training(tmp_path, whole, monkeypatch):
    class Full(BeanRun):
        async def save(self):
            if self.progress.iteration == 2:
                raise CheckpointError("no space is left.")
            return await super().save()

    outcome = carried_out(BeanWorkload(run=Full), tmp_path / "run")
    assert "no space is left. Training goes on." in outcome.folder.log.read_text()
    assert curve(tmp_path / "run") == whole


def test_an_interrupted_run_says_so_and_goes_on(tmp_path, whole):
    class Interrupted(BeanRun):
        async def collect(self, iteration):
            if iteration == 3:
                raise KeyboardInterrupt
            await asyncio.sleep(0.1)  # result.json counts tenths of seconds
            return await super().collect(iteration)

    with pytest.raises(KeyboardInterrupt):
        carried_out(BeanWorkload(run=Interrupted), tmp_path / "run")
    result = RunFolder(tmp_path / "run").read_result()
    assert (result["status"], result["iterations"]) == ("interrupted", 3)
    assert result["seconds"] > 0
    assert started_with(BeanWorkload(), RunFolder(tmp_path / "run")) == "beans train beans"
    carried_out(BeanWorkload(), tmp_path / "run", resume=True)
    assert curve(tmp_path / "run") == whole


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_clock_brings_checkpoints_where_nothing_is_under_way_then(tmp_path, monkeypatch, whole, ahead):
    monkeypatch.setattr(turns, "_LARGEST_SHARE", float("inf"))  # iterations take less time than writing here
    monkeypatch.setattr(BeanWorkload, "ahead", ahead)
    by_clock = CheckpointConfig(every=1000, minutes=1e-9, keep=20)
    outcome = carried_out(BeanWorkload(recipe(checkpoint=by_clock)), tmp_path / "run")
    steps = sorted(path.name for path in outcome.folder.checkpoints.iterdir())
    assert steps == (["step_4"] if ahead else [f"step_{i}" for i in range(1, 5)])
    if not ahead:
        assert curve(tmp_path / "run") == whole


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(tmp_path, whole):
    class Interrupted(BeanRun):
        async def collect(self, iteration):
            if iteration == 2:
                raise KeyboardInterrupt
            return await super().collect(iteration)

    late = recipe(checkpoint=CheckpointConfig(every=50))
    with pytest.raises(KeyboardInterrupt):
        carried_out(BeanWorkload(late, run=Interrupted), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.plan.unlink()  # it may have been stopped before there was one
    assert started_with(BeanWorkload(late), folder) == "beans train beans"
    carried_out(BeanWorkload(late), tmp_path / "run", resume=True)
    assert "there is no checkpoint yet; starting from the beginning" in folder.log.read_text()
    assert curve(tmp_path / "run") == whole


def test_a_run_that_is_killed_is_known_by_its_command(tmp_path):
    class Killed(BaseException):
        """Nothing is written at its end."""

    class Run(BeanRun):
        async def collect(self, iteration):
            if iteration == 2:
                raise Killed
            return await super().collect(iteration)

    with pytest.raises(Killed):
        carried_out(BeanWorkload(run=Run), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert not folder.result.exists()
    assert started_with(BeanWorkload(), folder) == "beans train beans"
    assert "beans train beans" in report.write(folder.path).read_text()


@pytest.mark.parametrize(("refused_in", "left"), [("start", False), ("learn", False), ("evaluate", True)])
def test_what_is_refused_before_it_did_anything_leaves_no_folder(tmp_path, monkeypatch, refused_in, left):
    async def refuse(self, *_):
        raise ConfigurationError("cannot be")

    folder = create_run_folder(tmp_path, "beans")
    run = type("Refused", (BeanRun,), {})
    if refused_in == "evaluate":  # the second one, after two iterations

        async def evaluate(self):
            if self.progress.iteration:
                raise ConfigurationError("cannot be")
            return await BeanRun.evaluate(self)

        monkeypatch.setattr(run, "evaluate", evaluate, raising=False)
    else:
        monkeypatch.setattr(run, refused_in, refuse, raising=False)
    with pytest.raises(ConfigurationError, match="cannot be"):
        train(BeanWorkload(recipe(checkpoint=CheckpointConfig(every=50)), run=run), folder, command="beans")
    assert folder.path.exists() == left
    assert (tmp_path / "beans" / "latest").is_symlink() == left


def test_what_was_given_from_python_must_be_given_again(tmp_path):
    workload = BeanWorkload()
    workload.given = frozenset({"soil"})
    folder = carried_out(workload, tmp_path / "run").folder
    assert started_with(workload, folder)
    with pytest.raises(RefusedInput, match=r"had soil of its own; go on with beans\.resume"):
        started_with(BeanWorkload(), folder)


def test_a_run_that_cannot_be_leaves_no_folder(tmp_path):
    wrong = dataclasses.replace(BeanRecipe().cluster, workers={"meadow": 2})
    planned = recipe(cluster=wrong, run=dataclasses.replace(BeanRecipe().run, folder=str(tmp_path / "run")))
    with pytest.raises(RefusedInput, match=r"'meadow' that this recipe lacks.*field, learner"):
        new_folder(BeanWorkload(planned))
    assert not (tmp_path / "run").exists()


def test_a_plan_is_measured_for_once_followed_and_changed_on_the_way(tmp_path, monkeypatch, whole):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    auto = recipe(cluster=dataclasses.replace(BeanRecipe().cluster, plan="auto"))
    workload = BeanWorkload(auto)
    outcome = carried_out(workload, tmp_path / "first")
    assert workload.measured == 1
    assert curve(tmp_path / "first") == whole
    records = read_metrics(outcome.folder.metrics)[1:]
    assert all(r["metrics"]["time/predicted_s"] == pytest.approx(6e-3) for r in records)
    assert outcome.folder.profile.is_file()

    genuine = Following.note

    def drifted(self, spent, seconds, left):
        genuine(self, spent, seconds, left)
        if left == 2 and not self.plan.why.startswith("another"):
            return Verdict({}, dataclasses.replace(self.plan, why="another, for once"), "the field is slow")
        return None

    monkeypatch.setattr(Following, "note", drifted)
    outcome = carried_out(workload, tmp_path / "second")
    assert workload.measured == 1  # kept
    log = outcome.folder.log.read_text()
    assert "plan: the field is slow" in log
    assert "resumed after iteration 2 (6 beans)" in log
    assert Plan.load(outcome.folder.plan).why == "another, for once"
    assert curve(tmp_path / "second") == whole


class Keeping(Field):
    """Its state cannot be another number of workers'."""

    def state_dict(self):
        return {"kept": 1}


class KeepingWorkload(BeanWorkload):
    field = Keeping


def test_a_plan_that_the_workers_cannot_go_on_under_is_not_switched_to(tmp_path, monkeypatch, whole):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def drifted(self, spent, seconds, left):
        two = dataclasses.replace(self.plan.stages["field"], devices=("cpu:0", "cpu:1"))
        other = dataclasses.replace(self.plan, launcher="ray", stages={**self.plan.stages, "field": two})
        return Verdict({}, other, "the field is slow") if left == 2 else None

    monkeypatch.setattr(Following, "note", drifted)
    auto = recipe(cluster=dataclasses.replace(BeanRecipe().cluster, plan="auto"))
    outcome = carried_out(KeepingWorkload(auto), tmp_path / "run")
    assert "stays with the old one: 2 Keeping(s) cannot take over the state of 1" in outcome.folder.log.read_text()
    assert len(Plan.load(outcome.folder.plan).stages["field"].devices) == 1
    assert curve(tmp_path / "run") == whole


def test_a_full_disk_says_so_and_what_to_do(tmp_path, monkeypatch, whole):
    genuine = MetricsLog.write

    def full(self, iteration, *rest):
        if iteration == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(self._path))
        return genuine(self, iteration, *rest)

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(EmbodiedError, match=r"No space left.*goes on with: beans resume"):
        carried_out(BeanWorkload(), tmp_path / "run")
    monkeypatch.setattr(MetricsLog, "write", genuine)
    result = RunFolder(tmp_path / "run").read_result()
    assert result["status"] == "failed"
    assert "No space left" in result["reason"]
    carried_out(BeanWorkload(), tmp_path / "run", resume=True)
    assert curve(tmp_path / "run") == whole


def test_a_resume_that_is_stopped_before_it_stands_leaves_what_was_known(tmp_path, monkeypatch):
    carried_out(BeanWorkload(recipe(goal=BeanGoal(beans=6))), tmp_path / "run")
    before = RunFolder(tmp_path / "run").read_result()

    async def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(BeanRun, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carried_out(BeanWorkload(), tmp_path / "run", resume=True)
    after = RunFolder(tmp_path / "run").read_result()
    assert after["status"] == "interrupted"
    same = set(before) - {"status", "reason"}
    assert {key: after[key] for key in same} == {key: before[key] for key in same}


def test_two_processes_cannot_train_in_one_folder(tmp_path):
    carried_out(BeanWorkload(recipe(goal=BeanGoal(beans=6))), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with writing_alone(tmp_path / "run"), pytest.raises(RefusedInput, match="another process is writing"):
        carried_out(BeanWorkload(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_a_full_disk_before_a_switch_leaves_the_run_under_its_plan(tmp_path, monkeypatch, whole):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Full(BeanRun):
        async def save(self):
            if self.progress.iteration == 2:
                raise CheckpointError("no space is left.")
            return await super().save()

    def drifted(self, spent, seconds, left):
        return Verdict({}, dataclasses.replace(self.plan, why="another"), "the field is slow") if left == 2 else None

    monkeypatch.setattr(Following, "note", drifted)
    auto = recipe(cluster=dataclasses.replace(BeanRecipe().cluster, plan="auto"))
    outcome = carried_out(BeanWorkload(auto, run=Full), tmp_path / "run")
    assert "no space is left. Training goes on under the old plan." in outcome.folder.log.read_text()
    assert curve(tmp_path / "run") == whole


def test_the_plan_of_the_folder_is_one_that_the_run_could_go_on_with(tmp_path, monkeypatch):
    carried_out(BeanWorkload(recipe(goal=BeanGoal(beans=6))), tmp_path / "run")
    before = RunFolder(tmp_path / "run").plan.read_text()

    async def refused(self, checkpoint):
        self.folder.plan.unlink()  # whatever was there at the start is not written again
        raise CheckpointError("not under this plan")

    monkeypatch.setattr(BeanRun, "restore", refused)
    with pytest.raises(CheckpointError):
        carried_out(BeanWorkload(), tmp_path / "run", resume=True)
    assert before
    assert not RunFolder(tmp_path / "run").plan.exists()


def test_a_command_says_where_everything_is_and_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "write", lambda folder: folder / "report.html")
    folder = create_run_folder(tmp_path, "beans", tmp_path / "run")
    workload = BeanWorkload(recipe(evaluation=Every(every=1)))
    assert workloads.carry_out(workload, folder, command="beans train beans", resume=False) == 0
    said = capsys.readouterr().out.split("harvested\n")[1]
    assert said.split("\n") == [
        "",
        "Stopped: the limit of 12 beans was reached.",
        "Beans are counted.",
        "  report     run/report.html",
        "  trace      run/trace.json",
        "next:",
        "  eat beans",
        "",
    ]


def test_a_stop_while_the_disk_is_full_is_a_stop(tmp_path, monkeypatch):
    def full(self, result):
        raise OSError(errno.ENOSPC, "No space left on device", str(self.result))

    async def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_result", full)
    monkeypatch.setattr(BeanRun, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carried_out(BeanWorkload(), tmp_path / "run")
