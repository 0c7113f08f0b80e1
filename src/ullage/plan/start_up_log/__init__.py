"""An engine's start-up log read back: what it had, beside what the plan says."""

from ullage.plan.start_up_log.comparison import Comparison, compare
from ullage.plan.start_up_log.own_engine import compare_own
from ullage.plan.start_up_log.reader import StartUpLog, read_log

__all__ = ["Comparison", "StartUpLog", "compare", "compare_own", "read_log"]
