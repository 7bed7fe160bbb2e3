"""Programs that the real MXNet and weft.mx must print the same for; imports neither, so that both can read it.

A snippet that raises prints the class of its error. Each is run with mx, nd, sym, autograd, gluon, nn and np at hand.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

FIXTURE = "snippets.json"

ARRAYS = r"""
print(nd.array([[1, 2], [3, 4]]), nd.ones((1, 2)), nd.zeros(3), nd.full((2,), 7), nd.arange(5), nd.eye(2))
print(nd.array([1, 2], dtype='int32'), nd.array(np.zeros((2, 2))).dtype, nd.array(3), nd.ones((1000, 3)))
print(nd.array([1, 2]).dtype, nd.array(nd.array([1], dtype='int8')).dtype, nd.ones((2,), dtype='float64').dtype)
a = nd.array([1, 2, 3], dtype='int32'); print(a + 1.5, a / 2, a * 1.5, 1 / a, a ** 2, -a, abs(a), a % 2, a == 2)
nd.array([1, 2, 3], dtype='int32') + nd.ones(3)
nd.array([1, 2]) // 2
print(nd.ones(2) + nd.ones((3, 2)), 2 - nd.ones(2), 2 ** nd.array([1, 2]), nd.array([5, -5]) % 3, 7 % nd.array([4, -4]))
nd.ones(2) == None
nd.ones(2) + [1, 2]
nd.ones(2) + np.ones(2)
nd.ones((2, 3)) + nd.ones((4, 5))
nd.dot(nd.ones((2, 3)), nd.ones((4, 5)))
x = nd.arange(12).reshape((3, 4)); print(x[1], x[-1], x[0, 1], x[:, 1], x[::2], x[::-1], x[1:1], x[..., 1], x[None].shape)
x = nd.arange(12).reshape((3, 4)); print(x[[0, 2]], x[nd.array([0, 2])], x[[0, 1], [1, 2]], x[0:2, nd.array([0, 2])])
x = nd.arange(12).reshape((3, 4)); print(x[1:, ::-2], x[-2:, 1:3], x[1, 1:3], x[0:1, 1:3], x[:, None, 2].shape)
nd.ones((3,))[5]
nd.ones((2, 2))[1, 5]
nd.ones((2, 2))[1.5]
nd.ones((2, 2))['a']
nd.ones((2, 2))[0, 0, 0]
x = nd.arange(12).reshape((3, 4)); y = x[1]; y[:] = 100; print(x); y = x[:, 1]; y[:] = -1; print(x); y = x[0:2]; y += 1; print(x)
x = nd.arange(12).reshape((3, 4)); y = x.reshape((4, 3)); y[0] = 7; print(x); x[1][2:3] = 55; print(x, y)
x = nd.arange(12).reshape((3, 4)); x[1] = nd.ones(4) * 9; x[0, 1] = 5; x[:, 2] = [1, 2, 3]; x[[0, 2], 3] = 77; print(x)
x = nd.arange(12).reshape((3, 4)); x[::-1, 1:3] = nd.array([[1, 2], [3, 4], [5, 6]]); print(x); x[:] = np.ones(4); print(x)
x = nd.ones((3, 4)); x[:] = nd.ones((2, 2))
x = nd.ones((3, 4)); x[0] = 'abc'
x = nd.ones((3, 4)); x[5] = 1
x = nd.ones((2,)); y = x; y += 1; print(x); y = x.copy(); y += 1; print(x, y); z = x.copyto(mx.cpu(1)); print(z, z.context)
x = nd.ones((2,)); y = nd.zeros((2,), ctx=mx.cpu(1)); x.copyto(y); print(y); print(y.as_in_context(mx.cpu(1)) is y)
x = nd.ones((2,)); nd.elemwise_add(x, x, out=x); print(x); nd.exp(nd.zeros((2,)), out=x); print(x)
nd.exp(nd.zeros((2,)), out=nd.zeros((3,)))
bool(nd.ones(2))
print(bool(nd.ones(1)), bool(nd.zeros(1)), len(nd.ones((3, 2))), [float(i.asscalar()) for i in nd.array([1, 2])], 1 in nd.array([1]))
nd.ones(2).asscalar()
print(nd.ones((2, 3, 4)).reshape((-4, 1, 2, -2)).shape, nd.ones((2, 3, 4)).reshape((0, -3)).shape, nd.ones((2, 3)).reshape(3, 2).shape)
nd.ones((2, 3)).reshape((4, 2))
print(nd.ones((2, 3)).size, nd.ones((2, 3)).ndim, nd.ones((2, 3)).T.shape, nd.ones((2, 3)).context, nd.ones((2, 3)).stype)
nd.ones((2,)).foo
nd.foo(nd.ones((2,)))
nd.relu(np.ones(2))
nd.FullyConnected(nd.ones((1, 2)), nd.ones((3, 2)), nd.ones(3), num_hidden=3, foo=1)
nd.FullyConnected(nd.ones((1, 2)), nd.ones((3, 2)), nd.ones(3))
nd.FullyConnected(nd.ones((1, 2)), num_hidden=3)
print(nd.concat(nd.ones((1, 2)), nd.zeros((1, 2)), dim=0), nd.concatenate([nd.ones((1, 2)), nd.zeros((1, 2))], axis=1))
print(nd.add(nd.ones(2), 1), nd.maximum(nd.array([1, 3]), 2), nd.power(2, nd.array([1, 2])), nd.lesser(1, nd.array([1, 2])), nd.add(1, 2))
print(nd.stack(nd.ones(2), nd.zeros(2), axis=1), nd.split(nd.arange(4), 2, 0), nd.moveaxis(nd.ones((2, 3, 4)), 0, 2).shape)
print(nd.ones((2, 2)).sum(), nd.arange(6).reshape((2, 3)).mean(axis=1), nd.array([3, 4]).norm(), nd.array([1, 3, 2]).argmax(axis=0))
print(nd.array([1.5]).astype('int32'), nd.array([300]).astype('uint8'), nd.array([0, 2]).astype('bool'), nd.cast(nd.array([1]), 'float16'))
print(nd.random.uniform(shape=(2, 3)).shape, nd.random.normal(0, 1, (2,)).shape, nd.random.randint(0, 3, (2,)).dtype, nd.random.randn(2, 3).shape)
print(nd.random.uniform(nd.zeros(2), nd.ones(2), shape=(3,)).shape, nd.random.uniform(1, 1, 4), nd.random.uniform().shape)
mx.random.seed(1); a = nd.random.uniform(shape=(3,)); mx.random.seed(1); print((a == nd.random.uniform(shape=(3,))).sum())
print(mx.cpu(), mx.cpu(1), mx.gpu(2), mx.cpu(0) == mx.cpu(), mx.current_context(), mx.Context('cpu', 1))
with mx.cpu(1): print(mx.current_context(), nd.ones(1).context, nd.array([1]).context)
print(nd.linspace(0, 1, 5), nd.arange(1, 8, 2.5), nd.arange(3, repeat=2), nd.histogram(nd.array([1, 2, 2]), 2))
import pickle; x = pickle.loads(pickle.dumps(nd.ones((2,), ctx=mx.cpu(1)))); print(x, x.context)
print(nd.ones((3, 2)).broadcast_to((3, 2)).shape, nd.ones((1, 2)).broadcast_to((3, 2)).shape)
print(nd.ones((2, 3)).transpose().shape, nd.ones((2, 3, 4)).transpose((1, 0, 2)).shape, nd.ones((2, 3)).swapaxes(0, 1).shape, nd.ones((2, 3)).flatten().shape)
a = nd.ones((1, 2)); b = nd.ones((1, 2)); c = a * b + 2; print(c)
"""

GRADIENTS = r"""
x = nd.array([1., 2, 3]); x.attach_grad(); print(x.grad)
(nd.ones(2) * 2).backward()
x = nd.array([1., 2, 3]); x.attach_grad()\nwith autograd.record():\n    y = x * x\ny.backward(); print(x.grad, y.grad)
x = nd.array([1., 2, 3]); x.attach_grad()\nwith autograd.record():\n    y = x * x\ny.backward(); y.backward()
x = nd.array([1., 2, 3]); x.attach_grad()\nwith autograd.record():\n    y = x * 2\ny.backward(retain_graph=True); y.backward(); print(x.grad)
x = nd.array([1., 2, 3]); x.attach_grad(); g = x.grad\nwith autograd.record():\n    y = x * 2\ny.backward(nd.array([1, 10, 100])); print(g)
x = nd.array([1., 2, 3]); x.attach_grad(grad_req='add')\nfor _ in range(2):\n    with autograd.record(): y = (x * 3).sum()\n    y.backward()\nprint(x.grad)
x = nd.ones(2); x.attach_grad(grad_req='foo')
x = nd.array([1., 2]); x.attach_grad()\nwith autograd.record():\n    x += 1
x = nd.array([1., 2]); x.attach_grad()\nwith autograd.record():\n    y = x * 2; y[0] = 1
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    y = x * x; z = (y.detach() * x).sum()\nz.backward(); print(x.grad)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    z = nd.sin(x); d = autograd.grad(z, [x], create_graph=True, retain_graph=True)[0]; s = d.sum()\ns.backward(); print(d, x.grad)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    y = x * 2; z = y + 1\nautograd.grad(z, y)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    y = x[0:1] * 3\ny.backward(); print(x.grad)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    y = x[nd.array([1, 1])] * 3\ny.backward(); print(x.grad)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    y = x.reshape((2, 1)).T * nd.array([[1, 2]])\ny.backward(); print(x.grad)
x = nd.array([2., 3]); x.attach_grad()\nwith autograd.record():\n    a = x * 2\n    with autograd.pause(): b = x * 5\n    y = a + b\ny.backward(); print(x.grad)
print(autograd.is_recording(), autograd.is_training())\nwith autograd.record(): print(autograd.is_recording(), autograd.is_training())
with autograd.record(train_mode=False): print(autograd.is_recording(), autograd.is_training())
with autograd.train_mode(): print(autograd.is_recording(), autograd.is_training())
x = nd.array([2., 3]); y = nd.array([1., 1]); x.attach_grad(); y.attach_grad()\nwith autograd.record():\n    z = (x * y).sum(); w = (x + y).sum()\nautograd.backward([z, w]); print(x.grad, y.grad)
x = nd.array([2., 3]); x.attach_grad()\nfor i in range(3):\n    with autograd.record(): l = (x * x).sum()\n    l.backward(); x[:] = x - 0.1 * x.grad\nprint(x)
class S(autograd.Function):\n    def forward(self, x):\n        y = 1 / (1 + nd.exp(-x)); self.save_for_backward(y); return y\n    def backward(self, dy):\n        y, = self.saved_tensors; return dy * y * (1 - y)\nx = nd.array([0., 1.]); x.attach_grad()\nwith autograd.record():\n    y = S()(x) * 2\ny.backward(); print(x.grad)
x = nd.ones((2, 2)); x.attach_grad()\nwith autograd.record():\n    y = nd.BatchNorm(x, nd.ones(2), nd.zeros(2), nd.zeros(2), nd.ones(2))\nprint(y.shape)
m = nd.zeros(2); v = nd.ones(2); x = nd.array([[1, 2], [3, 4]]); g = nd.ones(2); g.attach_grad()\nwith autograd.record():\n    y = nd.BatchNorm(x, g, nd.zeros(2), m, v, fix_gamma=False)\nprint(m, v); y.backward(); print(m, v)
with autograd.record(): x = nd.Dropout(nd.ones((100,)), p=0.5)\nprint(sorted(set(x.asnumpy().tolist())))
"""

ENGINE = r"""
b = nd.random.normal(0, -1, (2, 2)); print(b.shape); b.asnumpy()
b = nd.random.normal(0, -1, (2, 2)); c = b + 1; c.wait_to_read()
b = nd.random.normal(0, -1, (2, 2)); nd.waitall()
b = nd.random.normal(0, -1, (2, 2))\ntry: b.asnumpy()\nexcept mx.base.MXNetError as e: print('told', 'scale parameter in gaussian has to be positive' in str(e))\nprint(b.asnumpy().shape)
b = nd.random.normal(0, -1, (2, 2))\ntry: nd.waitall()\nexcept mx.base.MXNetError: print('told')\nnd.waitall(); b.wait_to_read(); print('quiet')
b = nd.random.normal(0, -1, (2, 2)); b[:] = 1; b.asnumpy()
b = nd.random.normal(0, -1, (2, 2)); c = nd.ones((2, 2)); print(c.asnumpy().sum()); d = c + 1; print(d); b.asnumpy()
x = nd.ones((2, 2)); x.attach_grad(); b = nd.random.normal(0, -1, (2, 2))\nwith autograd.record(): y = x * b\ny.backward(); print('queued'); x.grad.asnumpy()
b = nd.random.normal(0, -1, (2, 2)); b.copyto(mx.cpu(1)).asscalar()
b = nd.random.normal(0, -1, (1,)); print(len(b), b.dtype, b.context, b.ndim); bool(b)
with mx.engine.bulk(10):\n    x = nd.ones((2,))\n    for _ in range(5): x = x * 2\nprint(x)
x = nd.ones((2,))\nfor i in range(20): x += i\ny = x + 1; x[:] = 0; print(y, x)
"""


SYMBOLS = r"""
a = sym.var('a'); b = sym.var('b'); print([s.name for s in (a + b, a + 1, 1 - a, a * b, a / b, a ** 2, -a, a > b, abs(a), a.sum(), a % 2, 2 / a)])
a = sym.var('a'); b = sym.var('b'); print(sym.FullyConnected(a, num_hidden=3, name='fc').list_arguments(), sym.BatchNorm(a, name='bn').list_auxiliary_states())
a = sym.var('a'); print(sym.split(a, num_outputs=2).list_outputs(), sym.Group([a, a + 1]), sym.RNN(a, state_size=2, num_layers=1, mode='lstm', state_outputs=True).list_outputs())
s = sym.FullyConnected(sym.var('a'), num_hidden=3, name='fc'); print(s.infer_shape(a=(2, 4)), s.infer_type(a='float32'), s.get_internals().list_outputs())
s = sym.FullyConnected(sym.var('a'), num_hidden=3, name='fc'); s.infer_shape(a=(2, 4), fc_weight=(1, 1))
s = sym.Convolution(sym.var('x'), kernel=(3, 3), num_filter=4, name='c'); s = sym.Pooling(sym.BatchNorm(s, name='b'), kernel=(2, 2), stride=(2, 2)); print(s.infer_shape(x=(1, 3, 8, 8)))
s = sym.FullyConnected(sym.var('a'), num_hidden=3, name='fc'); print(s.eval(a=nd.ones((1, 2)), fc_weight=nd.ones((3, 2)), fc_bias=nd.zeros(3)))
s = sym.SoftmaxOutput(sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'), name='softmax'); e = s.simple_bind(mx.cpu(), data=(2, 3)); e.arg_dict['fc_weight'][:] = 0.5; e.forward(is_train=True, data=nd.ones((2, 3)), softmax_label=nd.array([0, 1])); print(e.outputs); e.backward(); print(e.grad_dict['fc_weight'])
s = sym.var('x') * 2; e = s.bind(mx.cpu(), {'x': nd.array([1, 2])}, args_grad={'x': nd.zeros(2)}); print(e.forward(is_train=True)); e.backward(nd.array([1, 10])); print(e.grad_arrays)
import json; s = sym.Activation(sym.FullyConnected(sym.var('a'), num_hidden=3, name='fc'), act_type='relu', name='r'); j = json.loads(s.tojson()); print(json.dumps(j, sort_keys=True)); t = sym.load_json(s.tojson()); print(t.tojson() == s.tojson(), t)
sym.load_json('{"nodes": 5}')
sym.var('x').asnumpy()
bool(sym.var('x') > 1)
sym.var('x') + sym.var('x').foo
x = sym.var('x'); x += 1
x = sym.var('x'); x[:] = 1
sym.var('x')[0, 0]
with mx.AttrScope(ctx_group='dev1'): print(sym.var('x').attr('ctx_group'), sym.relu(sym.var('y'), name='r').attr_dict())
s = sym.FullyConnected(sym.var('a'), num_hidden=3, name='fc'); print(s(a=sym.var('z')).list_arguments())
"""

GLUON = r"""
net = nn.HybridSequential(); net.add(nn.Dense(4, activation='relu'), nn.BatchNorm(), nn.Dense(2)); print(net); print(net.collect_params()); net.initialize(); net(nd.ones((2, 3))); print(net.collect_params())
net = nn.Dense(3); net.initialize(); net.weight.data()
net = nn.Dense(3); net(nd.ones((1, 2)))
net = nn.Dense(3); net.initialize(mx.init.One()); print(net(nd.ones((2, 4)))); net.hybridize(); print(net(nd.ones((2, 4))))
net = nn.Sequential(); net.add(nn.Conv2D(2, 3, activation='relu'), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(3)); net.initialize(mx.init.Constant(0.5)); print(net, net(nd.ones((1, 1, 6, 6))))
nn.HybridSequential().add(nn.Sequential())
net = nn.Dense(3); net.initialize(ctx=[mx.cpu(1), mx.cpu(2)]); net(nd.ones((1, 2), ctx=mx.cpu(1))); print(net.weight.list_ctx()); net.weight.data()
print(nn.Dense(2, prefix='foo_').collect_params().keys())
nn.Dense(2).export('x')
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x): return x.asnumpy()\nh = H(); print(h(nd.ones((1, 2)))); h.hybridize(); h(nd.ones((1, 2)))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x): return x if x > 0 else -x\nh = H(); h.hybridize(); h(nd.ones((1,)))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x):\n        x += 1\n        return x\nh = H(); print(h(nd.ones((1,)))); h.hybridize(); h(nd.ones((1,)))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x):\n        x[:] = 1\n        return x\nh = H(); print(h(nd.ones((1,)))); h.hybridize(); h(nd.ones((1,)))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x): return [x, [x * 2, x + 1]]\nh = H(); print(h(nd.ones((1,)))); h.hybridize(); print(h(nd.ones((1,))))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x): return 5\nh = H(); h.hybridize(); h(nd.ones((1,)))
class H(nn.HybridBlock):\n    def hybrid_forward(self, F, x):\n        for i in range(3): x = F.relu(x) + i\n        print(x if F is sym else 'array')\n        return x\nh = H(); print(h(nd.ones((1,)))); h.hybridize(); print(h(nd.ones((1,)))); print(h(nd.ones((1,)) * 2))
class N(nn.HybridBlock):\n    def __init__(self, **k):\n        super(N, self).__init__(**k); self.hidden = nn.Dense(10); self.output = nn.Dense(2)\n    def hybrid_forward(self, F, x):\n        print('x: ', x); x = F.relu(self.hidden(x)); print('hidden: ', x); return self.output(x)\nnet = N(); net.initialize(mx.init.One()); x = nd.ones((1, 4)); net(x); net.hybridize(); net(x); print(net(x)); print(net)
net = nn.Dense(1, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})\nfor i in range(3):\n    with autograd.record(): l = gluon.loss.L2Loss()(net(nd.array([[1, 2], [3, 4]])), nd.array([1, 2]))\n    l.backward(); t.step(2)\nprint(net.weight.data(), net.bias.data())
net = nn.Dense(1, in_units=2); net.initialize(mx.init.One()); net.hybridize(); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01})\nfor i in range(3):\n    with autograd.record(): l = gluon.loss.L2Loss()(net(nd.array([[1, 2], [3, 4]])), nd.array([1, 2]))\n    l.backward(); t.step(2)\nprint(net.weight.data(), net.bias.data())
net = nn.Dense(1, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1})\nfor i in range(3):\n    with autograd.record(): l = net(nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
c = [mx.cpu(0), mx.cpu(1)]; net = nn.Dense(1, in_units=2); net.initialize(mx.init.One(), ctx=c); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}); xs = gluon.utils.split_and_load(nd.array([[1, 2], [3, 4]]), c)\nwith autograd.record(): ls = [net(x).sum() for x in xs]\nfor l in ls: l.backward()\nt.step(2); print(net.weight.data(c[0]), net.weight.data(c[1]))
net = nn.HybridSequential(); net.add(nn.Dense(2, in_units=2), nn.BatchNorm(in_channels=2)); net.initialize(mx.init.One()); net.hybridize()\nwith autograd.record(): y = net(nd.array([[1, 2], [3, 4]]))\nprint(net[1].running_mean.data()); y.backward(); print(net[1].running_mean.data(), net[1].running_var.data())
print(gluon.utils.split_data(nd.ones((7, 2)), 2, even_split=False)[0].shape); gluon.utils.split_data(nd.ones((7, 2)), 2)
gluon.Trainer(nn.Dense(1).collect_params(), 'foo')
p = nd.array([[1., 2, 3], [1, 5, 2]]); y = nd.array([2, 0])\nfor l in (gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SoftmaxCELoss(sparse_label=False)): print(l, l(p, y if l._sparse_label else p))
p = nd.array([[1., -2, 3]]); y = nd.array([[1, 0, 1]])\nfor l in (gluon.loss.L1Loss(), gluon.loss.L2Loss(), gluon.loss.SigmoidBCELoss(), gluon.loss.KLDivLoss(), gluon.loss.HuberLoss(), gluon.loss.HingeLoss(), gluon.loss.SquaredHingeLoss(), gluon.loss.LogisticLoss()): print(l, l(p, y).asnumpy().round(4)); l.hybridize(); print(l(p, y).asnumpy().round(4))
import tempfile; d = tempfile.mkdtemp(); net = nn.HybridSequential(); net.add(nn.Dense(3), nn.Dense(2)); net.initialize(mx.init.One()); net(nd.ones((1, 2))); net.save_parameters(d + '/a'); print(sorted(nd.load(d + '/a'))); other = nn.HybridSequential(); other.add(nn.Dense(3), nn.Dense(2)); other.load_parameters(d + '/a'); print(other(nd.ones((1, 2))))
import tempfile; d = tempfile.mkdtemp(); net = nn.HybridSequential(prefix='m_'); net.add(nn.Dense(3, prefix='a_'), nn.BatchNorm(prefix='b_')); net.initialize(mx.init.One()); net.hybridize(); net(nd.ones((1, 2))); net.export(d + '/m'); print(sorted(nd.load(d + '/m-0000.params'))); b = gluon.SymbolBlock.imports(d + '/m-symbol.json', ['data'], d + '/m-0000.params'); print(b(nd.ones((1, 2))))
import tempfile; d = tempfile.mkdtemp(); nd.save(d + '/a', {'w': nd.ones(2)}); nn.Dense(2).load_parameters(d + '/a')
print(nn.Dense(3), nn.Dropout(0.5), nn.Conv2D(4, 3, strides=2, padding=1), nn.MaxPool2D(2), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Activation('relu'), nn.Embedding(3, 2), nn.LeakyReLU(0.1), nn.LayerNorm(), nn.HybridLambda('relu'))
for l, s in ((nn.Conv1D(2, 3), (1, 2, 6)), (nn.Conv2DTranspose(2, 3), (1, 2, 4, 4)), (nn.Conv3D(2, 2), (1, 1, 3, 3, 3)), (nn.LayerNorm(), (2, 3)), (nn.InstanceNorm(), (1, 2, 3)), (nn.PReLU(), (2, 3)), (nn.ELU(), (2, 3)), (nn.GELU(), (2, 3)), (nn.Swish(), (2, 3)), (nn.AvgPool2D(2), (1, 1, 4, 4)), (nn.GlobalMaxPool2D(), (1, 1, 4, 4)), (nn.ReflectionPad2D(1), (1, 1, 3, 3)), (nn.Embedding(5, 2), (2,))):\n    l.initialize(mx.init.Constant(0.5)); x = nd.arange(int(np.prod(s))).reshape(s) / 4; print(l(x).asnumpy().round(4)); l.hybridize(); print(l(x).asnumpy().round(4))
net = nn.Dense(2, in_units=2); other = nn.Dense(2, in_units=2, params=net.params); net.initialize(mx.init.One()); print(other(nd.ones((1, 2)))); print(other.collect_params())
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); net.cast('float64'); print(net(nd.ones((1, 2), dtype='float64')).dtype)
for h in (False, True): net = nn.HybridSequential(); net.add(nn.Dense(2), nn.Dense(1)); net.initialize(mx.init.One()); net.cast('float64'); net.hybridize(h); print(net(nd.ones((1, 2), dtype='float64')))
net = nn.Dense(2); net.initialize(mx.init.One()); net.hybridize(); print(net(nd.ones((1, 2))), net(nd.ones((3, 2)))); net(nd.ones((1, 5)))
net = nn.Dense(2, in_units=2); net.collect_params().setattr('grad_req', 'null'); net.initialize(); net.weight.grad()
net = nn.HybridSequential(); net.add(nn.Dense(2), nn.Dense(1)); s = net(sym.var('data')); print(s.list_arguments()[1:] == list(net.collect_params().keys()), len(net), net[0])
net = nn.HybridSequential()\nwith net.name_scope(): net.add(nn.Dense(2), nn.Dense(1))\nprint(net.collect_params())
"""


RECURRENT = r"""
for l in (rnn.RNN(3), rnn.LSTM(3, 2, bidirectional=True), rnn.GRU(3, layout='NTC', input_size=4)): print(l, l.prefix, l.collect_params(), l.state_info(2))
for l in (rnn.RNNCell(3), rnn.LSTMCell(3), rnn.GRUCell(3, input_size=2), rnn.DropoutCell(0.5), rnn.ZoneoutCell(rnn.RNNCell(2)), rnn.ResidualCell(rnn.GRUCell(2)), rnn.BidirectionalCell(rnn.LSTMCell(2), rnn.LSTMCell(2))): print(l, l.prefix, l.collect_params().keys(), l.state_info(2))
s = rnn.SequentialRNNCell(); s.add(rnn.LSTMCell(2)); s.add(rnn.GRUCell(3)); print(s, s.state_info(1), len(s), s[0])
for l in (rnn.RNN(3), rnn.RNN(2, 2, 'tanh'), rnn.LSTM(3), rnn.LSTM(2, 2, bidirectional=True), rnn.GRU(2, 2), rnn.GRU(2, layout='NTC')):\n    l.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((4, 2, 3)) / 20 - 0.5; print(l(x).asnumpy().round(4)); l.hybridize(); print(l(x).asnumpy().round(4))
for l in (rnn.RNN(3), rnn.LSTM(3, 2), rnn.GRU(3, bidirectional=True)):\n    l.initialize(mx.init.Constant(0.3)); x = nd.ones((4, 2, 3)) / 10; o, s = l(x, l.begin_state(2)); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s])
net = nn.HybridSequential(); net.add(rnn.LSTM(3, 2, bidirectional=True), rnn.GRU(2), nn.Dense(2)); net.initialize(mx.init.Constant(0.2)); x = nd.ones((4, 2, 3)); print(net(x).asnumpy().round(4)); net.hybridize(); print(net(x).asnumpy().round(4), net(nd.ones((4, 5, 3))).shape)
net = rnn.LSTM(3, 2); net.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((4, 2, 3)) / 20; x.attach_grad()\nwith autograd.record(): y = net(x).sum()\ny.backward(); print(x.grad.asnumpy().round(4), net.l0_i2h_weight.grad().asnumpy().round(4))
for c in (rnn.RNNCell(2), rnn.LSTMCell(2), rnn.GRUCell(2), rnn.RNNCell(2, 'relu')):\n    c.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((2, 4, 3)) / 20; o, s = c.unroll(4, x, merge_outputs=True); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s]); c.hybridize(); o, s = c.unroll(4, x); print(type(o), o[3].asnumpy().round(4)); o, s = c(x[:, 0], c.begin_state(2)); print(o.asnumpy().round(4))
c = rnn.LSTMCell(2); c.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((4, 2, 3)) / 20; o, s = c.unroll(4, x, layout='TNC', merge_outputs=True, valid_length=nd.array([2, 4])); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s])
c = rnn.SequentialRNNCell(); c.add(rnn.LSTMCell(2)); c.add(rnn.DropoutCell(0.5)); c.add(rnn.GRUCell(3)); c.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((2, 4, 3)) / 20; o, s = c.unroll(4, x, merge_outputs=True); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s])
c = rnn.BidirectionalCell(rnn.LSTMCell(2), rnn.LSTMCell(2)); c.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((2, 4, 3)) / 20; o, s = c.unroll(4, x, merge_outputs=True); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s]); o, s = c.unroll(4, x, merge_outputs=True, valid_length=nd.array([2, 3])); print(o.asnumpy().round(4))
c = rnn.ZoneoutCell(rnn.RNNCell(2), 0.5, 0.5); c.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((2, 4, 3)) / 20; o, s = c.unroll(4, x, merge_outputs=True); print(o.asnumpy().round(4))
class N(gluon.HybridBlock):\n    def __init__(self):\n        super(N, self).__init__(); self.c = rnn.LSTMCell(3)\n    def hybrid_forward(self, F, x): return self.c.unroll(4, x, merge_outputs=True)[0]\nn = N(); n.initialize(mx.init.Constant(0.3)); x = nd.arange(24).reshape((2, 4, 3)) / 20; print(n(x).asnumpy().round(4)); n.hybridize(); print(n(x).asnumpy().round(4), n(nd.ones((3, 4, 3))).shape)
rnn.LSTM(3, layout='XYZ')
l = rnn.LSTM(3, input_size=4); l.initialize(); l(nd.ones((3, 2, 4)), [nd.ones((1, 2, 2)), nd.ones((1, 2, 3))])
c = rnn.LSTMCell(2); c.initialize(); c(nd.ones((2, 3)))
print(rnn.LSTM(2).begin_state(2), rnn.LSTMCell(2).begin_state(2, ctx=mx.cpu(1)))
l = rnn.LSTM(2, prefix='q_'); s = l(sym.var('x')); print(s, s.list_arguments(), s.list_outputs(), s.infer_shape(x=(4, 2, 3)))
c = rnn.GRUCell(2, prefix='c_'); o, s = c.unroll(2, sym.var('x')); print(len(o), sym.Group(o).infer_shape(x=(3, 2, 5)))
import tempfile; d = tempfile.mkdtemp(); net = nn.HybridSequential(prefix='m_'); net.add(rnn.LSTM(3, 2, prefix='a_'), nn.Dense(2, prefix='d_')); net.initialize(mx.init.Constant(0.3)); net.hybridize(); x = nd.ones((4, 2, 3)); y = net(x); net.export(d + '/m'); b = gluon.SymbolBlock.imports(d + '/m-symbol.json', ['data'], d + '/m-0000.params'); print(b(x).asnumpy().round(4), b(nd.ones((4, 5, 3))).shape)
"""


TRAINING = r"""
for s in (mx.lr_scheduler.FactorScheduler(3, 0.5, 0.1, 1.0), mx.lr_scheduler.MultiFactorScheduler([2, 5, 9], 0.1, 1.0), mx.lr_scheduler.PolyScheduler(10, 1.0), mx.lr_scheduler.PolyScheduler(10, 1.0, 3, 0.1, 2, 0.05), mx.lr_scheduler.CosineScheduler(10, 1.0, 0.1), mx.lr_scheduler.CosineScheduler(10, 0.5, 0.1, warmup_steps=3, warmup_begin_lr=0.1), mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=1.0, warmup_steps=2, warmup_mode='constant')): print([round(s(i), 6) for i in range(14)])
mx.lr_scheduler.FactorScheduler(0)
mx.lr_scheduler.MultiFactorScheduler([3, 2])
mx.lr_scheduler.CosineScheduler(0)
net = nn.Dense(1, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1.0, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(1, 0.5)})\nfor i in range(4):\n    with autograd.record(): l = net(nd.ones((1, 2)))\n    l.backward(); t.step(1); print(t.learning_rate, net.weight.data())
y = nd.array([0, 1, 1, 0]); p = nd.array([[.7, .3], [.4, .6], [.8, .2], [.9, .1]])\nfor m in ('acc', 'f1', 'mcc', 'ce', 'nll_loss', mx.metric.Perplexity(None), mx.metric.Perplexity(1), mx.metric.F1(average='micro'), mx.metric.Loss()): m = mx.metric.create(m); m.update([y], [p]); print(type(m).__name__, m.name, round(m.get()[1], 5))
y = nd.array([1., 2, 4]); p = nd.array([1.5, 2, 3])\nfor m in ('mae', 'mse', 'rmse', 'pearsonr'): m = mx.metric.create(m); m.update([y], [p]); m.update([y * 2], [p]); print(m, m.get_name_value()[0][0], round(m.get()[1], 5))
m = mx.metric.TopKAccuracy(2); m.update([nd.array([0, 1, 2])], [nd.array([[.1, .2, .7], [.1, .5, .4], [.2, .3, .5]])]); print(m.get()); m.reset(); print(m.get(), m.get_config())
m = mx.metric.create(['acc', 'ce']); m.add(mx.metric.MAE()); print(m, m.get()); m = mx.metric.CustomMetric(lambda l, p: abs(l - p).sum()); m.update([nd.ones(3)], [nd.zeros(3)]); print(m.name, float(m.get()[1]))
mx.metric.create('foo')
m = mx.metric.Accuracy(); m.update([nd.ones(3)], [nd.ones(4)])
m = mx.metric.Accuracy(); m.update([nd.ones(3), nd.ones(3)], [nd.ones(3)])
m = mx.metric.Accuracy(output_names=['o'], label_names=['l']); m.update_dict({'l': nd.array([1, 0]), 'x': nd.ones(1)}, {'o': nd.array([[0, 1], [1, 0]])}); print(m.get())
kv = mx.kv.create('local'); kv.init(3, nd.ones((2, 3)) * 2); a = nd.zeros((2, 3)); kv.pull(3, out=a); print(a, kv.type, kv.rank, kv.num_workers); kv.push(3, nd.ones((2, 3)) * 8); kv.pull(3, out=a); print(a); c = [mx.cpu(0), mx.cpu(1)]; b = [nd.ones((2, 3), ctx=x) for x in c]; kv.push(3, b); kv.pull(3, out=b); print(b)
kv = mx.kv.create('device'); kv.init([1], [nd.ones(2)]); kv.init(2, nd.zeros(3)); kv.push([2], [nd.ones(3)]); a = nd.zeros(3); kv.pull([2], [a]); print(a); kv._set_updater(lambda k, g, w: w.__isub__(g * 0.1)); kv.push(1, [nd.ones(2), nd.ones(2)]); b = nd.zeros(2); kv.pull(1, b); print(b)
kv = mx.kv.create('local'); kv.init(0, nd.ones(2)); kv.set_optimizer(mx.optimizer.create('sgd', learning_rate=0.1)); kv.push(0, nd.ones(2)); a = nd.zeros(2); kv.pull(0, a); print(a)
kv = mx.kv.create('local'); kv.push(5, nd.ones(1))
kv = mx.kv.create('local'); kv.init(5, nd.ones(1)); kv.init(5, nd.ones(1))
import tempfile; d = tempfile.mkdtemp(); net = nn.Dense(1, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = net(nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\n    if i == 1: t.save_states(d + '/s'); t = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1}); t.load_states(d + '/s')\nprint(net.weight.data().asnumpy().round(4))
"""

OPTIMIZERS = r"""
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01, 'clip_gradient': 0.5})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'nag', {'learning_rate': 0.1, 'momentum': 0.9})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'nag', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'signum', {'learning_rate': 0.1, 'wd_lh': 0.01})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'signum', {'learning_rate': 0.1, 'momentum': 0.0})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1, 'beta1': 0.8, 'wd': 0.01})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adagrad', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adadelta', {})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adadelta', {'rho': 0.8, 'wd': 0.01})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'adamax', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'nadam', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'rmsprop', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'rmsprop', {'learning_rate': 0.1, 'centered': True})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'ftrl', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'ftml', {'learning_rate': 0.1})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'lamb', {'learning_rate': 0.1, 'wd': 0.01})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
net = nn.Dense(2, in_units=2); net.initialize(mx.init.One()); t = gluon.Trainer(net.collect_params(), 'lamb', {'learning_rate': 0.1, 'upper_bound': 2.0, 'bias_correction': False})\nfor i in range(4):\n    with autograd.record(): l = (net(nd.array([[1, 2], [3, -4]])) - nd.array([[1, 2], [3, 4]])) ** 2\n    l.backward(); t.step(2)\nprint(net.weight.data().asnumpy().round(4), net.bias.data().asnumpy().round(4))
"""

DATA = r"""
d = gluon.data.ArrayDataset(np.arange(10).reshape((5, 2)), np.arange(5)); print(len(d), d[1][0]); l = gluon.data.DataLoader(d, 2); print(len(l), [[x.asnumpy().tolist() for x in b] for b in l], [x.dtype for b in l for x in b][:2])
d = gluon.data.ArrayDataset(nd.arange(10).reshape((5, 2)), nd.arange(5)); print([[x.asnumpy().tolist() for x in b] for b in gluon.data.DataLoader(d, 2, last_batch='discard')], len(gluon.data.DataLoader(d, 2, last_batch='discard')))
d = gluon.data.SimpleDataset(list(range(7))); l = gluon.data.DataLoader(d, 3, last_batch='rollover'); print([x.asnumpy().tolist() for x in l], [x.asnumpy().tolist() for x in l], len(l))
d = gluon.data.SimpleDataset(list(range(7))); l = gluon.data.DataLoader(d, 3, num_workers=2); print([x.asnumpy().tolist() for x in l]); print(sorted(sum([x.asnumpy().tolist() for x in gluon.data.DataLoader(d, 3, shuffle=True)], [])))
np.random.seed(3); print(list(gluon.data.RandomSampler(8)), list(gluon.data.SequentialSampler(3)), list(gluon.data.BatchSampler(gluon.data.SequentialSampler(7), 3, 'keep')))
d = gluon.data.SimpleDataset([1, 2, 3, 4]); print(list(d.filter(lambda x: x % 2)), list(d.take(2)), [list(d.shard(3, i)) for i in range(3)], list(d.transform(lambda x: x * 2)), list(gluon.data.ArrayDataset([1, 2], [3, 4]).transform_first(lambda x: -x)))
gluon.data.ArrayDataset([1, 2], [3])
gluon.data.DataLoader([1, 2])
gluon.data.DataLoader([1, 2], 1, shuffle=True, sampler=gluon.data.SequentialSampler(2))
def f(x): raise ValueError('broken')\nl = gluon.data.DataLoader(gluon.data.SimpleDataset([1, 2]).transform(f), 1); next(iter(l))
T = gluon.data.vision.transforms; x = nd.array(np.arange(2 * 3 * 3).reshape((2, 3, 3)), dtype='uint8'); print(T.ToTensor()(x)); y = T.ToTensor()(x); print(T.Normalize((.1, .2, .3), .5)(y).asnumpy().round(4), T.Cast('float32')(x).dtype)
T = gluon.data.vision.transforms; x = nd.array(np.arange(6 * 8 * 3).reshape((6, 8, 3)), dtype='uint8'); print(T.CenterCrop((4, 2))(x).shape, T.CenterCrop((4, 2))(x).asnumpy()[:, :, 0], T.CropResize(1, 2, 3, 4)(x).asnumpy()[..., 1], T.RandomResizedCrop(5)(x).shape)
T = gluon.data.vision.transforms; x = nd.array(np.arange(4 * 4 * 1).reshape((4, 4, 1)), dtype='float32'); print(T.Resize(8)(x).asnumpy()[..., 0].round(3), T.Resize((2, 4))(x).shape, T.Resize(2, True)(nd.zeros((4, 8, 3))).shape)
T = gluon.data.vision.transforms; c = T.Compose([T.Resize(4), T.ToTensor(), T.Normalize(0.5, 0.5)]); print(c(nd.ones((8, 8, 3), dtype='uint8')).shape, c)
x = nd.array(np.arange(12).reshape((2, 2, 3)), dtype='uint8'); print(nd.image.flip_left_right(x), nd.image.flip_top_bottom(x), nd.image.crop(x, 0, 1, 2, 1), nd.image.to_tensor(nd.stack(x, x)).shape)
np.random.seed(0); x = nd.array(np.random.randint(0, 255, (4, 4, 3)), dtype='float32'); print(nd.image.random_brightness(x, 0.5, 0.5).asnumpy().round(2)[0], nd.image.random_contrast(x, 0.5, 0.5).asnumpy().round(2)[0])
nd.image.crop(nd.ones((2, 2, 3)), 1, 1, 2, 2)
"""


MODULES = r"""
i = mx.io.NDArrayIter(np.arange(10).reshape((5, 2)), np.arange(5), 2); print(i.provide_data, i.provide_label, i.num_data, i.batch_size); print([(b.data[0].asnumpy().tolist(), b.label[0].asnumpy().tolist(), b.pad) for b in i]); i.reset(); print(len(list(i)))
i = mx.io.NDArrayIter({'a': nd.ones((3, 2)), 'b': nd.zeros((3, 1))}, None, 2, last_batch_handle='discard'); print([d.name for d in i.provide_data], i.provide_label, [[x.shape for x in b.data] for b in i])
i = mx.io.NDArrayIter(np.arange(5), np.arange(5), 2, last_batch_handle='roll_over'); print([b.data[0].asnumpy().tolist() for b in i]); i.reset(); print([b.data[0].asnumpy().tolist() for b in i])
i = mx.io.ResizeIter(mx.io.NDArrayIter(np.arange(4), None, 2), 3); print([b.data[0].asnumpy().tolist() for b in i]); print(mx.io.DataBatch([nd.ones((2, 3))], [nd.ones(2)]), mx.io.DataDesc('x', (1, 2)))
import tempfile; d = tempfile.mkdtemp(); s = sym.SoftmaxOutput(sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'), name='softmax'); mx.model.save_checkpoint(d + '/m', 3, s, {'fc_weight': nd.ones((2, 3)), 'fc_bias': nd.array([0, 1])}, {}); t, a, x = mx.model.load_checkpoint(d + '/m', 3); print(t.list_arguments(), a, x); m = mx.mod.Module.load(d + '/m', 3, context=mx.cpu()); m.bind([('data', (2, 3))], for_training=False); m.forward(mx.io.DataBatch([nd.ones((2, 3))])); print(m.get_outputs()[0].asnumpy().round(4))
s = sym.BatchNorm(sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'), name='bn'); m = mx.mod.Module(s, label_names=None); m.bind([('data', (2, 3))], for_training=False); m.init_params(mx.init.One()); print({k: v.shape for k, v in m.get_params()[0].items()}, m.get_params()[1]); m.forward(mx.io.DataBatch([nd.ones((2, 3))])); print(m.get_outputs()[0], m.output_names)
s = sym.SoftmaxOutput(sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'), name='softmax'); i = mx.io.NDArrayIter(np.arange(12).reshape((6, 2)) / 6., np.array([0, 1, 0, 1, 1, 1]), 2); m = mx.mod.Module(s); m.fit(i, num_epoch=3, optimizer_params={'learning_rate': 0.5}, initializer=mx.init.Constant(0.1)); print([x.asnumpy().round(4) for x in m.get_params()[0].values()]); i.reset(); print(m.score(i, 'acc')); print(m.predict(i).asnumpy().round(4))
s = sym.LinearRegressionOutput(sym.FullyConnected(sym.var('data'), num_hidden=1, name='fc'), name='lro'); i = mx.io.NDArrayIter(np.arange(10).reshape((5, 2)) / 6., np.arange(5), 2, label_name='lro_label'); m = mx.mod.Module(s, label_names=('lro_label',)); m.bind(i.provide_data, i.provide_label, inputs_need_grad=True); m.init_params(mx.init.Constant(0.1)); m.init_optimizer(optimizer='adam'); b = next(iter(i)); m.forward(b, is_train=True); m.backward(); print(m.get_input_grads()[0]); m.update(); print([x.asnumpy().round(4) for x in m.get_params()[0].values()], m.predict(i).shape)
m = mx.mod.Module(sym.var('x') * 2)
m = mx.mod.Module(sym.var('data') * 2, label_names=None); m.forward(mx.io.DataBatch([nd.ones((1,))]))
s = sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'); m = mx.mod.Module(s, label_names=None); m.bind([('data', (2, 3))]); m.set_params({'fc_weight': nd.ones((2, 3))}, {})
s = sym.FullyConnected(sym.var('data'), num_hidden=2, name='fc'); m = mx.mod.Module(s, label_names=None); m.bind([('data', (2, 3))]); m.set_params({'fc_weight': nd.ones((2, 3)), 'fc_bias': nd.ones(2), 'x': nd.ones(1)}, {})
"""


LAYERS = r"""
for l, s in ((nn.Dense(3), (2, 4)), (nn.Dense(3, flatten=False, use_bias=False, activation='tanh'), (2, 3, 4)), (nn.Conv1D(4, 3, groups=2, padding=1), (2, 4, 6)), (nn.Conv2D(4, (3, 2), strides=2, dilation=(1, 2), activation='relu'), (1, 3, 7, 8)), (nn.Conv3D(2, 2, use_bias=False), (1, 2, 4, 4, 4)), (nn.Conv1DTranspose(3, 3, strides=2, output_padding=1), (1, 2, 5)), (nn.Conv2DTranspose(3, 3, strides=2, padding=1, output_padding=1), (1, 2, 4, 4)), (nn.Conv3DTranspose(2, 2), (1, 1, 2, 2, 2))):\n    l.initialize(mx.init.Constant(0.25)); x = nd.arange(int(np.prod(s))).reshape(s) / 50 - 0.3; x.attach_grad()\n    for h in (0, 1):\n        l.hybridize(bool(h))\n        with autograd.record(): y = l(x)\n        y.backward(); print(l, y.shape, y.asnumpy().round(3).reshape(-1)[:9], x.grad.asnumpy().round(3).reshape(-1)[:9], [(k, v.shape, float(v.grad().sum().asscalar().round(2))) for k, v in l.collect_params().items()])
for l, s in ((nn.BatchNorm(), (4, 3)), (nn.BatchNorm(axis=-1, scale=False, epsilon=1e-3), (4, 2, 3)), (nn.BatchNorm(center=False, use_global_stats=True), (4, 3)), (nn.BatchNormReLU(), (2, 3, 2, 2)), (nn.LayerNorm(), (4, 3)), (nn.LayerNorm(axis=1, center=False), (2, 3, 2)), (nn.InstanceNorm(), (2, 3, 4)), (nn.InstanceNorm(axis=2, scale=True), (2, 3, 4)), (nn.GroupNorm(num_groups=2), (2, 4, 3))):\n    l.initialize(); x = nd.sin(nd.arange(int(np.prod(s))).reshape(s)); x.attach_grad()\n    for h in (0, 1):\n        l.hybridize(bool(h))\n        with autograd.record(): y = (l(x) * x).sum()\n        y.backward(); print(l, l(x).asnumpy().round(3).reshape(-1)[:9], x.grad.asnumpy().round(2).reshape(-1)[:9], [(k, v.shape, v.grad_req) for k, v in l.collect_params().items()])
for l, s in ((nn.MaxPool1D(), (1, 2, 5)), (nn.MaxPool2D(3, 2, 1), (1, 1, 6, 6)), (nn.MaxPool2D(2, ceil_mode=True), (1, 1, 5, 5)), (nn.MaxPool3D(), (1, 1, 4, 4, 4)), (nn.AvgPool1D(3, 1, 1), (1, 2, 5)), (nn.AvgPool2D(3, 2, 1, count_include_pad=False), (1, 1, 5, 5)), (nn.AvgPool3D(), (1, 1, 2, 2, 2)), (nn.GlobalMaxPool1D(), (1, 2, 3)), (nn.GlobalMaxPool3D(), (1, 1, 2, 2, 2)), (nn.GlobalAvgPool1D(), (1, 2, 3)), (nn.GlobalAvgPool2D(), (1, 2, 3, 3)), (nn.GlobalAvgPool3D(), (1, 1, 2, 2, 2)), (nn.ReflectionPad2D((0, 0, 0, 0, 1, 2, 2, 1)), (1, 1, 4, 4))):\n    x = nd.cos(nd.arange(int(np.prod(s))).reshape(s)); x.attach_grad()\n    for h in (0, 1):\n        l.hybridize(bool(h))\n        with autograd.record(): y = l(x)\n        y.backward(); print(l, y.shape, y.asnumpy().round(3).reshape(-1)[:9], x.grad.asnumpy().round(3).reshape(-1)[:12])
for l in (nn.Activation('softrelu'), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(mx.init.Constant(0.4), in_channels=3), nn.ELU(0.5), nn.GELU(), nn.Swish(2.0), nn.Flatten(), nn.HybridLambda(lambda F, x: F.relu(x) + 1), nn.Lambda('tanh')):\n    l.initialize(); x = nd.array([[-1, 0.5, 2], [0.1, -0.2, 3]]); x.attach_grad()\n    for h in (0, 1):\n        l.hybridize(bool(h))\n        with autograd.record(): y = l(x)\n        y.backward(); print(y.asnumpy().round(3), x.grad.asnumpy().round(3))
n = nn.Embedding(5, 3); n.initialize(mx.init.Constant(0.5)); x = nd.array([[0, 4], [1, 1]])\nfor h in (0, 1):\n    n.hybridize(bool(h))\n    with autograd.record(): y = n(x)\n    y.backward(); print(y.shape, n.weight.grad())
for n in (gluon.contrib.nn.HybridConcurrent(axis=1), gluon.contrib.nn.Concurrent(axis=1)):\n    n.add(nn.Dense(2), gluon.contrib.nn.Identity(), nn.Dense(1)); n.initialize(mx.init.One()); print(n(nd.ones((2, 3)))); n.hybridize(); print(n(nd.ones((2, 3)) * 2))
for k, s in ((gluon.contrib.nn.PixelShuffle1D(2), (1, 4, 3)), (gluon.contrib.nn.PixelShuffle2D((1, 2)), (1, 4, 3, 2)), (gluon.contrib.nn.PixelShuffle3D(2), (1, 8, 2, 1, 1))):\n    x = nd.arange(int(np.prod(s))).reshape(s); print(k, k(x).shape, k(x).asnumpy().reshape(-1)); k.hybridize(); print(k(x).asnumpy().reshape(-1))
L = gluon.loss; p = nd.array([[0.2, -0.5, 1.3], [1.0, 0.1, -0.7]]); q = nd.array([[1, 0, 1], [0, 1, 1]]); w = nd.array([[2], [0.5]])\nfor l in (L.L1Loss(), L.L2Loss(2.0), L.SigmoidBCELoss(), L.SigmoidBCELoss(from_sigmoid=True), L.KLDivLoss(), L.KLDivLoss(from_logits=False), L.HuberLoss(0.3), L.HingeLoss(), L.SquaredHingeLoss(0.5), L.LogisticLoss(), L.LogisticLoss(label_format='binary'), L.SoftmaxCELoss(sparse_label=False), L.SoftmaxCELoss(sparse_label=False, from_logits=True), L.PoissonNLLLoss(), L.PoissonNLLLoss(from_logits=False)):\n    x = p if 'sigmoid=True' not in repr(l) else nd.sigmoid(p); x = nd.abs(x) + 0.1 if isinstance(l, L.PoissonNLLLoss) or getattr(l, '_from_sigmoid', 0) else x; x = nd.clip(x, 0.05, 0.95) if getattr(l, '_from_sigmoid', 0) else x; x = x.copy(); x.attach_grad()\n    for h in (0, 1):\n        l.hybridize(bool(h))\n        with autograd.record(): a = l(x, q)\n        autograd.backward([a]); b = type(l)(**{k[1:]: v for k, v in vars(l).items() if k in ('_from_logits', '_margin', '_rho', '_label_format', '_sparse_label')})(x, q, w); print(l, a.asnumpy().round(3), b.asnumpy().round(3), x.grad.asnumpy().round(3))
L = gluon.loss; a = nd.array([[1, 2, 3], [0.5, -1, 1]]); b = nd.array([[1, 2, 2.5], [1, 1, -1]]); y = nd.array([1, -1])\nfor l in (L.CosineEmbeddingLoss(), L.CosineEmbeddingLoss(margin=0.2)):\n    for h in (0, 1): l.hybridize(bool(h)); print(l(a, b, y).asnumpy().round(4))\nt = L.TripletLoss(); print(t(a, b, a * 2), L.SDMLLoss()(a, b).asnumpy().round(4))
L = gluon.loss; p = nd.sin(nd.arange(40)).reshape((2, 5, 4)); y = nd.array([[1, 0, -1], [2, 1, 0]])\nfor l in (L.CTCLoss(), L.CTCLoss(weight=2.0)):\n    for h in (0, 1): l.hybridize(bool(h)); print(l, l(p, y).asnumpy().round(3))\n    l.hybridize(False); print(l(p, y, None, nd.array([2, 3])).asnumpy().round(3), l(p, y, nd.array([4, 5])).asnumpy().round(3)); l.hybridize(); l(p, y); l(p, y, nd.array([4, 5]))
L = gluon.loss; l = L.SoftmaxCELoss(axis=1); p = nd.sin(nd.arange(24)).reshape((2, 3, 4)); y = nd.array(np.arange(8).reshape((2, 4)) % 3); print(l(p, y).asnumpy().round(3)); l.hybridize(); print(l(p, y).asnumpy().round(3))
"""

OLD_CODE = r"""
w = [nd.array([1., 2]), nd.array([[3., 4]])]; g = [nd.array([.1, .2]), nd.array([[.3, -.4]])]; m = [nd.zeros(2), nd.ones((1, 2))]\nnd.multi_sgd_update(w[0], g[0], w[1], g[1], out=w, lrs=(0.1, 0.2), wds=(0., 0.01), num_weights=2); print(w)\nnd.multi_sgd_mom_update(w[0], g[0], m[0], w[1], g[1], m[1], out=w, lrs=(0.1, 0.2), wds=(0., 0.01), momentum=0.9, rescale_grad=0.5, num_weights=2); print(w[1].asnumpy().round(4), m[1].asnumpy().round(4))
w = [nd.array([1., 2], dtype='float16'), nd.array([[3., 4]], dtype='float16')]; g = [nd.array([.1, .2], dtype='float16'), nd.array([[.3, -.4]], dtype='float16')]; m = [nd.zeros(2), nd.ones((1, 2))]; f = [x.astype('float32') for x in w]\nnd.multi_mp_sgd_update(w[0], g[0], f[0], w[1], g[1], f[1], out=w, lrs=(0.1, 0.2), wds=(0., 0.01), num_weights=2); print(w, f)\nnd.multi_mp_sgd_mom_update(w[0], g[0], m[0], f[0], w[1], g[1], m[1], f[1], out=w, lrs=(0.1, 0.2), wds=(0., 0.01), momentum=0.9, clip_gradient=0.3, num_weights=2); print(w, m, f)
a, b = nd.ones(2), nd.ones((2, 2)); nd.reset_arrays(a, b, num_arrays=2); print(a, b)
net = nn.Sequential(); net.add(nn.Dense(4), nn.Dropout(0.5), nn.BatchNorm(), nn.Dense(2)); net.initialize(); net.summary(nd.ones((2, 3)))
net = nn.HybridSequential(); net.add(nn.Dense(2)); net.initialize(); net.hybridize(); net(nd.ones((1, 2))); net.summary(nd.ones((1, 2)))
print(nd.contrib.foreach(lambda x, s: (x + s, x * s), nd.arange(6).reshape((3, 2)), nd.ones(2)))
print(nd.contrib.while_loop(lambda i, s: i <= 3, lambda i, s: ([i + s, i * s], (i + 1, s + i)), (nd.array([0.]), nd.array([1.])), max_iterations=6)[1], nd.contrib.cond(nd.array([1.]), lambda: nd.ones(1), lambda: nd.zeros(1)))
x = nd.array([1., 2, 3]); x.attach_grad()\nwith autograd.record(): y, s = nd.contrib.foreach(lambda a, b: (a * b, a + b), x, nd.array([1.])); l = y.sum() + s\nl.backward(); print(x.grad, y, s)
print(nd.contrib.isnan(nd.array([1, np.nan])), nd.contrib.isinf(nd.array([np.inf, 1])), nd.contrib.isfinite(nd.array([np.inf, 1])))
nd.contrib.foreach(lambda a, b: (a, b), 3, nd.ones(1))
class Sig(mx.operator.CustomOp):\n    def forward(self, is_train, req, in_data, out_data, aux): self.assign(out_data[0], req[0], 1 / (1 + nd.exp(-in_data[0])))\n    def backward(self, req, out_grad, in_data, out_data, in_grad, aux): self.assign(in_grad[0], req[0], out_grad[0] * out_data[0] * (1 - out_data[0]))\n@mx.operator.register('sig')\nclass SigProp(mx.operator.CustomOpProp):\n    def __init__(self, scale='1'): super().__init__(need_top_grad=True)\n    def create_operator(self, ctx, shapes, dtypes): return Sig()\nx = nd.array([0., 1.]); x.attach_grad()\nwith autograd.record(): y = nd.Custom(x, op_type='sig', scale=2) * 2\ny.backward(); print(y, x.grad); nd.Custom(nd.ones(2), op_type='nope')
mx.viz.print_summary(sym.SoftmaxOutput(sym.FullyConnected(sym.Pooling(sym.BatchNorm(sym.Convolution(sym.var('data'), kernel=(3, 3), num_filter=4, name='c'), name='b'), global_pool=True, kernel=(1, 1), name='p'), num_hidden=3, name='f'), name='s'), shape={'data': (2, 3, 8, 8)})
@mx.init.register\nclass MyInit(mx.init.Initializer):\n    def _init_weight(self, name, arr): arr[:] = 7\nnet = nn.Dense(2, in_units=2, weight_initializer='myinit'); net.initialize(); print(net.weight.data()); net = nn.Dense(2, in_units=2); net.initialize(init=MyInit()); print(net.weight.data(), net.bias.data())
for i in (mx.init.Zero(), mx.init.One(), mx.init.Constant(3), mx.init.Uniform(0.1), mx.init.Normal(), mx.init.Orthogonal(), mx.init.Xavier(), mx.init.MSRAPrelu(), mx.init.Bilinear(), mx.init.LSTMBias()): print(i.dumps())
net = nn.Dense(3, in_units=4, weight_initializer=mx.init.Orthogonal(1.0)); net.initialize(); w = net.weight.data(); print(nd.dot(w, w.T).asnumpy().round(3) + 0)
p = gluon.Parameter('odd', shape=(2,)); p.initialize()
net = nn.Dense(1); net.initialize(); t = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': .1})\nwith autograd.record(): l = net(nd.ones((2, 3)))\nt.step(1)
for m in ('acc', 'ce', 'f1', 'mae', 'mse', 'rmse', 'nll_loss', 'pearsonr', 'mcc', 'loss'): k = mx.metric.create(m); k.update([nd.array([0, 1, 1])], [nd.array([[.9, .1], [.2, .8], [.6, .4]])] if m not in ('mae', 'mse', 'rmse', 'pearsonr') else [nd.array([0.1, 0.7, 1.5])]); print(m, k.get()[0], round(k.get()[1], 4))
class T(nn.HybridBlock):\n    def hybrid_forward(self, F, x, *a): return (x, x * 2) if not isinstance(x, (list, tuple)) else x[0] + x[1]\nfor S in (nn.Sequential, nn.HybridSequential):\n    for h in (False, True): n = S(); n.add(T(), T()); n.hybridize(h); print(n(nd.ones((1,))))
nn.HybridSequential()(nd.ones(1), nd.ones(1))
x = nd.array([1., 2]); x.attach_grad()\nwith autograd.record(): y = x[0:1]; z = (y * 3).sum()\nz.backward(); x[:] = 5; print(x.grad, y)
x = nd.arange(3).reshape((1, 3)); y = x[::-1, 0:2]; y += 10; print(x); y = x[:, ::3]; y[:] = -1; print(x, x[0].T is x)
def g(f, x):\n    x = nd.array(x); x.attach_grad()\n    with autograd.record(): y = f(x)\n    y.backward(nd.arange(1, y.size + 1).reshape(y.shape)); print(x.grad.asnumpy().tolist(), y.asnumpy().tolist())\ng(lambda x: x.max(axis=1), [[1, 1, 0], [2, 3, 3]]); g(lambda x: x.min(axis=0), [[1, 1, 0], [1, 3, 3]]); g(lambda x: nd.max(x), [[1, 1, 0], [1, 0, 0]]); g(lambda x: nd.LeakyReLU(x, act_type='elu'), [0, 1.]); g(lambda x: nd.hard_sigmoid(x), [-2.5, 0, 2.5]); g(lambda x: nd.gamma(x), [2., 3.]); g(lambda x: nd.Pooling(x, global_pool=True, kernel=(1, 1), pool_type='max'), [[[[1, 2], [2, 0]]]])
print(sym.arange(3).eval()[0], sym.full((2,), 3).eval()[0], sym.eye(2).eval()[0], sym.SwapAxis(sym.var('x'), dim1=0, dim2=1).name, sym.swapaxes(sym.var('x'), dim1=0, dim2=1).name, sym.concat(sym.var('x'), sym.var('y'), dim=0).name, sym.split(sym.var('x'), num_outputs=2).name)
"""

LOOPS = r"""
class N(gluon.HybridBlock):\n    def hybrid_forward(self, F, x, s): return F.contrib.foreach(lambda a, b: (a * b[0], [a + b[0]]), x, [s])\nfor hybrid in (False, True):\n    n = N(); n.hybridize(hybrid); x = nd.array([[1., 2], [3, 4], [5, 6]]); x.attach_grad()\n    with autograd.record(): y, s = n(x, nd.ones(2)); l = y.sum() + (s[0] ** 2).sum()\n    l.backward(); print(x.grad, y, s)
class N(gluon.HybridBlock):\n    def __init__(self):\n        super().__init__()\n        with self.name_scope(): self.d = nn.Dense(3, flatten=False, in_units=3)\n    def hybrid_forward(self, F, x, s): return F.contrib.foreach(lambda a, b: (self.d(a) + b, F.tanh(self.d(b))), x, s)\nn = N(); n.initialize(mx.init.Constant(0.1)); n.hybridize(); x = nd.arange(12).reshape((2, 2, 3))\nwith autograd.record(): y, s = n(x, nd.ones((2, 3))); l = y.sum() + s.sum()\nl.backward(); print(y, s, n.d.weight.grad())
class N(gluon.HybridBlock):\n    def hybrid_forward(self, F, i, a): return F.contrib.while_loop(lambda i, a: i < 3, lambda i, a: ([a + i], [i + 1, a * 2]), [i, a], max_iterations=5)\nn = N(); n.hybridize(); y, v = n(nd.array([0.]), nd.array([1.])); print(y, v)
class N(gluon.HybridBlock):\n    def hybrid_forward(self, F, i, a): return F.contrib.while_loop(lambda i, a: i < 3, lambda i, a: ([a + i], [i + 1, a * 2]), [i, a], max_iterations=5)\nn = N(); n.hybridize(); a = nd.array([1.]); a.attach_grad()\nwith autograd.record(): y, v = n(nd.array([0.]), a); l = y[0].sum() + v[1]\nl.backward(); print(a.grad)
class N(gluon.HybridBlock):\n    def hybrid_forward(self, F, p, x): return F.contrib.cond(p > 0, lambda: x + 1, lambda: x * p)\nn = N(); n.hybridize(); x = nd.array([1., 2]); x.attach_grad()\nfor p in (1., -2.):\n    with autograd.record(): y = n(nd.array([p]), nd.array([1.]))\n    print(y)
import json; w = sym.var('w'); d = sym.var('data'); s = sym.var('s'); out, st = sym.contrib.foreach(lambda x, s: (sym.FullyConnected(x, w, no_bias=True, num_hidden=3) + s[0] * 2, [s[0] + 1]), d, [s]); g = json.loads(sym.Group([out, st[0]]).tojson()); print(g['nodes'], g['heads'], g['arg_nodes'], g['node_row_ptr'])
import json; o, v = sym.contrib.while_loop(lambda i, a: i < 5, lambda i, a: ([a + i], [i + 1, a * 2]), [sym.var('i'), sym.var('a')], max_iterations=4); g = json.loads(sym.Group(list(o) + list(v)).tojson()); print(g['nodes'], g['heads'])
import json; c = sym.contrib.cond(sym.var('p') > 0, lambda: sym.var('x') + 1, lambda: sym.var('x') * sym.var('y')); g = json.loads(c.tojson()); print(g['nodes'], g['heads']); c = sym.load_json(c.tojson()); print(c.eval(p=nd.array([1.]), x=nd.array([2.]), y=nd.array([3.])), c.eval(p=nd.array([0.]), x=nd.array([2.]), y=nd.array([3.])))
d = sym.var('data'); s = sym.var('s'); out, st = sym.contrib.foreach(lambda x, s: (sym.FullyConnected(x, num_hidden=3, name='fc') + s, s + 1), d, s); g = sym.load_json(sym.Group([out, st]).tojson()); print(g.list_arguments(), g.infer_shape(data=(4, 2, 3), s=(2, 3))); e = g.simple_bind(mx.cpu(), data=(2, 1, 2), s=(1, 3)); e.arg_dict['fc_weight'][:] = 0.5; print(e.forward(data=nd.ones((2, 1, 2)), s=nd.zeros((1, 3))))
d = sym.var('data'); k = d * 3; out, st = sym.contrib.foreach(lambda x, s: (x + s + sym.sum(k), s + x), d, sym.var('s')); print(sym.Group([out, st]).list_arguments(), out.eval(data=nd.array([1., 2]), s=nd.array([0.])))
print(nd._internal._linspace(start=0, stop=1, num=3), [a.dtype for a in nd._internal._sample_unique_zipfian(range_max=50, shape=(2, 5))], len(set(nd._internal._sample_unique_zipfian(range_max=6, shape=(1, 6))[0].asnumpy()[0].tolist())))
s = sym.IdentityAttachKLSparseReg(sym.var('x'), sparseness_target=0.2, penalty=0.5, name='kl'); print(s.list_arguments(), s.list_auxiliary_states(), s.infer_shape(x=(3, 2))); e = s.simple_bind(mx.cpu(), x=(3, 2)); e.aux_dict['kl_moving_avg'][:] = 0.3; e.forward(is_train=True, x=nd.array([[.2, .5], [.3, .6], [.1, .7]])); e.backward(nd.ones((3, 2))); print(e.outputs, e.grad_dict['x'], e.aux_dict['kl_moving_avg'])
"""

LEGACY = r"""
import os, tempfile; p = os.path.join(tempfile.mkdtemp(), 'a.rec'); w = mx.recordio.MXRecordIO(p, 'w')\nfor i in range(3): w.write(b'x' * i)\nw.write(b'\x0a\x23\xd7\xce' * 3 + b'z'); w.write(b'ab\x0a\x23\xd7\xce'); w.close(); import pathlib; print(pathlib.Path(p).read_bytes()); r = mx.recordio.MXRecordIO(p, 'r'); print([r.read() for _ in range(6)]); r.reset(); print(r.read())
import os, tempfile; d = tempfile.mkdtemp(); w = mx.recordio.MXIndexedRecordIO(d + '/a.idx', d + '/a.rec', 'w')\nfor i in range(4): w.write_idx(i * 10, mx.recordio.pack(mx.recordio.IRHeader(0, i + 0.5, i, 0), b'q' * i)); print(w.tell())\nw.close(); r = mx.recordio.MXIndexedRecordIO(d + '/a.idx', d + '/a.rec', 'r'); print(r.keys, __import__('pathlib').Path(d + '/a.idx').read_text(), [mx.recordio.unpack(r.read_idx(k)) for k in (30, 0, 10)])
h = mx.recordio.IRHeader(7, [1., 2, 3], 5, 6); s = mx.recordio.pack(h, b'data'); print(s); print(mx.recordio.unpack(s)); print(mx.recordio.unpack(mx.recordio.pack(mx.recordio.IRHeader(3, np.float32(2), 1, 0), b'')))
import pickle, os, tempfile; p = os.path.join(tempfile.mkdtemp(), 'a.rec'); w = mx.recordio.MXRecordIO(p, 'w'); w.write(b'one'); w.close(); r = pickle.loads(pickle.dumps(mx.recordio.MXRecordIO(p, 'r'))); print(r.read(), r.writable); r.write(b'a')
mx.recordio.MXRecordIO('/no/such/file.rec', 'r')
mx.recordio.MXRecordIO('/tmp/x', 'q')
import random; x = nd.arange(6 * 8 * 3).reshape((6, 8, 3)).astype('uint8'); I = mx.image; print(I.scale_down((6, 8), (12, 4)), I.imresize(x, 4, 3).shape, I.resize_short(x, 3).shape, I.fixed_crop(x, 1, 2, 3, 4), I.center_crop(x, (4, 3))[1], I.center_crop(x, (4, 3))[0].sum()); random.seed(3); print(I.random_crop(x, (4, 3))[1], I.random_size_crop(x, (4, 3), 0.3, (0.5, 2))[1], I.random_size_crop(x, (4, 3), (0.2, 0.3), (0.5, 2))[0].shape)
import random; x = nd.arange(4 * 5 * 3).reshape((4, 5, 3)); I = mx.image\nfor a in (I.BrightnessJitterAug(0.3), I.ContrastJitterAug(0.3), I.SaturationJitterAug(0.3), I.HueJitterAug(0.3), I.ColorJitterAug(.1, .2, .3), I.LightingAug(0.1, np.array([55.46, 4.794, 1.148]), np.eye(3)), I.ColorNormalizeAug([1., 2, 3], [2., 2, 4]), I.RandomGrayAug(0.5), I.HorizontalFlipAug(0.7), I.CastAug(), I.CenterCropAug((3, 2)), I.ResizeAug(3), I.ForceResizeAug((4, 4)), I.RandomCropAug((3, 3)), I.RandomSizedCropAug((3, 3), 0.3, (0.5, 2)), I.SequentialAug([I.CastAug(), I.HorizontalFlipAug(1)])):\n    random.seed(5); np.random.seed(5); print(a.dumps() if not isinstance(a, I.LightingAug) else 'L', a(x.copy()).asnumpy().round(3).tolist())
print([type(a).__name__ for a in mx.image.CreateAugmenter((3, 8, 8), resize=9, rand_crop=True, rand_resize=True, rand_mirror=True, mean=True, std=True, brightness=.1, contrast=.1, saturation=.1, hue=.1, pca_noise=.1, rand_gray=.1)], [type(a).__name__ for a in mx.image.CreateAugmenter((3, 8, 8))]); mx.image.CreateAugmenter((3, 8, 8), rand_resize=True)
x = nd.arange(2 * 3 * 5 * 6).reshape((2, 3, 5, 6)); print(mx.image.imrotate(x, 30), mx.image.imrotate(x, nd.array([10, 100]), zoom_in=True), mx.image.imrotate(x[0], -45, zoom_out=True).sum()); mx.image.imrotate(x[0], nd.array([1, 2]))
mx.image.imrotate(nd.ones((2, 2, 3), dtype='uint8'), 3)
mx.image.imrotate(nd.ones((2, 2, 3)), 3, True, True)
x = nd.arange(12).reshape((2, 2, 3)).astype('uint8'); print(mx.image.copyMakeBorder(x, 1, 0, 0, 2), mx.image.copyMakeBorder(x, 1, 0, 0, 2, type=4), mx.image.color_normalize(x.astype('float32'), nd.array([1, 2, 3]), nd.array([2, 2, 2])))
c = mx.rnn.LSTMCell(3, prefix='l_'); o, s = c.unroll(2, sym.var('x'), layout='NTC', merge_outputs=True); g = sym.Group([o] + s); print(g.list_arguments(), g.list_outputs(), g.infer_shape(x=(2, 2, 4))[:2]); print([n for n in g.get_internals().list_outputs()])
mx.random.seed(0); c = mx.rnn.GRUCell(3); o, s = c.unroll(3, [sym.var('a'), sym.var('b'), sym.var('c')]); g = sym.Group(o + s); print(g.list_arguments(), g.get_internals().list_outputs()); e = g.simple_bind(mx.cpu(), a=(2, 4), b=(2, 4), c=(2, 4))\nfor n in sorted(e.arg_dict): e.arg_dict[n][:] = nd.sin(nd.arange(e.arg_dict[n].size)).reshape(e.arg_dict[n].shape)\nprint(e.forward())
for c in (mx.rnn.RNNCell(3), mx.rnn.RNNCell(3, activation='relu', prefix='q_'), mx.rnn.LSTMCell(3), mx.rnn.DropoutCell(0.5), mx.rnn.ResidualCell(mx.rnn.GRUCell(4)), mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(4), 0.5, 0.5)):\n    o, s = c.unroll(2, sym.var('x'), merge_outputs=True); print(o.list_arguments(), o.list_outputs(), o.infer_shape(x=(2, 2, 4))[1], len(s))
s = mx.rnn.SequentialRNNCell(); s.add(mx.rnn.LSTMCell(3, prefix='a_')); s.add(mx.rnn.DropoutCell(0.3)); s.add(mx.rnn.BidirectionalCell(mx.rnn.GRUCell(2, prefix='f_'), mx.rnn.RNNCell(2, prefix='b_'))); o, st = s.unroll(2, sym.var('x'), merge_outputs=True); print(o.list_arguments(), o.list_outputs(), o.infer_shape(x=(2, 2, 4))[1], s.state_info, s.state_shape); print(s.begin_state())
c = mx.rnn.FusedRNNCell(3, num_layers=2, mode='lstm', bidirectional=True, get_next_state=True, prefix='f_'); o, s = c.unroll(2, sym.var('x'), layout='TNC', merge_outputs=True); g = sym.Group([o] + s); print(g.list_arguments(), g.list_outputs(), g.infer_shape(x=(2, 4, 5))); w = {'f_parameters': nd.arange(g.infer_shape(x=(2, 4, 5))[0][1][0])}; u = c.unpack_weights(w); print(sorted((k, v.shape, float(v.sum().asscalar())) for k, v in u.items())); print((c.pack_weights(u)['f_parameters'] == w['f_parameters']).sum()); print(c.unfuse().unroll(2, sym.var('x'))[0][0].list_arguments())
c = mx.rnn.LSTMCell(2, prefix='l_'); w = {'l_i2h_weight': nd.arange(24).reshape((8, 3)), 'l_h2h_weight': nd.arange(16).reshape((8, 2)), 'l_i2h_bias': nd.arange(8), 'l_h2h_bias': nd.arange(8), 'z': nd.ones(1)}; u = c.unpack_weights(w); print(sorted((k, v.asnumpy().tolist()) for k, v in u.items())); print(sorted((k, v.shape) for k, v in c.pack_weights(u).items()))
for mode in ('rnn_relu', 'rnn_tanh', 'gru'): c = mx.rnn.FusedRNNCell(2, 2, mode=mode, dropout=0.3); print(c.unroll(3, sym.var('x'), layout='TNC')[0].list_outputs(), [x.name for x in c.unfuse().unroll(3, sym.var('x'))[0]])
mx.rnn.FusedRNNCell(2)(sym.var('x'), [])
c = mx.rnn.LSTMCell(2); mx.rnn.ZoneoutCell(c); c.begin_state()
for K in (mx.rnn.ConvRNNCell, mx.rnn.ConvLSTMCell, mx.rnn.ConvGRUCell):\n    c = K((1, 3, 8, 8), 4, i2h_kernel=(3, 3), i2h_pad=(1, 1)); o, s = c.unroll(2, sym.var('x'), merge_outputs=True, layout='NTC'); print(o.list_arguments(), c.state_info, o.infer_shape(x=(2, 2, 3, 8, 8))[1], [x.name for x in s])
p = mx.rnn.RNNParams('z_'); a, b = mx.rnn.GRUCell(2, prefix='z_', params=p), mx.rnn.GRUCell(2, prefix='z_', params=p); print(sym.Group(a.unroll(1, [sym.var('x')])[0] + b.unroll(1, [sym.var('y')])[0]).list_arguments())
print(mx.rnn.encode_sentences([['a', 'b', 'a'], ['c']]), mx.rnn.encode_sentences([['a', 'q']], {'a': 1, 'u': 2}, unknown_token='u')); mx.rnn.encode_sentences([['q']], {'a': 1})
import random; random.seed(1); np.random.seed(1); it = mx.rnn.BucketSentenceIter([[1, 2, 3], [4, 5], [6, 7, 8], [1, 2], [9] * 9], 2, buckets=[2, 4], invalid_label=0); print(it.default_bucket_key, it.provide_data, it.provide_label)\nfor b in it: print(b.bucket_key, b.data[0].asnumpy().tolist(), b.label[0].asnumpy().tolist(), b.provide_data)
print(mx.init.FusedRNN(mx.init.Xavier(), 2, 1, 'lstm').dumps()); a = nd.zeros((2 * 4 * (3 + 2 + 2),)); mx.init.FusedRNN(mx.init.Constant(3), 2, 1, 'lstm', forget_bias=5.)(mx.init.InitDesc('x_weight'), a); print(a)
def gen(n):\n    x = sym.split(sym.var('data'), num_outputs=n, axis=1, squeeze_axis=True); w = sym.var('w_weight'); o = 0\n    for i in range(n): o = o + sym.FullyConnected(x[i] if n > 1 else x, w, no_bias=True, num_hidden=2)\n    return sym.SoftmaxOutput(o, name='softmax'), ('data',), ('softmax_label',)\nm = mx.mod.BucketingModule(gen, default_bucket_key=3); print(m.data_names, m.output_names); m.bind([('data', (2, 3, 4))], [('softmax_label', (2,))]); m.init_params(mx.init.Constant(0.1)); m.init_optimizer(optimizer='sgd', optimizer_params={'learning_rate': 0.5, 'momentum': 0.9})\nD = mx.io.DataDesc\nfor k in (3, 2, 1, 3, 2):\n    b = mx.io.DataBatch([nd.sin(nd.arange(2 * k * 4)).reshape((2, k, 4))], [nd.array([0, 1])], bucket_key=k, provide_data=[D('data', (2, k, 4))], provide_label=[D('softmax_label', (2,))]); m.forward(b); m.backward(); m.update(); print(m.get_outputs()[0].asnumpy().round(4).tolist())\nprint(m.get_params()[0]['w_weight'].asnumpy().round(4).tolist(), m.data_shapes, sorted(m.get_params()[0]))
x = sym.var('data'); c = mx.rnn.LSTMCell(2, prefix='l_', forget_bias=2.0); o, _ = c.unroll(2, x, merge_outputs=True); m = mx.mod.Module(sym.SoftmaxOutput(sym.reshape(o, shape=(0, -1)), name='softmax')); m.bind([('data', (2, 2, 3))], [('softmax_label', (2,))]); m.init_params(mx.init.Xavier()); print(m.get_params()[0]['l_i2h_bias'], m.get_params()[0]['l_h2h_bias'])
import logging; logging.disable(logging.CRITICAL); P = mx.model.BatchEndParam; m = mx.metric.create('acc'); m.update([nd.array([1])], [nd.array([[0.2, 0.8]])]); [c(P(0, 2, m, None)) for c in (mx.callback.ProgressBar(4), mx.callback.log_train_metric(2), mx.callback.LogValidationMetricsCallback())]; print(m.get())
T = gluon.data.vision.transforms; x = nd.arange(75).reshape((3, 5, 5)); print(T.Rotate(30)(x).asnumpy().round(3)[0]); np.random.seed(1); print(T.RandomRotation((-30, 60), zoom_in=True)(x).asnumpy().round(3)[1]); print(T.RandomRotation((1, 2), rotate_with_proba=0)(x) is x); T.RandomRotation((3, 1))
T = gluon.data.vision.transforms; x = nd.ones((4, 4, 3)); print([t(x).shape for t in (T.RandomHue(0.2), T.RandomColorJitter(.1, .1, .1, .1), T.RandomLighting(0.1))])
import tempfile; d = tempfile.mkdtemp(); w = mx.recordio.MXIndexedRecordIO(d + '/a.idx', d + '/a.rec', 'w'); [w.write_idx(i, b'r%d' % i) for i in range(3)]; w.close(); r = gluon.data.RecordFileDataset(d + '/a.rec'); print(len(r), r[0], r[2]); r._record.close()
e = sym.FullyConnected(sym.var('x'), num_hidden=2, name='f').simple_bind(mx.cpu(), x=(4, 3)); e.arg_dict['f_weight'][:] = 2; f = e.reshape(x=(2, 3)); print(f.arg_dict['x'].shape, f.forward(x=nd.ones((2, 3)))[0]); f.arg_dict['f_weight'][:] = 3; print(e.arg_dict['f_weight']); e.reshape(x=(8, 3))
print(sym.linspace(0, 1, 3).eval()[0], sym.split_v2(sym.var('x'), 2).eval(x=nd.arange(4)), sym.split_v2(sym.var('x'), (1, 3)).eval(x=nd.arange(4)))
x = nd.zeros((2, 2)); nd._internal._set_value(src=3.0, out=x); print(x)
s, t, c = nd.contrib.rand_zipfian(nd.array([3]), 4, 5); print(s.dtype, s.shape, t, c.shape, c.dtype)
net = nn.Dense(2, in_units=2); net.initialize(ctx=[mx.cpu(0), mx.cpu(1)]); print(net.collect_params().list_ctx()); o = mx.optimizer.create('adam'); w = nd.ones(2); s = o.create_state_multi_precision(0, w); o.update_multi_precision(0, w, nd.ones(2), s); print(w)
o = sym.SoftmaxOutput(sym.FullyConnected(sym.var('data'), sym.var('fc_weight', lr_mult=0.5), num_hidden=2, name='fc'), name='softmax'); m = mx.mod.Module(o); m.bind([('data', (2, 3))], [('softmax_label', (2,))]); m.init_params(arg_params={'fc_weight': nd.ones((2, 3)), 'fc_bias': nd.ones(2)}, aux_params={}); m.init_optimizer(optimizer_params={'learning_rate': .1, 'wd': .5}); m.forward(mx.io.DataBatch([nd.zeros((2, 3))], [nd.array([0, 1])])); m.backward(); m.update(); print(m.get_params()[0])
print(mx.util.is_np_array(), mx.util.is_np_shape())
x = nd.arange(24).reshape((4, 2, 3)) / 20 - 0.5\nfor kw in ({}, dict(num_layers=2, bidirectional=True)):\n    l = rnn.LSTM(3, projection_size=2, **kw); l.initialize(mx.init.Constant(0.3)); print(l, l.collect_params(), l.state_info(2)); o, s = l(x, l.begin_state(2)); print(o.asnumpy().round(4), [y.asnumpy().round(4) for y in s]); l.hybridize(); print(l(x).asnumpy().round(4))
for m in ('gru', 'lstm'):\n    s = sym.RNN(sym.var('x'), state_size=3, num_layers=2, mode=m, use_sequence_length=True, state_outputs=True, name='r', **({'projection_size': 2} if m == 'lstm' else {})); print(s.list_arguments(), s.infer_shape(x=(4, 2, 3)))
for n in ('sgd', 'nag', 'signum', 'ftml', 'dcasgd', 'sgld', 'lbsgd', 'lars', 'lamb', 'adam', 'adagrad', 'rmsprop', 'adadelta', 'ftrl', 'adamax', 'nadam'): o = mx.optimizer.create(n, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, .5, base_lr=.3)); print(n, o.learning_rate, o.lr, o.lr_scheduler.base_lr)
n = nn.Dense(1, in_units=2); n.initialize(mx.init.One()); t = gluon.Trainer(n.collect_params(), 'sgd', {'lr_scheduler': mx.lr_scheduler.FactorScheduler(1, .5, base_lr=.3), 'momentum': .9})\nfor i in range(3):\n    with autograd.record(): l = n(nd.ones((2, 2)))\n    l.backward(); t.step(2); print(t.learning_rate, n.weight.data())
m = mx.metric.np(lambda l, p: 1.0); m.update([nd.ones(2)], [nd.ones(2)]); print(m.get()); print(gluon.contrib.nn.SyncBatchNorm(in_channels=2))
class C(mx.operator.CustomOp):\n    def forward(self, is_train, req, in_data, out_data, aux): self.assign(out_data[0], req[0], in_data[0])\n@mx.operator.register('told')\nclass P(mx.operator.CustomOpProp):\n    def create_operator(self, ctx, shapes, dtypes): print(shapes, dtypes, ctx); return C()\nprint(nd.Custom(nd.ones((2, 3)), op_type='told'), nd.Custom(nd.ones(2, dtype='int32'), op_type='told'))
"""

# They need a decoder of images.
IMAGES = r"""
I = mx.image; a = I.imread(files + '/a.png'); print(a.shape, a.dtype, a[3, 4], I.imread(files + '/a.png', 0).shape, I.imread(files + '/a.png', to_rgb=False)[3, 4], I.imread(files + '/gray.png').shape, I.imread(files + '/gray.png', 0).sum())
I = mx.image; b = I.imdecode(__import__('pathlib').Path(files + '/b.jpg').read_bytes()); print(b.shape, b[::6, ::9]); print(I.imdecode(nd.array(np.frombuffer(__import__('pathlib').Path(files + '/b.jpg').read_bytes(), 'uint8'), dtype='uint8')).astype('int32').sum())
mx.image.imdecode(b'nonsense')
mx.image.imdecode(b'')
mx.image.imread('/no/such.png')
it = mx.image.ImageIter(2, (3, 20, 20), imglist=[[1.5, 'a.png'], [2, 'c.png'], [3, 'a.png']], path_root=files); print(it.provide_data, it.provide_label)\nfor b in it: print(b.pad, b.label[0].asnumpy().tolist(), b.data[0].shape, b.data[0].asnumpy().sum((1, 2, 3)).tolist())\nit.reset(); print(len(list(it)))
for how in ('pad', 'discard', 'roll_over'):\n    it = mx.image.ImageIter(2, (3, 20, 20), imglist=[[float(i), 'a.png'] for i in range(5)], path_root=files, last_batch_handle=how)\n    for r in range(3): print(how, [(b.pad, b.label[0].asnumpy().tolist()) for b in it]); it.reset()
import tempfile; d = tempfile.mkdtemp(); w = mx.recordio.MXIndexedRecordIO(d + '/a.idx', d + '/a.rec', 'w')\nfor i, n in enumerate(('a.png', 'c.png', 'b.jpg')): w.write_idx(i, mx.recordio.pack(mx.recordio.IRHeader(0, i, i, 0), __import__('pathlib').Path(files + '/' + n).read_bytes()))\nw.close()\nfor given in ({}, {'path_imgidx': d + '/a.idx', 'num_parts': 3, 'part_index': 1}): it = mx.image.ImageIter(1, (3, 16, 16), path_imgrec=d + '/a.rec', resize=18, mean=True, std=True, **given); print([(b.label[0].asnumpy().tolist(), b.data[0].asnumpy().round(2).mean((2, 3)).tolist()) for b in it])
mx.image.ImageIter(2, (1, 20, 20), imglist=[[1, 'a.png']], path_root=files)
mx.image.ImageIter(2, (3, 20, 20))
import os, shutil, tempfile; d = tempfile.mkdtemp(); [(os.makedirs(d + '/' + c), shutil.copy(files + '/' + n, d + '/' + c)) for c, n in (('cat', 'a.png'), ('dog', 'c.png'), ('cat', 'b.jpg')) if not os.path.exists(d + '/' + c)]; s = gluon.data.vision.ImageFolderDataset(d); print(len(s), s.synsets, s[1][0].shape, s[1][1], [(os.path.basename(n), l) for n, l in s.items]); print(gluon.data.vision.ImageFolderDataset(d, flag=0, transform=lambda i, l: (int(i.astype('int32').sum().asscalar()), l))[0])
import tempfile, pathlib; d = tempfile.mkdtemp(); w = mx.recordio.MXIndexedRecordIO(d + '/a.idx', d + '/a.rec', 'w'); [w.write_idx(i, mx.recordio.pack(mx.recordio.IRHeader(0, i + 5, i, 0), pathlib.Path(files + '/' + n).read_bytes())) for i, n in enumerate(('a.png', 'c.png'))]; w.close(); s = gluon.data.vision.ImageRecordDataset(d + '/a.rec'); print(len(s), s[1][0][2, 3], s[1][1], s[0][0].shape); s._record.close()
import tempfile, pathlib; d = tempfile.mkdtemp(); w = mx.recordio.MXRecordIO(d + '/a.rec', 'w'); [w.write(mx.recordio.pack(mx.recordio.IRHeader(0, i, i, 0), pathlib.Path(files + '/' + n).read_bytes())) for i, n in enumerate(('a.png', 'c.png', 'a.png'))]; w.close(); it = mx.io.ImageRecordIter(path_imgrec=d + '/a.rec', data_shape=(3, 24, 32), batch_size=2, mean_r=10, mean_g=20, std_b=2., scale=.5, preprocess_threads=1); print([(b.data[0].shape, b.label[0].asnumpy().tolist(), b.pad, b.data[0][:, :, 3, 4].asnumpy().tolist()) for b in it])
"""


def snippets() -> list[str]:
    """Every program."""
    found = [line for part in PARTS for line in part.strip().split("\n") if line]
    return [line.replace("\\n", "\n") for line in found] + scripts()


def scripts() -> list[str]:
    """Whole scripts, each with the beginning that all have."""
    text = (Path(__file__).parent / "fixtures" / "scripts.txt").read_text(encoding="utf-8")
    beginning, *found = (part.partition("\n")[2].strip() + "\n" for part in text.split("\n### ")[1:])
    return [beginning + script for script in found]


PARTS = [
    ARRAYS,
    GRADIENTS,
    ENGINE,
    SYMBOLS,
    GLUON,
    RECURRENT,
    TRAINING,
    DATA,
    MODULES,
    OPTIMIZERS,
    LAYERS,
    OLD_CODE,
    LOOPS,
    LEGACY,
    IMAGES,
]


def printed(code: str, scope: dict[str, object]) -> str:
    """What a program prints, with the class of the error that ends it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(code, "snippet", "exec"), dict(scope))  # it is the program under test
        except Exception as error:  # noqa: BLE001  # which one it is, is the answer
            print(type(error).__name__)
    return out.getvalue()
