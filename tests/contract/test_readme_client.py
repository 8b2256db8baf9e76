"""The README's program for a worker's channel runs as it stands there."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tests.chaos.processes import Process, free_port

ROOT = Path(__file__).parents[2]
PROGRAM = next(
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if "GrpcLink" in block
)
SECONDS = 30.0


async def test_the_program_streams_a_chat(tmp_path: Path) -> None:
    """Against a real worker it prints what the model says, and ends."""
    port = free_port()
    worker = Process("worker", tmp_path / "log", "--engine", "scripted", "--grpc-port", str(port))
    program = PROGRAM.replace("127.0.0.1:9001", f"127.0.0.1:{port}").replace("Say hello.", "[[text:Hello there!]]")
    try:
        await worker.start()
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    finally:
        worker.end()

    assert (ran.returncode, ran.stdout) == (0, "Hello there!"), ran.stderr
