"""Training across ranks, readable from end to end: data, a small NumPy network, data parallelism, one demonstration.

The communicator is the only thing of Hocket that the training step knows. Left out so far: buckets, sharded weights,
tensor, pipeline and expert parallelism.
"""
