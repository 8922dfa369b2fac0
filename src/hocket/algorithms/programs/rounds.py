"""How many rounds logarithmic algorithms take."""


def rounds(num_ranks: int, radix: int = 2) -> int:
    """The least number of rounds in which one becomes num_ranks, if there are radix times as many after each."""
    count = 0
    while radix**count < num_ranks:
        count += 1
    return count
