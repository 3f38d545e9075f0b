"""Slurm on nodes of this machine: Debian's programs, with everything that they keep in one folder.

The first node has the controller and munge, the others run jobs. Slurm's programs listen in the networks of their nodes
only, and end with them.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.nodes import Node, environment, network, wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")

# Times are short ones: a node is given up 30 s after it was last heard of, a job that is queued again waits 5 s, not 2
# min, and the queue is looked at every 2 s.
_CONFIGURATION = """
ClusterName=nodes
SlurmctldHost={head.name}({head.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=30
KillWait=5
"""


def missing_programs() -> str:
    """Why Slurm cannot run here; empty where it can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"Slurm needs {', '.join(missing)}: install slurm-wlm and munge" if missing else ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A cluster that runs.

    Attributes:
        head: node of the controller
        nodes: that run jobs
        folder: configuration, state and logs
    """

    head: Node
    nodes: list[Node]
    folder: Path

    def start(self, node: Node) -> None:
        """Start what a node that runs jobs has; after `Node.boot`."""
        (self.folder / node.name).mkdir(exist_ok=True)
        node.run(["slurmd", "-D", "-N", node.name], log=self.folder / f"{node.name}.log", env=self.variables())

    def variables(self) -> dict[str, str]:
        """Of everything that speaks to this cluster."""
        return environment(SLURM_CONF=str(self.folder / "slurm.conf"))

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        """Run a command of Slurm's on the head and return what it prints."""
        output = self.folder / "answer"
        output.unlink(missing_ok=True)
        asked = self.head.run(command, log=output, cwd=cwd or self.folder, env=self.variables())
        assert asked.wait(60) == 0, output.read_text()
        return output.read_text()

    def submit(self, script: Path, *options: str) -> int:
        """Queue a script in its directory; the number of its job."""
        return int(self.ask("sbatch", "--parsable", *options, str(script), cwd=script.parent))

    def job(self, number: int) -> dict[str, str]:
        """What the controller says of a job, such as its JobState and its number of Restarts."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.ask("scontrol", "show", "job", str(number))))

    def told(self) -> str:
        """The ends of the logs, for errors."""
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))


@contextmanager
def slurm(folder: Path, *, nodes: int = 2) -> Iterator[Slurm]:
    """A cluster, while the block runs.

    Args:
        folder: for everything that it keeps; empty
        nodes: that run jobs, of two processors each
    """
    with network(nodes + 1, hosts_in=folder) as (head, *others):
        for name in ("state", "munge"):
            (folder / name).mkdir(mode=0o700)
        lines = [_CONFIGURATION.format(head=head, folder=folder)]
        lines += [f"NodeName={node.name} NodeAddr={node.address} CPUs=2 State=UNKNOWN\n" for node in others]
        lines += [f"PartitionName=all Nodes={','.join(node.name for node in others)} Default=YES State=UP\n"]
        (folder / "slurm.conf").write_text("".join(lines))
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge/{name}" for option, name in places.items()]
        cluster = Slurm(head, others, folder)
        head.run(["munged", "--foreground", "--force", *options], log=folder / "munged.log")
        wait_for((folder / "munge" / "socket").exists, "munge", 20, cluster.told)
        head.run(["slurmctld", "-D"], log=folder / "slurmctld.log", env=cluster.variables())
        for node in others:
            cluster.start(node)
        answers = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_for(lambda: _idle(cluster, answers) == nodes, "idle nodes", 30, cluster.told)
        yield cluster


def _idle(cluster: Slurm, question: tuple[str, ...]) -> int:
    try:
        return cluster.ask(*question).split().count("idle")
    except AssertionError:  # the controller does not answer yet
        return 0
