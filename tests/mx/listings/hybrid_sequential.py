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

x = nd.random.normal(shape=(1, 512)) 
net = get_net() 
net.hybridize()
net(x)

def benchmark(net, x): 
        start = time.time() 
        for i in range(1000): 
            _ = net(x) 
        nd.waitall()
        return time.time() - start
    
net = get_net() 
print('before hybridizing: %.4f sec' % (benchmark(net, x))) 
net.hybridize() 
print('after hybridizing: %.4f sec' % (benchmark(net, x))) 
