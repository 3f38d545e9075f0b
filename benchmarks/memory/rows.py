"""Rows as lines of JSON, written as soon as they are known; those of an earlier run are not measured again."""

import json
from pathlib import Path
from typing import Any

from benchmarks.memory.cases import ORACLE, Arm, Case

FINAL = frozenset({"ok", "out of memory", "refused", "absent"})
"""What a second try would not change."""


class Rows:
    """All rows so far.

    Args:
        path: file that each row is appended to
        resume: file with the rows of an earlier run; None: begin anew
    """

    def __init__(self, path: Path, *, resume: Path | None) -> None:
        earlier = resume.read_text().splitlines() if resume is not None and resume.exists() else []
        # A process that was ended in the middle of a line leaves half of it.
        found = [json.loads(text) for text in earlier if text.endswith("}")]
        self.all: list[dict[str, Any]] = [row for row in found if row["status"] in FINAL]
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in self.all))

    def find(self, case: Case, arm: str) -> dict[str, Any] | None:
        """The row of a case and an arm."""
        return next((row for row in self.all if _key(row) == (case.name, case.reduced, arm)), None)

    def has(self, case: Case, arm: Arm) -> bool:
        """Whether there is a row of that pair."""
        return self.find(case, arm.name) is not None

    def add(self, case: Case, arm: Arm, row: dict[str, Any]) -> dict[str, Any]:
        """Keep a row, set beside the oracle's."""
        whole = {"case": case.name, "arm": arm.name, "reduced": case.reduced, **row}
        oracle = self.find(case, ORACLE)
        if row["status"] == "ok":
            whole["slowdown"] = row["step_s"] / (oracle or whole)["step_s"] - 1
            ours = self.find(case, "ours") or whole
            if ours.get("limit_slowdown") is not None and arm.name != ORACLE:
                # The least step in this budget, for operations that take as long as the oracle's.
                whole["limit_s"] = (1 + ours["limit_slowdown"]) * (oracle or whole)["step_s"]
                whole["ratio_to_limit"] = row["step_s"] / whole["limit_s"]
        self.all.append(whole)
        with self._path.open("a") as file:
            file.write(json.dumps(whole) + "\n")
        return whole


def _key(row: dict[str, Any]) -> tuple[str, bool, str]:
    return row["case"], row["reduced"], row["arm"]
