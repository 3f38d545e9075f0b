"""Scripts with a planted limit each: is it named, is the remedy's gain right, what does watching cost?

    .venv/bin/python benchmarks/observe/run.py [--rounds 5] [--only slow_loader ...]
    .venv/bin/python benchmarks/observe/run.py --busy [--rounds 4]                # is it named, on a busy machine?

Each round runs, for each script: as it is, observed, and with the remedy that was advised, in an order that changes
from round to round. Step times are what the scripts themselves print. Writes benchmarks/results/observe.json; with
--only, the other scripts' figures stay.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, median, stdev

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "observe.json"
PAIR = [str(HERE / "pair.py")]
SLOW = [*PAIR, "--link", "200Mb/s"]
STUDENT_95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}

# Row, which begins with its script and has the arguments after: how it is started, its limiter, the setting that its
# remedy names, and how the script takes it.
SCRIPTS = {
    "slow_loader": ([], "loader", "workers", lambda n: ["--workers", str(n)]),
    "small_kernels": ([], "small kernels", "batch", lambda n: ["--batch", str(8 * n), "--steps", "400"]),
    "slow_link": (SLOW, "exchange", "accumulate", lambda n: ["--accumulate", str(n), "--steps", "240"]),
    "item_each_step": (PAIR, "synchronisation", "every", lambda n: ["--every", str(n)]),
    "uneven": ([], "uneven batches", None, lambda _: ["--even"]),
    **{
        f"uneven --slow --steps 100 --network {network}": ([], "slow rank", None, lambda _: ["--even"])
        for network in ("batchnorm", "bert", "lm")
    },
}


def run(*command):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    printed = re.search(r"([0-9.]+) ms/step", done.stdout + done.stderr)
    return float(printed[1]) * 1e-3, done.stdout


def observe(*command):
    seconds, output = run(sys.executable, "-m", "trimaran", "observe", "--json", "--", sys.executable, *command)
    return seconds, json.loads(output)


def interval(values):
    """Mean with its 90 % interval."""
    if len(values) < 2:
        return [mean(values), None, None]
    half = STUDENT_95.get(len(values) - 1, 1.8) * stdev(values) / len(values) ** 0.5
    return [mean(values), mean(values) - half, mean(values) + half]


def started(name):
    script, *arguments = name.split()
    return [*SCRIPTS[name][0], str(HERE / "scripts" / f"{script}.py"), *arguments]


def name_only(name, rounds):
    """What is named while other programs use the machine, and what is only guessed."""
    seen = [observe(*started(name))[1] for _ in range(rounds)]
    row = {
        "planted": SCRIPTS[name][1],
        "named": [one["limiter"] for one in seen],
        "guess": [one["guess"] for one in seen],
        "load": os.getloadavg()[1],
    }
    print(
        f"{name}: planted {row['planted']}, named {row['named']}, guessed {row['guess']}, load {row['load']:.0f}",
        flush=True,
    )
    return row


def measure(name, rounds):
    _, limiter, setting, flags = SCRIPTS[name]
    script = started(name)
    _, first = observe(*script)
    best = first["remedies"][0]
    value = int(best["setting"].get(setting, 0)) if setting else 0
    cured = [*script, *flags(value or 1)]
    factor = value if setting == "batch" else 1
    plain_s, observed_s, cured_s, seen = [], [], [], []
    for number in range(rounds):
        kinds = ["plain", "observed", "cured"]
        for kind in kinds[number % 3 :] + kinds[: number % 3]:
            if kind == "plain":
                plain_s.append(run(sys.executable, *script)[0])
            elif kind == "cured":
                cured_s.append(run(sys.executable, *cured)[0] / factor)
            else:
                seconds, document = observe(*script)
                observed_s.append(seconds)
                seen.append(document)
        print(f"{name} round {number + 1}/{rounds}", file=sys.stderr, flush=True)
    planted = [next(r for r in one["remedies"] if r["name"] == best["name"]) for one in seen]
    predicted_gain = median(remedy["predicted_gain"] for remedy in planted)
    measured_gain = 1 - median(cured_s) / median(plain_s)
    predicted_s = median(one["step_time_s"] for one in seen) * (1 - predicted_gain)
    return {
        "planted": limiter,
        "named": [one["limiter"] for one in seen],
        "remedy": best["name"],
        "plain_s": plain_s,
        "observed_s": observed_s,
        "cured_s": cured_s,
        "step_s_by_observe": [one["step_time_s"] for one in seen],
        "predicted_gain": predicted_gain,
        "measured_gain": measured_gain,
        "gain_error": predicted_gain / measured_gain - 1,
        "predicted_step_s": predicted_s,
        "measured_step_s": median(cured_s),
        "step_error": predicted_s / median(cured_s) - 1,
        "overhead": median(observed_s) / median(plain_s) - 1,
        "overhead_interval": interval([o / p - 1 for o, p in zip(observed_s, plain_s, strict=True)]),
    }


def environment():
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def table(scripts):
    rows = [
        "| script | planted | named | remedy | predicted gain | measured gain "
        "| error of gain | error of step time | overhead (90 %) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in scripts.items():
        right = sum(named == one["planted"] for named in one["named"])
        _, low, high = one["overhead_interval"]
        spread = "" if low is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(
            f"| {name} | {one['planted']} | {right} of {len(one['named'])} | {one['remedy']} "
            f"| {100 * one['predicted_gain']:.1f} % | {100 * one['measured_gain']:.1f} % "
            f"| {100 * one['gain_error']:+.1f} % | {100 * one['step_error']:+.1f} % "
            f"| {100 * one['overhead']:+.1f} %{spread} |"
        )
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--busy", action="store_true", help="only what is named; the other figures stay")
    args = parser.parse_args()
    whole = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept, busy = whole.get("scripts", {}), whole.get("busy", {})
    for name in args.only:
        if args.busy:
            busy[name] = name_only(name, args.rounds)
            RESULTS.write_text(json.dumps(whole | {"busy": busy}, indent=1) + "\n")
        else:
            kept[name] = measure(name, args.rounds)
    if args.busy:
        return
    scripts = {name: kept[name] for name in SCRIPTS if name in kept}
    watching = subprocess.run(
        [sys.executable, str(HERE / "overhead.py"), "--json"], capture_output=True, text=True, check=True
    )
    within = json.loads(watching.stdout)
    document = {"schema_version": 1, "environment": environment(), "scripts": scripts, "watching": within, "busy": busy}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(table(scripts))
    low, high = within["overhead_interval"]
    print(f"\nWithin one process, {1e3 * within['step_s']:.2f} ms a step: watching adds", end=" ")
    print(f"{100 * within['overhead']:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})")


if __name__ == "__main__":
    main()
