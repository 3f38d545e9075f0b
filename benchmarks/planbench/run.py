"""PlanBench with its peers, kept: `python -m trimaran_studies planbench --peers DIR --json` with where it ran.

python benchmarks/planbench/run.py --peers DIR        # checkouts at the commits that peers.py names
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, write_document  # noqa: E402

from trimaran.base.progress import ignore_progress  # noqa: E402
from trimaran_studies.validation.planbench import planbench, planbench_document  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS / "planbench.json")
    options = parser.parse_args()
    if options.peers is None:
        print("needs --peers DIR with checkouts of the peers; nothing was written")
        return 0
    document = planbench_document(planbench(peers=options.peers, progress=ignore_progress))
    write_document(document | {"environment": describe_environment()}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
