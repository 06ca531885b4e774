"""Run AI-agent tasks so that they outlive their process, and what they do outside is done once and known."""

from outlast.app import Outlast, TaskHandle
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.engine.finding import Found
from outlast.engine.settings import WorkerSettings
from outlast.errors import (
    Forbidden,
    Invalid,
    NotSent,
    OutlastError,
    Rejected,
    ResultUnstorable,
    StepFailed,
    TaskCancelled,
    TaskFailed,
    ToolFailed,
    ToolRejected,
    Uncertain,
)
from outlast.ledger import Operations, OtherSide, Pauses, PlanView
from outlast.schedules import ScheduleRequest, Schedules, ScheduleView
from outlast.submitting import Request
from outlast.tools.call import ToolCall
from outlast.views import AttemptView, EventView, EvidenceView, OperationView, TaskView

__version__ = "0.1.0"

__all__ = [
    "AttemptView",
    "Backoff",
    "EventView",
    "EvidenceView",
    "Forbidden",
    "Found",
    "Invalid",
    "NotSent",
    "OperationView",
    "Operations",
    "OtherSide",
    "Outlast",
    "OutlastError",
    "Pauses",
    "PlanView",
    "Rejected",
    "Request",
    "ResultUnstorable",
    "ScheduleRequest",
    "ScheduleView",
    "Schedules",
    "StepFailed",
    "TaskCancelled",
    "TaskContext",
    "TaskFailed",
    "TaskHandle",
    "TaskView",
    "ToolCall",
    "ToolFailed",
    "ToolRejected",
    "Uncertain",
    "WorkerSettings",
]
