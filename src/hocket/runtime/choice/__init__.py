"""The choice of the algorithm: the table, HOCKET_ALGO and tuner files that change it, and NCCL's spellings."""
