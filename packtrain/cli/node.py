"""`packtrain node`."""

from __future__ import annotations

from packtrain.cli.parser import Parser


def run(argv: list[str]) -> int:
    """Run a node of a cluster until Ctrl-C; return the exit code."""
    parser = Parser(
        prog="packtrain node",
        description="Run this machine as the head of a Ray cluster, or as one more node of it, until Ctrl-C.",
        epilog="Roles: actor (acts with a policy), env (runs environments alone), head (takes no workers).",
    )
    parser.add_argument("--head", action="store_true", help="start the first node; creates the token if there is none")
    parser.add_argument("--loopback", action="store_true", help="with --head: accept only nodes of this machine")
    parser.add_argument("--address", metavar="HEAD:PORT", help="join the cluster of this head")
    parser.add_argument(
        "--role", default="actor", metavar="actor|env|head", help="what runs on this node (default: actor)"
    )
    parser.add_argument("--port", type=int, default=6379, metavar="N", help="port of the head (default: 6379)")
    parser.add_argument("--num_cpus", type=int, metavar="N", help="number of processors for workers (default: all)")
    parser.add_argument(
        "--store_gb", type=float, metavar="G", help="size of the object store in GiB (default: 30 %% of memory)"
    )
    arguments = parser.parse_args(argv)
    from packtrain.runtime.cluster import node

    return node.run_node(node.NodeRequest(**vars(arguments)), lambda line: print(line, flush=True))
