"""Stop at the chapter's MXNet listings, which run as they are once `weft.mx` is installed: `weft tour --dialect mx`."""

from __future__ import annotations

from weft.console.tour.stop import Claim, Names, Stop, before_and_after, change_text

CALLS = 200
INSTALL = """\
import weft.mx
weft.mx.install()  # or, for a script as it is: python -m weft.mx script.py

"""

SEQUENTIAL = (
    INSTALL
    + """\
from mxnet import nd, sym
from mxnet.gluon import nn
import time

def get_net():
    net = nn.HybridSequential()
    net.add(nn.Dense(256, activation='relu'),
            nn.Dense(128, activation='relu'),
            nn.Dense(2))
    net.initialize()
    return net

def benchmark(net, x):
    start = time.time()
    for i in range(1000):
        _ = net(x)
    nd.waitall()
    return time.time() - start

x = nd.random.normal(shape=(1, 512))
net = get_net()
before = net(x)
print('before hybridizing: %.4f sec' % (benchmark(net, x)))
net.hybridize()
after = net(x)
print('after hybridizing: %.4f sec' % (benchmark(net, x)))"""
)

BLOCK = (
    INSTALL
    + """\
from mxnet import nd
from mxnet.gluon import nn

class HybridNet(nn.HybridBlock):
    def __init__(self, **kwargs):
        super(HybridNet, self).__init__(**kwargs)
        self.hidden = nn.Dense(10)
        self.output = nn.Dense(2)

    def hybrid_forward(self, F, x):
        print('x: ', x)
        x = F.relu(self.hidden(x))
        print('hidden: ', x)
        return self.output(x)

net = HybridNet()
net.initialize()
x = nd.random.normal(shape=(1, 4))
net.hybridize()
first = net(x)
second = net(x)"""
)

REFUSED = (
    INSTALL
    + """\
import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

class Looks(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        x.asnumpy()
        return F.relu(x)

class Decides(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x if x.sum() > 0 else -x

errors = []
for net in (Looks(), Decides()):
    net(nd.ones((1, 2)))
    net.hybridize()
    try:
        net(nd.ones((1, 2)))
    except mx.base.NotImplementedForSymbol as error:
        errors.append(str(error))
        print(error)"""
)

QUEUED = (
    INSTALL
    + """\
from mxnet import nd
import time

a = nd.ones((1, 2))
b = nd.ones((1, 2))
c = a * b + 2
print(c)

x = nd.random.uniform(shape=(2000, 2000))
x.wait_to_read()
start = time.time()
y = nd.dot(x, x).sum()
queued = time.time() - start
y.wait_to_read()
finished = time.time() - start
print('queued %.4f sec, finished %.4f sec' % (queued, finished))"""
)

EXPORTED = (
    INSTALL
    + """\
import os, tempfile
from mxnet import gluon, nd
from mxnet.gluon import nn

net = nn.HybridSequential()
net.add(nn.Dense(256, activation='relu'), nn.Dense(2))
net.initialize()
net.hybridize()
x = nd.random.normal(shape=(1, 512))
y = net(x)
prefix = os.path.join(tempfile.mkdtemp(), 'my_mlp')
net.export(prefix)
print(sorted(os.listdir(os.path.dirname(prefix))))
loaded = gluon.SymbolBlock.imports(
    prefix + '-symbol.json', ['data'], prefix + '-0000.params')
z = loaded(x)"""
)

DEVICES = (
    INSTALL
    + """\
import mxnet as mx
from mxnet import nd

def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].context)
    for i in range(1, len(data)):
        data[0].copyto(data[i])

def split_and_load(data, ctx):
    n, k = data.shape[0], len(ctx)
    m = n // k
    assert m * k == n, '# examples is not divided by # devices.'
    return [data[i * m: (i + 1) * m].as_in_context(ctx[i]) for i in range(k)]

ctx = [mx.cpu(0), mx.cpu(1)]
data = [nd.ones((1, 2), ctx=ctx[i]) * (i + 1) for i in range(2)]
print('before allreduce:', data)
allreduce(data)
print('after allreduce:', data)
parts = split_and_load(nd.arange(24).reshape((6, 4)), ctx)"""
)


def _check_sequential(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    net, plain, x, nd = names["net"], names["get_net"](), names["x"], names["nd"]
    difference = float(abs(names["before"].asnumpy() - names["after"].asnumpy()).max())
    plain(x)
    found = before_and_after(lambda: (plain(x), nd.waitall()), lambda: (net(x), nd.waitall()), CALLS)
    scaled = (found[0] * 1000 / CALLS, found[1] * 1000 / CALLS, found[2])
    return (
        Claim("mx_hybrid_same", "0.0", f"{difference:.1e}", difference < 1e-6),
        Claim("mx_hybrid_faster", "0.2385 s → 0.1001 s, × 2.38", change_text(*scaled), found[2] > 1, scaled[:2]),
    )


def _check_block(names: Names, printed: str) -> tuple[Claim, ...]:
    lines = printed.splitlines()
    # A process counts its blocks: who runs the stop twice has another name.
    symbols = ["x:  <Symbol data>", f"hidden:  <Symbol {names['net'].name}_relu0>"]
    same = bool((names["first"] == names["second"]).min().asscalar())
    return (
        Claim("mx_symbols", ", ".join(symbols), ", ".join(lines), lines == symbols),
        Claim("mx_once", "2, 0", f"{len(lines)}, 0" if same else "another answer", same and len(lines) == 2),
    )


def _check_refused(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    told = "Function asnumpy is not implemented for Symbol and only available in NDArray."
    first, second = names["errors"]
    return (
        Claim("mx_looks", told, first, first == told),
        Claim("mx_decides", "__bool__", second.split(" is ")[0], "__bool__" in second),
    )


def _check_queued(names: Names, printed: str) -> tuple[Claim, ...]:
    queued, finished = names["queued"], names["finished"]
    here = f"{queued:.4f} s, {finished:.4f} s"
    return (
        Claim("mx_printed", "[[3. 3.]]", printed.split("\n")[1], "[[3. 3.]]\n<NDArray 1x2 @cpu(0)>" in printed),
        Claim("mx_queued", "0.0006 s, 0.1748 s", here, queued < 0.5 * finished, (queued, finished)),
    )


def _check_exported(names: Names, printed: str) -> tuple[Claim, ...]:
    files = "['my_mlp-0000.params', 'my_mlp-symbol.json']"
    difference = float(abs(names["y"].asnumpy() - names["z"].asnumpy()).max())
    return (
        Claim("mx_files", files, printed.strip(), printed.strip() == files),
        Claim("mx_loaded", "0.0", f"{difference:.1e}", difference < 1e-6),
    )


def _check_devices(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    sums = [part.asnumpy().tolist() for part in names["data"]]
    split = [(part.shape, str(part.context)) for part in names["parts"]]
    return (
        Claim("mx_sum", "[[3. 3.]]", str(sums[1]), sums == [[[3.0, 3.0]]] * 2),
        Claim("mx_split", "3 × 4", str(split), split == [((3, 4), "cpu(0)"), ((3, 4), "cpu(1)")]),
    )


GLUON = (
    Stop("mx_sequential", SEQUENTIAL, _check_sequential, dialect="mx"),
    Stop("mx_block", BLOCK, _check_block, dialect="mx"),
    Stop("mx_refused", REFUSED, _check_refused, dialect="mx"),
    Stop("mx_asynchronous", QUEUED, _check_queued, dialect="mx"),
    Stop("mx_portable", EXPORTED, _check_exported, dialect="mx"),
    Stop("mx_devices", DEVICES, _check_devices, dialect="mx"),
)
