"""A process that works on a study: `work_on.py STORAGE TRIALS SEED`; says when it has begun, then what it counted."""

import json
import sys
import time

from toy import seconds, variants

from kernsearch.search import Search

storage, trials, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Search("toy", variants(), storage=storage, trials=trials, seed=seed, searcher="random") as search:
    print(json.dumps({"resumed": search.resumed}), flush=True)
    while (ask := search.ask()) is not None:
        print(json.dumps({"ask": ask.number, "config": {"variant": ask.variant, **ask.config}}), flush=True)
        time.sleep(0.01)  # so that processes take turns
        search.tell_measured(ask, seconds(ask.variant, ask.config), {"gflops": 1.0})
        print(json.dumps({"told": ask.number}), flush=True)
    print(json.dumps(search.counts.to_json()), flush=True)
