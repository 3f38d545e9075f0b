"""A worker without torch: runs the script of a request, and leaves a record that says how it ended.

The launcher is tested with it: whatever a script does to its process, it does to this one. A script may set `MADE`, the
ranks of the groups that it makes, and `CALLS`, pairs of an operation and the number of its group among those.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import msgspec

from trimaran.rehearsal.record import Collective, End, Group, Record, write_record
from trimaran.rehearsal.request import RankRequest


def main() -> None:
    """Run the request whose path is the only argument."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RankRequest)
    if len(request.together) > 1:
        (Path(request.meeting) / str(request.rank)).touch()
        while len(list(Path(request.meeting).iterdir())) < len(request.together):
            time.sleep(0.01)
    os.environ["RANK"] = str(request.rank)
    sys.argv = [request.script, *request.arguments]
    end = End(how="finished", status=0, text="", lines=-1)
    left_behind = {}
    try:
        left_behind = runpy.run_path(request.script, run_name="__main__")
    except SystemExit as left:
        end = End(how="exit", status=int(left.code or 0), text="", lines=-1)
    record = Record(
        rank=request.rank,
        world=request.world,
        per_node=request.per_node,
        device=request.gpu.catalog_name,
        memory_bytes=request.gpu.memory_bytes,
        script=[request.script],
        end=end,
    )
    record.made_groups = [(tuple(ranks), 0) for ranks in left_behind.get("MADE", ())]
    for number, (ranks, _) in enumerate(record.made_groups):
        if request.rank in ranks:
            record.groups[str(number)] = Group(str(number), ranks, "", number, 0)
    for operation, number in left_behind.get("CALLS", ()):
        one = Collective(operation, "", str(number), (), (), 0, -1, 0, False, -1, (), 0, 0, "forward")
        record.collectives.append(one)
    write_record(Path(request.record), record)


if __name__ == "__main__":
    main()
