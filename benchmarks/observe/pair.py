"""Start a script as two ranks, as torchrun would; with --link, in two network namespaces joined by a slow link.

    python pair.py [--link 200Mb/s] script.py [arguments]

A link needs root, `ip` and `tc`. Namespaces have names of their own and are gone at the end, however it comes.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys


def run(*command):
    subprocess.run(command, check=True)


class SlowLink:
    """Two namespaces, joined by a pair of virtual interfaces that are held to a rate in both directions."""

    def __init__(self, rate):
        self.rate = rate.removesuffix("b/s").lower() + "bit"
        self.names = [f"observe-{os.getpid()}-{rank}" for rank in range(2)]

    def __enter__(self):
        first, second = self.names
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "pair", "netns", first, "type", "veth", "peer", "name", "pair", "netns", second)
        for number, name in enumerate(self.names, 1):
            run("ip", "-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "pair")
            run("ip", "-n", name, "link", "set", "pair", "up")
            shape = ("rate", self.rate, "burst", "16kb", "latency", "400ms")
            run("tc", "-n", name, "qdisc", "add", "dev", "pair", "root", "tbf", *shape)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def start(script, link):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        address, interface = ("10.99.0.1", "pair") if link else ("127.0.0.1", "lo")
        environment = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": address,
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": interface,
        }  # fmt: skip
        inside = ["ip", "netns", "exec", link.names[rank]] if link else []
        processes.append(subprocess.Popen([*inside, sys.executable, *script], env=environment))
    try:
        return max((process.wait() for process in processes), key=abs)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--link")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.link is None:
        sys.exit(start(args.script, None))
    with SlowLink(args.link) as link:
        sys.exit(start(args.script, link))


if __name__ == "__main__":
    main()
