"""`nvidia-smi` of a machine that is rehearsed: its GPUs are as they are said, idle and empty."""

import sys
from collections.abc import Sequence


def answer(name: str, nbytes: int, capability: str, count: int, arguments: Sequence[str]) -> str:
    r"""What is printed.

    Args:
        name: of the GPUs
        nbytes: of each one's memory [bytes]
        capability: of their architecture, such as "9.0"
        count: of them
        arguments: of the command

    Example:
        >>> answer("NVIDIA H100", 2**30, "9.0", 2, ["--query-gpu=index,memory.total", "--format=csv,noheader"])
        '0, 1024 MiB\n1, 1024 MiB'
    """
    mib, options = f"{nbytes // 2**20} MiB", dict(word.split("=", 1) for word in arguments if "=" in word)
    said = {
        "name": name, "gpu_name": name, "count": f"{count}", "memory.total": mib, "memory.free": mib,
        "memory.used": "0 MiB", "utilization.gpu": "0 %", "utilization.memory": "0 %", "driver_version": "570.00",
        "compute_cap": capability,
    }  # fmt: skip
    rows = [said | {"index": f"{index}", "uuid": f"GPU-{index:032x}"} for index in range(count)]
    if "-L" in arguments or "--list-gpus" in arguments:
        return "\n".join(f"GPU {row['index']}: {name} (UUID: {row['uuid']})" for row in rows)
    if "--query-gpu" not in options:
        table = (f"{row['index']}  {name}  0MiB / {mib.replace(' ', '')}" for row in rows)
        return "\n".join(["NVIDIA-SMI 570.00    Driver Version: 570.00    CUDA Version: 12.8", *table])
    fields, form = [field.strip() for field in options["--query-gpu"].split(",")], options.get("--format", "csv")
    lines = [[row.get(field, "[N/A]") for field in fields] for row in rows]
    if "nounits" in form:
        lines = [[word.removesuffix(" MiB").removesuffix(" %") for word in line] for line in lines]
    return "\n".join(map(", ".join, lines if "noheader" in form else [fields, *lines]))


if __name__ == "__main__":
    name, nbytes, capability, count = sys.argv[1:5]
    sys.stdout.write(answer(name, int(nbytes), capability, int(count), sys.argv[5:]) + "\n")
