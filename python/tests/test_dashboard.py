"""The dashboard for Grafana names metrics that `cairn run --metrics-file` writes, and no others."""

import json
import re

import harness
from harness import JobTest

BOARD = harness.ROOT / "examples/grafana/cairn.json"


class Dashboard(JobTest):
    def test_every_metric_exists_and_has_the_labels(self):
        figures = self.box / "job.prom"
        self.in_job("""
            os.mkdir("/cairn/checkpoint-10")
            with open("/cairn/checkpoint-10/model", "wb") as out:
                out.write(b"x" * 1000)
        """, "--metrics-file", str(figures))
        written = {}
        for name, labels in re.findall(r"^(\w+)\{(.*)\} ", figures.read_text(), re.MULTILINE):
            written.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        board = json.loads(BOARD.read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        expressions += [one["query"].replace(",", "{x=") for one in board["templating"]["list"] if one["name"] == "job"]
        named = [found for one in expressions for found in re.findall(r"\b(cairn_\w+)\{(.*?)(?:\}|$)", one)]
        self.assertGreater(len(named), 10)
        for name, labels in named:
            self.assertIn(name, written)
            self.assertLessEqual(set(re.findall(r'(\w+)=~?"', labels)), written[name], name)

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in json.loads(BOARD.read_text())["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(taken & cells, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            taken |= cells
