"""A process that joins others, of which process WHO then leaves in the way WAY; nothing is measured.

`python -m tests.benchmarks.party HOST:PORT PROCESSES INDEX LOST_AFTER CASE_TIMEOUT WHO WAY`
"""

import os
import signal
import sys
import time
from argparse import Namespace

from benchmarks.cluster import processes

where, count, index, lost_after, case_timeout, who, way = sys.argv[1:]
processes.join(
    Namespace(
        distributed=False,
        coordinator=where,
        processes=int(count),
        process_id=int(index),
        join_timeout=60,
        lost_after=float(lost_after),
        case_timeout=float(case_timeout),
    )
)
processes.run_in_all(lambda: None)
if index == who:
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "leaves":
        sys.exit(3)
    if way == "sleeps":
        time.sleep(600)
try:
    processes.run_in_all(lambda: None)
except processes.ProcessLost as error:
    processes.end(in_order=False, why=str(error))
    raise
processes.end(in_order=True)
