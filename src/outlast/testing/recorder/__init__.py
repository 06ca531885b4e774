"""The Recorder: a ticket service that can misbehave, and whose log is the judge of side effects.

Purpose. A test of effects needs another side that is real: its own process, its own file, sockets that can be
cut. ``Recorder`` starts one; ``Rule`` says how it misbehaves; ``Recorder.log`` says what arrived and what was
done.

    POST /tickets                     {"invoice", "amount", ...}: 201 and the ticket, with an id like R-55821
    GET  /tickets                     all, or those of ``?idempotency_key=`` and ``?invoice=``
    GET  /tickets/{id}                one
    POST /tickets/{id}/withdraw       once; 409 after that
    PUT  /tickets/{id}/note           {"text"}: the same twice is the same once

    GET  /_log, GET /_tickets         what arrived and what was done; not calls themselves
    POST /_plan                       {"rules": [...], "instead": bool}, rules as ``Rule.as_json`` writes them
    POST /_hold, POST /_release       a rule with a barrier; {"hold": name}
    POST /_settings, POST /_reset     see ``configure`` and ``reset``
    POST /_wait                       {"calls", "where", "timeout_s"}: answers when the log fits, else 408

Keys. ``Idempotency-Key``, bare or quoted: the first answer is replayed, other content is 422, a twin in
flight 409. A key is remembered when an effect is made, in the same transaction; ``configure`` switches this
off.

Log. A call is written when it arrives and again, with its effect, before it is answered. The effect, its key
and its mark in the log are one durable transaction. A row without an ending was open when the process was
killed.

Clock. The Recorder's own wall clock, in the log and for ``stale_ms`` and ``key_window_ms``.

Not covered. TLS and HTTP/2. Plan, settings and barriers live in memory and are gone after ``kill``.
"""

from outlast.testing.recorder.process import Call, Recorder, RecorderError
from outlast.testing.recorder.rules import Ending, Rule

__all__ = ["Call", "Ending", "Recorder", "RecorderError", "Rule"]
