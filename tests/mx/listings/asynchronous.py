from mxnet import autograd, gluon, nd 
from mxnet.gluon import loss as gloss, nn 
import mxnet as mx
import d2lzh as d2l
import os 
import subprocess 
import time 

a = nd.ones((1, 2)) 
b = nd.ones((1, 2)) 
c = a * b + 2 
print(c)

class Benchmark():
    def __init__(self, prefix=None):
        self.prefix = prefix + ' ' if prefix else ''

    def __enter__(self):
        self.start = time.time()

    def __exit__(self, *args):
        print('%stime: %.4f sec' % (self.prefix, time.time() - self.start))

with Benchmark('Workloads are queued.'):
    x = nd.random.uniform(shape=(200, 200))
    y = nd.dot(x, x).sum()
with Benchmark('Workloads are finished.'):
    print('sum =', y)

def run(x):
    with d2l.Benchmark('Run.'):
        list =  [nd.dot(x, x) for _ in range(10)]
    return list
x_cpu = nd.random.uniform(shape=(20, 20))
x_gpu = nd.random.uniform(shape=(20, 20), ctx=mx.cpu(1))
run(x_cpu)  
run(x_gpu)
nd.waitall()  
