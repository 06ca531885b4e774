"""Run AI-agent tasks so that they outlive their process, and what they do outside is done once and known."""

from outlast.app import Operations, Outlast, TaskHandle
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
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
    "Invalid",
    "NotSent",
    "OperationView",
    "Operations",
    "Outlast",
    "OutlastError",
    "Rejected",
    "Request",
    "ResultUnstorable",
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
