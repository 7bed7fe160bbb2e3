import d2lzh as d2l
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import loss as gloss
import numpy as np
import time

def made_up(count):
    y = np.arange(count) % 2
    X = np.random.RandomState(0).uniform(size=(count, 1, 8, 8)) * 0.1
    X[y == 1, :, :4] += 1
    return nd.array(X), nd.array(y)
X, y = made_up(32)
train_iter = test_iter = [(X[:16], y[:16]), (X[16:], y[16:])]

scale = 0.3
W1 = nd.random.normal(scale=scale, shape=(4, 1, 3, 3)); b1 = nd.zeros(shape=4)
W3 = nd.random.normal(scale=scale, shape=(36, 8)); b3 = nd.zeros(shape=8)
W4 = nd.random.normal(scale=scale, shape=(8, 2)); b4 = nd.zeros(shape=2)
params = [W1, b1, W3, b3, W4, b4]

def lenet(X, params):
    h1_conv = nd.Convolution(data=X, weight=params[0], bias=params[1], kernel=(3, 3), num_filter=4)
    h1 = nd.Pooling(data=nd.relu(h1_conv), pool_type='avg', kernel=(2, 2), stride=(2, 2))
    h2 = nd.flatten(h1)
    h3 = nd.relu(nd.dot(h2, params[2]) + params[3])
    return nd.dot(h3, params[4]) + params[5]
loss = gloss.SoftmaxCrossEntropyLoss()

def get_params(params, ctx):
    new_params = [p.copyto(ctx) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params

def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].context)
    for i in range(1, len(data)):
        data[0].copyto(data[i])

data = [nd.ones((1, 2), ctx=mx.cpu(i)) * (i + 1) for i in range(2)]
print('before all-reduce', data)
allreduce(data)
print('after all-reduce', data)

def split_and_load(data, ctx):
    n, k = data.shape[0], len(ctx)
    m = n // k
    assert m * k == n, '# examples is not divided by # devices.'
    return [data[i * m: (i + 1) * m].as_in_context(ctx[i]) for i in range(k)]

def train_batch(X, y, gpu_params, ctx, lr):
    gpu_Xs, gpu_ys = split_and_load(X, ctx), split_and_load(y, ctx)
    with autograd.record():
        ls = [loss(lenet(gpu_X, gpu_W), gpu_y)
              for gpu_X, gpu_y, gpu_W in zip(gpu_Xs, gpu_ys, gpu_params)]
    for l in ls:
        l.backward()
    for i in range(len(gpu_params[0])):
        allreduce([gpu_params[c][i].grad for c in range(len(ctx))])
    for param in gpu_params:
        d2l.sgd(param, lr, X.shape[0])

def train(num_gpus, batch_size, lr):
    ctx = [mx.cpu(i) for i in range(num_gpus)]
    print('running on:', ctx)
    gpu_params = [get_params(params, c) for c in ctx]
    for epoch in range(2):
        start = time.time()
        for _ in range(12):
            for X, y in train_iter:
                train_batch(X, y, gpu_params, ctx, lr)
                nd.waitall()
        train_time = time.time() - start

        def net(x):
            return lenet(x, gpu_params[0])

        test_acc = d2l.evaluate_accuracy(test_iter, net, ctx[0])
        print('epoch %d, time %.1f sec, test acc %.2f'
              % (epoch + 1, train_time, test_acc))

train(num_gpus=2, batch_size=16, lr=0.3)
