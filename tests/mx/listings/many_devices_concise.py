import d2lzh as d2l
import mxnet as mx
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import loss as gloss, nn, utils as gutils
import numpy as np
import time

def made_up(count):
    y = np.arange(count) % 2
    X = np.random.RandomState(0).uniform(size=(count, 1, 8, 8)) * 0.1
    X[y == 1, :, :4] += 1
    return nd.array(X), nd.array(y)
X, y = made_up(32)
train_iter = test_iter = [(X[:16], y[:16]), (X[16:], y[16:])]

net = nn.HybridSequential()
net.add(nn.Conv2D(4, kernel_size=3, activation='relu'), nn.BatchNorm(), d2l.Residual(4), nn.GlobalAvgPool2D(), nn.Dense(2))
net.hybridize()

def train(ctx, batch_size, lr):
    print('running on:', ctx)
    net.initialize(init=init.Normal(sigma=0.1), ctx=ctx, force_reinit=True)
    trainer = gluon.Trainer(
        net.collect_params(), 'sgd', {'learning_rate': lr})
    loss = gloss.SoftmaxCrossEntropyLoss()
    for epoch in range(3):
        start = time.time()
        for _ in range(6):
            for X, y in train_iter:
                gpu_Xs = gutils.split_and_load(X, ctx)
                gpu_ys = gutils.split_and_load(y, ctx)
                with autograd.record():
                    ls = [loss(net(gpu_X), gpu_y)
                          for gpu_X, gpu_y in zip(gpu_Xs, gpu_ys)]
                for l in ls:
                    l.backward()
                trainer.step(batch_size)
        nd.waitall()
        train_time = time.time() - start
        test_acc = d2l.evaluate_accuracy(test_iter, net, ctx[0])
        print('epoch %d, time %.1f sec, test acc %.2f' % (
            epoch + 1, train_time, test_acc))

train([mx.cpu(0), mx.cpu(1)], batch_size=16, lr=0.3)
