"""A headless Chromium, told what to do over its debugging pipe: no package is needed."""
import base64
import json
import os
import shutil
import subprocess
import time


def find():
    return next((path for path in map(shutil.which, ["chromium", "chromium-browser", "google-chrome"]) if path), None)


class Browser:
    """One page of a browser that reaches nothing but this machine."""

    def __init__(self, program, profile):
        to_child, self.write_end = os.pipe()
        self.read_end, from_child = os.pipe()

        def hand_over():  # the browser reads descriptor 3 and writes 4
            low, high = os.dup(to_child), os.dup(from_child)
            while min(low, high) <= 4:
                low, high = os.dup(low), os.dup(high)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={profile}",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def read(self):
        while b"\0" not in self.buffer:
            more = os.read(self.read_end, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, address, width=800, height=640):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def wait(self, expression, seconds=120):
        until = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > until:
                raise RuntimeError(f"not in {seconds} s: {expression}")
            time.sleep(0.1)

    def shape(self, width, height, scheme):
        """The size of the page, and whether it is to be light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, name):
        """A key that is pressed and let go."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "ArrowLeft": 37}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code)

    def click(self, element, share=0.5):
        """A mouse's click in the middle of an element's height, at a share of its width."""
        box = self.value(f"(() => {{ {element}.scrollIntoView({{block: 'center'}}); const box = {element}.getBoundingClientRect(); "
                         "return [box.left, box.top, box.width, box.height]; })()")
        at = {"x": box[0] + share * box[2], "y": box[1] + box[3] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def addresses(self):
        """Of everything that the page has asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def problems(self):
        """What the page has thrown or logged as an error."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"]["text"])
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def end(self):
        self.process.kill()
        self.process.wait()
