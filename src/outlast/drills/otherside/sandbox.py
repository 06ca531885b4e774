"""Foreign code: it knows a URL and a token. ``python -m outlast.drills.otherside.sandbox '{"url": …}'``.

It freezes at once, and sends when it thaws: its last look at anything lies before the freeze.
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request

from outlast.drills.serving import say

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    headers = {"Outlast-Token": given["token"], "Content-Type": "application/json"}
    request = urllib.request.Request(given["url"], data=json.dumps(given["body"]).encode(), headers=headers)
    signal.raise_signal(signal.SIGSTOP)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            told = str(answer.status)
    except urllib.error.HTTPError as error:
        told = str(json.loads(error.read()).get("code"))
    say("answered", told=told)
