import pytest

from embodied.errors import RefusedInput
from embodied.scheduler.planner.measured import measured_execution
from embodied.scheduler.planner.simulation import Execution, Span
from embodied.scheduler.trace import BUSY, LOAD, WAIT, write_spans

PREDICTED = Execution(
    3.0,
    [Span("act", "g", "cpu", 0, 1, 0.0, 2.0, "run"), Span("learn", "g", "cpu", 1, 1, 2.0, 3.0, "run")],
    {("g", "cpu"): 2},
)


def iteration(begin: float, act: float, learn: float) -> list[tuple[str, str, str, float, float]]:
    return [
        ("act[0]", "act", BUSY, begin, begin + act),
        ("learn[0]", "wait", WAIT, begin, begin + act),
        ("learn[0]", "load", LOAD, begin + act, begin + act + 0.1),
        ("learn[0]", "update", BUSY, begin + act + 0.1, begin + act + learn),
    ]


def test_the_median_iteration_of_a_trace_is_drawn_on_the_predicted_rows(tmp_path):
    trace = tmp_path / "trace.json"
    # the first one warms up, the last one is cut off
    write_spans([*iteration(5, 9, 1), *iteration(15, 2, 1), *iteration(18, 2.5, 1), *iteration(21.5, 1, 1)], trace)
    found = measured_execution(trace, PREDICTED, "learn")
    assert found.seconds == pytest.approx(3.5)
    assert [(s.stage, s.what, s.first) for s in found.spans] == [
        ("act", "run", 0),
        ("learn", "load", 1),
        ("learn", "run", 1),
    ]
    assert [round(s.begin, 3) for s in found.spans] == [0.0, 2.5, 2.6]
    assert found.busy("act") == pytest.approx(2.5)


def test_a_trace_of_one_iteration_or_none_is_refused(tmp_path):
    trace = tmp_path / "trace.json"
    write_spans(iteration(0, 1, 1), trace)
    with pytest.raises(RefusedInput, match="no two iterations of a stage 'learn'"):
        measured_execution(trace, PREDICTED, "learn")
    trace.write_text("[]")
    with pytest.raises(RefusedInput, match="not the trace of a run"):
        measured_execution(trace, PREDICTED, "learn")
