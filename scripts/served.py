"""Starts hayloft serve for the scripts that ask it, and ends it with them."""
import atexit
import re
import subprocess


class Server:
    """address is that of its root, without a slash at the end."""

    def __init__(self, program, model, *options):
        self.process = subprocess.Popen([program, "serve", "-m", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.address = None
        for line in self.process.stderr:
            found = re.search(r"at (http://\S+?)/?$", line.strip())
            if found:
                self.address = found.group(1)
                return
        raise SystemExit("the server did not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """True when it ends as it should after SIGTERM."""
        self.process.terminate()
        return self.process.wait(60) == 0
