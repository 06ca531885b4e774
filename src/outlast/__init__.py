"""Run AI-agent tasks so that they outlive their process, and what they do outside is done once and known."""

from outlast.alone import Ledger
from outlast.app import Outlast
from outlast.approvals import Approvals, Rules
from outlast.connecting import Client, ClientTask
from outlast.core.acceptance import Accept, Reject
from outlast.core.approval import Allow, Ask, Deny
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.engine.finding import Found
from outlast.engine.outside import SessionEvent
from outlast.engine.registry import PolicyCall
from outlast.engine.settings import WorkerSettings
from outlast.errors import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalPending,
    BudgetExceeded,
    CallHeld,
    CallPending,
    ChildCancelled,
    ChildFailed,
    Forbidden,
    Invalid,
    NotSent,
    OutlastError,
    Rejected,
    ResultUnstorable,
    ScopeBusy,
    SessionTaken,
    StepFailed,
    TaskCancelled,
    TaskFailed,
    ToolFailed,
    ToolRejected,
    Uncertain,
    Unsettled,
    WaitTimeout,
)
from outlast.handle import TaskHandle
from outlast.ledger import Operations, OtherSide, Pauses, PlanView
from outlast.schedules import ScheduleRequest, Schedules, ScheduleView
from outlast.submitting import Request
from outlast.tools.call import ToolCall
from outlast.views import (
    ApprovalView,
    AttemptView,
    EventView,
    EvidencePage,
    EvidenceView,
    OperationView,
    RuleView,
    TaskView,
)

__version__ = "0.1.0"

__all__ = [
    "Accept",
    "Allow",
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalPending",
    "ApprovalView",
    "Approvals",
    "Ask",
    "AttemptView",
    "Backoff",
    "BudgetExceeded",
    "CallHeld",
    "CallPending",
    "ChildCancelled",
    "ChildFailed",
    "Client",
    "ClientTask",
    "Deny",
    "EventView",
    "EvidencePage",
    "EvidenceView",
    "Forbidden",
    "Found",
    "Invalid",
    "Ledger",
    "NotSent",
    "OperationView",
    "Operations",
    "OtherSide",
    "Outlast",
    "OutlastError",
    "Pauses",
    "PlanView",
    "PolicyCall",
    "Reject",
    "Rejected",
    "Request",
    "ResultUnstorable",
    "RuleView",
    "Rules",
    "ScheduleRequest",
    "ScheduleView",
    "Schedules",
    "ScopeBusy",
    "SessionEvent",
    "SessionTaken",
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
    "Unsettled",
    "WaitTimeout",
    "WorkerSettings",
]
