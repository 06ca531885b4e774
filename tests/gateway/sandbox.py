"""Foreign code: it knows a URL and a token, and nothing of Outlast but how this test hears of it.

``python -m tests.gateway.sandbox '{"url": …, "token": …}'`` freezes at once, and sends when it thaws.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    body = json.dumps({"invoice": "INV-1", "amount": "118.50"}).encode()
    headers = {"Outlast-Token": given["token"], "Content-Type": "application/json"}
    request = urllib.request.Request(given["url"], data=body, headers=headers)
    # Its last look at anything: it is frozen between here and the send.
    signal.raise_signal(signal.SIGSTOP)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    said = {"point": "answered", "status": status, "code": json.loads(text).get("code")}
    os.write(int(os.environ["OUTLAST_PROBE_MARK"]), json.dumps(said).encode() + b"\n")
