"""An HTTP server with a hybridized model: texts of all lengths, several threads, nothing compiled in a request.

`python examples/serve.py` serves: `curl -d '[3, 14, 15]' localhost:8000`. `python examples/serve.py --measure 10`
serves itself: another process finds how many requests a second the server can answer, sends 80 % of that from 8
threads for 10 seconds, and reports latencies, processor time and memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import nn

import weft

SHORTEST, LONGEST, WORDS = 16, 64, 1000
CLIENTS, LOAD = 8, 0.8
SWITCH = 0.0005  # seconds after which a thread hands the interpreter on; Python's own number is ten times as long


class Classifier(nn.Module):
    """Tell of which of two kinds a text is."""

    def __init__(self, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Classify texts of one length."""
        return self.head(self.layers(self.words(words)).mean(1)).softmax(-1)


def prepared() -> Classifier:
    """Make the model, and all its programs: the shortest and the longest text stand for those between them."""
    torch.manual_seed(0)
    net = weft.hybridize(Classifier().eval())
    weft.prepare(net, *(torch.randint(WORDS, (1, length)) for length in (SHORTEST, LONGEST)))
    # What has been imported and prepared stays: it is not searched for garbage in the middle of a request.
    gc.collect()
    gc.freeze()
    # A thread that has its answer waits for the interpreter no longer than an answer takes.
    sys.setswitchinterval(SWITCH)
    return net


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread of its own; as many calls run at once as there may be busy cores."""

    daemon_threads = True

    def __init__(self, net: nn.Module, cores: int, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.net = net
        # More threads than cores only wait for each other inside of a call; here they wait in the order they came.
        self.cores = threading.Semaphore(cores)

    def answer(self, words: list[int]) -> list[float]:
        """Classify one text."""
        with self.cores, torch.inference_mode():
            return self.net(torch.tensor([words]))[0].tolist()


class Handler(BaseHTTPRequestHandler):
    """Reads a list of words, and writes how likely each kind is."""

    server: Server
    protocol_version = "HTTP/1.1"  # a connection stays open
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer a request."""
        words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.server.answer(words)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no line for each request."""


def client(port: int, count: int, interval: float, number: int) -> list[float]:
    """Send requests, one an interval, or as fast as they are answered where that is 0; gives what each took."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.connect()
    drawn = random.Random(number)
    # Written before: a client that works takes the interpreter from those that wait for answers.
    texts = [[drawn.randrange(WORDS) for _ in range(drawn.randint(SHORTEST, LONGEST))] for _ in range(count)]
    bodies = [*map(json.dumps, texts)]
    begin, seconds = time.perf_counter() + interval * number / CLIENTS, []
    for turn, body in enumerate(bodies):
        time.sleep(max(0.0, begin + turn * interval - time.perf_counter()))
        start = time.perf_counter()
        connection.request("POST", "/", body)
        connection.getresponse().read()
        seconds.append(time.perf_counter() - start)
    connection.close()
    return seconds


def send(port: int, count: int, interval: float) -> list[float]:
    """Send so many requests from each client, all at once."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = [clients.submit(client, port, count, interval, number) for number in range(CLIENTS)]
        return sorted(second for one in found for second in one.result())


def send_all(port: int, seconds: float) -> None:
    """What the other process does: find the rate, send 80 % of it, and write what that took."""
    send(port, 20, 0.0)
    begin = time.perf_counter()
    send(port, 100, 0.0)
    rate = CLIENTS * 100 / (time.perf_counter() - begin)
    interval = CLIENTS / (LOAD * rate)
    print(flush=True)  # from here on it is measured
    taken = send(port, int(seconds / interval), interval)
    print(json.dumps({"rate": rate, "seconds": taken}))


def measure(server: Server, seconds: float) -> None:
    """Serve another process, and report."""
    line = [sys.executable, __file__, "--send", str(server.server_port), str(seconds)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        sender.stdout.readline()
        usage, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        found = json.loads(sender.stdout.read())
        after, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - begin
    taken, busy = found["seconds"], after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    middle, last = statistics.median(taken), taken[int(len(taken) * 0.99)]
    print(f"{found['rate']:.0f} requests a second can be answered; {len(taken)} were sent at {LOAD:.0%} of that")
    print(
        f"p50 {middle * 1e3:.2f} ms, p99 {last * 1e3:.2f} ms ({last / middle:.2f} times), most {taken[-1] * 1e3:.2f} ms"
    )
    print(f"processor time {busy / wall:.2f} of a core; memory grew by {after.ru_maxrss - usage.ru_maxrss} KiB")


def main() -> None:
    """Serve, or measure."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--port", type=int, default=8000)
    words.add_argument("--cores", type=int, default=2, help="calls that run at once")
    words.add_argument("--measure", type=float, metavar="SECONDS")
    words.add_argument("--send", nargs=2, metavar=("PORT", "SECONDS"), help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.send:
        send_all(int(given.send[0]), float(given.send[1]))
        return
    with Server(prepared(), given.cores, 0 if given.measure else given.port) as server:
        if not given.measure:
            print(f"serving on {server.server_port}", flush=True)
            server.serve_forever()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            measure(server, given.measure)
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    main()
