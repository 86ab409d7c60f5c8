"""Run reports: one self-contained HTML file that says what was trained, how it went, and how to do it again.

Everything is read from the run folder; nothing here is needed for, or waits on, a running training.
"""

from __future__ import annotations

from embodied.report.compare import build_comparison
from embodied.report.curve import success_curve_png
from embodied.report.evaluation import build_evaluation_page
from embodied.report.page import build_report
from embodied.report.reader import RunFolder, read_run

__all__ = ["RunFolder", "build_comparison", "build_evaluation_page", "build_report", "read_run", "success_curve_png"]
