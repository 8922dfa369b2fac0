"""The coordinator: ranks agree which tensors are ready on all of them, and communicate them in one order.

Ranks may produce tensors in any order, in any thread, and leave some out. A *round* is one pass over the registered
tensors, for example the gradients of one backward pass. It ends with `flush` on every rank. Read in this order:

    messages.py      what ranks tell the leader (rank 0), and what it tells them
    leader.py        the leader's part: which tensors are ready everywhere, in which batches they travel
    member.py        each rank's part: when to speak, when to launch a batch; the locked state
    names.py         names become numbers, equal on all ranks
    rank_rounds.py   the parts above with a communicator, a lock and a thread
    waiting.py       handles of rounds and tensors; what a rank says after a long wait
    coordinator.py   the class that programs use

leader.py and member.py have no clock, no connection and no array: tests/training/ runs thousands of random rounds of
them in one thread.
"""
