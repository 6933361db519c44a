"""Look for known vulnerabilities of the tested versions with pip-audit; part of `make audit`.

Without a connection to pip-audit's service one line says so, and the exit code is 0: nothing was found out.

    python benchmarks/vulnerabilities.py [PIP_AUDIT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTED = Path(__file__).parent.parent / "constraints.txt"
UNREACHABLE = ("ConnectionError", "ConnectTimeout", "Max retries exceeded", "ServiceError", "HTTPError", "SSLError")


def main(program: str = "pip-audit") -> int:
    """Run pip-audit; return 1 if it has found something."""
    command = [program, "-r", str(TESTED), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"known vulnerabilities: not checked, pip-audit does not run here ({error})", file=sys.stderr)
        return 0
    if done.returncode and any(name in done.stderr for name in UNREACHABLE):
        last = done.stderr.strip().splitlines()[-1][:200]
        print(f"known vulnerabilities: not checked, pip-audit's service cannot be reached ({last})", file=sys.stderr)
        return 0
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
