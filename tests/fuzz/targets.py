"""The table of what is fuzzed: every parser of bytes from another rank, or from a board. For a new one, add a line.

A target of Python has a function here that handles one input, and one that draws an input. A target of the core is a
C++ function in `tests/fuzz/`, listed in `main.cpp`, whose inputs are scripts; CMakeLists.txt lists the files of the
core that it needs.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz import boards, control, handshakes, inputs, rendezvous

ROOT = Path(__file__).parents[2]
_BUILD = ROOT / "build" / "fuzz"


@dataclass(frozen=True)
class Target:
    """A parser. handle: raises what is a finding; None: it is in the core. draw: a new input; None: mutate the corpus.

    share: of the runs of a campaign.
    """

    name: str
    handle: Callable[[bytes], None] | None = None
    draw: Callable[[Random], bytes] | None = None
    share: float = 1.0

    def command(self, num_runs: int, seed: int) -> list[str]:
        """Return the command that handles the corpus, and then so many other inputs."""
        if self.handle is None:
            return [str(_BUILD / "fuzz"), self.name, str(inputs.file_of(self.name)), str(num_runs), str(seed)]
        return [sys.executable, "-m", "tests.fuzz.worker", self.name, str(num_runs), str(seed)]


TARGETS = {
    one.name: one
    for one in (
        Target("handshake", handshakes.handle),
        Target("forgery", handshakes.handle_forgery, handshakes.draw_forgery, share=0.1),
        Target("rendezvous", rendezvous.handle_message, rendezvous.draw_message),
        Target("meeting", rendezvous.handle_meeting, rendezvous.draw_meeting, share=0.25),  # some four messages each
        Target("control", control.handle, control.draw),
        Target("boards", boards.handle),
        Target("news"),
        Target("frames"),
        Target("numbers"),
        Target("messages"),
    )
}


def build() -> None:
    """Compile the targets of the core, with sanitizers. Raises CalledProcessError, whose `output` says why."""
    tools = Path(sys.executable).parent
    configure = [tools / "cmake", "-S", ROOT, "-B", _BUILD, "-G", "Ninja", "--log-level=WARNING"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release", "-DHOCKET_PYTHON=OFF"]
    configure += ["-DHOCKET_TESTS=ON", "-DHOCKET_SANITIZE=address,undefined"]
    for command in (configure, [tools / "cmake", "--build", _BUILD, "--target", "fuzz"]):
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
