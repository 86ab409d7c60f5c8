"""Problems: read from files or made by procedural families, checked, and asked in an order that resumes."""

from reasoning.problems.config import ColumnsConfig, ProblemsConfig
from reasoning.problems.loading import Loaded, load_problems
from reasoning.problems.order import ProblemOrder
from reasoning.problems.record import Message, Problem, ask

__all__ = ["ColumnsConfig", "Loaded", "Message", "Problem", "ProblemOrder", "ProblemsConfig", "ask", "load_problems"]
