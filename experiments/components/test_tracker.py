import json
from collections import defaultdict

from electra_lab.testing import TrackerContract


class TestMyTracker(TrackerContract):
    name = "my_tracker"

    def read(self, run, id):
        found = defaultdict(lambda: defaultdict(list))  # by metric and step
        for line in (run / "my_tracker.jsonl").read_text().splitlines():
            record = json.loads(line)
            step = record.pop("step")
            for name, value in record.items():
                found[name][step].append(value)
        return found
