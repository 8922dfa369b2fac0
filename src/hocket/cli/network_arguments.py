"""Declares the options of commands that take a network."""

import argparse
from typing import Any

from hocket.answers import PLACEHOLDER


class OneNetwork(argparse.Action):
    """The option of a command that takes one network, so it can be given once."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *__: Any) -> None:
        """Keeps the network. Raises ArgumentError if there is one already."""
        before = getattr(namespace, self.dest)
        if before is not None:
            raise argparse.ArgumentError(
                self,
                f"expected one network; found {before} and {value}; run the command once for each, or compare their "
                f"times: hocket simulate all_reduce --sweep --topology {before} --topology {value}",
            )
        setattr(namespace, self.dest, value)


def add_topology(parser: argparse.ArgumentParser, *, several: bool = False, required: bool = False) -> None:
    """Declares --topology or --machine and --protocol, and --link, --reduce and --overhead.

    required: one of --topology and --machine must be given.
    """
    either = parser.add_mutually_exclusive_group(required=required)
    either.add_argument(
        "--machine",
        action="append" if several else OneNetwork,
        metavar="NAME[:HOSTS]",
        help="predict the GPU library of a machine, such as h100:4: v100, a100, h100, h200, b200, mi300x, or a YAML "
        "file (docs/networks.md)" + ("; repeat the option for more machines" if several else ""),
    )
    parser.add_argument(
        "--protocol", default="", metavar="P", help="with --machine: LL, LL128 or Simple (default: the fastest)"
    )
    _add_topology(either, several=several)
    _add_links(parser)
    parser.add_argument(
        "--reduce",
        default="",
        metavar="BANDWIDTH",
        help="speed of a rank's additions, e.g. 200GB/s (default: infinite)",
    )
    parser.add_argument(
        "--overhead",
        default="",
        metavar="TIME[,gap=TIME][,eager=SIZE]",
        help="time that each message costs its sender and its receiver, one message after the other, for example "
        "0.5us (default: 0); gap: the least time between messages that a rank sends, and that it receives; eager: a "
        "message of at most so many bytes does not hold up its sender",
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    """Declares --topology, which must be given, and --link."""
    _add_topology(parser, required=True)
    _add_links(parser)


def _add_topology(parser: Any, *, several: bool = False, required: bool = False) -> None:
    parser.add_argument(
        "--topology",
        action="append" if several else OneNetwork,
        required=required,
        metavar="KIND:ARGS",
        help=f"the network, for example torus:4x4 or dgx-h100:2; or a file: YAML, or one of ASTRA-sim, SimAI or Slurm "
        f"(docs/networks.md describes the formats); {PLACEHOLDER} in ARGS stands for the rank count, "
        f"{PLACEHOLDER}/8 for an eighth" + ("; repeat the option for more networks" if several else ""),
    )


def _add_links(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="[LINKS:]bandwidth=,latency=",
        help="change the constants of all links, of one class, of one link, or between two kinds of nodes in both "
        "directions, for example nic:bandwidth=25GB/s,latency=2us or 'rank0->rank1:bandwidth=1GB/s' or "
        "'edge<->core:bandwidth=25GB/s' (quoted, as a shell redirects at > and <); repeat the option for more changes",
    )
