"""A running `carat serve` for the tests of clients.

The program is $CARAT_BINARY, else build/release/carat. The model is $CARAT_MODEL_270M, else a tiny one with random weights: enough to see the
shape of answers, which is what most tests look at. $CARAT_TEST_URL names a server that runs already.
"""

import atexit
import functools
import os
import pathlib
import re
import subprocess
import tempfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
REAL = os.environ.get("CARAT_MODEL_270M")
TINY = ROOT / "tests" / "goldens" / "talker" / "talker.q8_0.gguf"
MODEL = pathlib.Path(REAL or TINY)

needs_real_model = pytest.mark.skipif(not REAL, reason="CARAT_MODEL_270M is not set")


class Server:
    """`carat serve` on a free port; `log` is what it has written to stderr."""

    def __init__(self, *arguments, model=MODEL, environment=None):
        self.home = tempfile.TemporaryDirectory()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CARAT_API_KEY"))}
        self.process = subprocess.Popen([CARAT, "serve", str(model), "--port", "0", *map(str, arguments)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                                        env={**inherited, **(environment or {}), "HOME": self.home.name})
        self.log = []
        self.url = None
        self._told = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._told.wait(timeout=120) and self.url, "carat serve did not start:\n" + "".join(self.log)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"carat is listening on (https?://[\w.:\[\]-]+)", line)
            if found:
                self.url = found[1].rstrip("/")
                self._told.set()
        self._told.set()

    def stop(self, timeout=60):
        """Asks it to end; its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.home.cleanup()


def can_serve():
    if not CARAT.is_file():
        return False
    return subprocess.run([CARAT, "serve", "--help"], capture_output=True, check=False).returncode == 0


@functools.lru_cache(maxsize=None)
def shared_server():
    """One for all tests of a session."""
    server = Server()
    atexit.register(server.stop)
    return server


@pytest.fixture(scope="session")
def server_url():
    if os.environ.get("CARAT_TEST_URL"):
        return os.environ["CARAT_TEST_URL"].rstrip("/")
    if not can_serve():
        pytest.skip(f"{CARAT} is not built, or has no verb serve")
    return shared_server().url
