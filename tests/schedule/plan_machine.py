"""Runs MSCCL++ plans as its executor does, with threads that take turns at random, and none of Hocket's own reader.

A thread block has two threads. Each does a random half of the elements of every op and does not wait for the other,
except at a nop or a barrier; the first of them signals and waits on the first channel of an op, the second one on the
second, and so on. What is put through a port is moved later, in the order of its channel. A packet is an element with
the number of the call in which it was written, for which its reader waits. A GPU starts its next call when its own
thread blocks have ended, whatever the others do; counters and scratch outlive a call.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

NUM_THREADS, NUM_ELEMENTS = 2, 4  # of a thread block, of a chunk
ADDS = ("re", "res", "rre", "rres")


class Stuck(Exception):
    """No thread can go on."""


class PlanMachine:
    """One plan, a decoded JSON document, and the memory of its GPUs.

    `load(call, gpu, element)` gives the input of a GPU that has one, a number for each chunk. `results[call][gpu]` are
    the chunks of its output, each with a number for every element.
    """

    def __init__(self, plan: dict[str, Any], seed: int, load: Callable[[int, int, int], Sequence[int]]) -> None:
        self.plan, self.load, self.choice = plan, load, random.Random(seed)
        self.gpus = plan["gpus"]
        self.memory: dict[tuple[int, str, int, int], int] = defaultdict(lambda: self.choice.randrange(1 << 50))
        self.packets: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self.arrived: dict[tuple[int, str, int], int] = defaultdict(int)
        self.expected: dict[tuple[int, str, int], int] = defaultdict(int)
        self.proxy: dict[tuple[int, str, int], deque[Callable[[], None]]] = defaultdict(deque)
        self.semaphores = [[one["init_value"] for one in gpu.get("semaphores", [])] for gpu in self.gpus]
        self.met: dict[Any, int] = defaultdict(int)
        self.call = [0 for _ in self.gpus]
        self.results: list[list[list[list[int]]]] = []

    def run(self, num_calls: int) -> list[list[list[list[int]]]]:
        """Run so many calls on every GPU; Stuck if they do not come to their end."""
        self.results = [[[] for _ in self.gpus] for _ in range(num_calls)]
        running = [
            (gpu["id"], self._thread(gpu["id"], block, thread, num_calls))
            for gpu in self.gpus
            for block in gpu["threadblocks"]
            for thread in range(NUM_THREADS)
        ]
        for gpu in self.gpus:
            self._fill(gpu["id"])
        idle = 0
        while running:
            # Often all threads of one GPU, so that it gets as far ahead of the others as it can.
            favoured = self.choice.choice([None, *range(len(self.gpus))])
            self.choice.shuffle(running)
            progress = False
            for pair in list(running):
                if favoured in (None, pair[0]):
                    for moved in pair[1]:
                        progress |= moved
                        if not moved or self.choice.random() < 0.2:
                            break
                    else:
                        running.remove(pair)
                        progress = True
            for queue in self.proxy.values():
                if queue and self.choice.random() < 0.5:
                    queue.popleft()()
                    progress = True
            idle = 0 if progress else idle + 1
            if idle > 20 * len(self.gpus) + 100:
                raise Stuck
        return self.results

    # -- memory

    def cell(self, gpu: int, kind: str, chunk: int) -> tuple[int, str, int]:
        """The memory of a chunk; in place, input and output are one."""
        own = self.gpus[gpu]["input_chunks"], self.gpus[gpu]["output_chunks"]
        if kind == "s" or not self.plan["inplace"]:
            return gpu, kind, chunk
        if own[0] != own[1] and kind == ("i" if own[0] < own[1] else "o"):
            return gpu, "d", chunk + gpu * min(own)
        return gpu, "d", chunk

    def _fill(self, gpu: int) -> None:
        for kind in "oi":
            for chunk in range(self.gpus[gpu]["input_chunks" if kind == "i" else "output_chunks"]):
                for element in range(NUM_ELEMENTS):
                    values = self.load(self.call[gpu], gpu, element) if kind == "i" else ()
                    value = values[chunk] if chunk < len(values) else self.choice.randrange(1 << 50)
                    self.memory[(*self.cell(gpu, kind, chunk), element)] = value

    def _end(self, gpu: int) -> None:
        self.results[self.call[gpu]][gpu] = [
            [self.memory[(*self.cell(gpu, "o", chunk), element)] for element in range(NUM_ELEMENTS)]
            for chunk in range(self.gpus[gpu]["output_chunks"])
        ]
        self.call[gpu] += 1
        self._fill(gpu)

    def _place(self, gpu: int, block: Any, op: Any, buffer: Any) -> tuple[int, str, int]:
        if "type" in buffer:
            return gpu, buffer["type"], buffer["index"]
        refs = [one for one in block["remote_buffer_refs"] if one["access_channel_type"] == op["channel_type"]]
        remote = self.gpus[gpu]["remote_buffers"][refs[0]["remote_buffer_ids"][buffer["buffer_id"]]]
        return remote["rank"], remote["type"], buffer["index"]

    # -- channels

    def _ends(self, gpu: int, block: Any, op: Any) -> list[tuple[int, str, int]]:
        kind = op["channel_type"]
        numbers = next(one["channel_ids"] for one in block["channels"] if one["channel_type"] == kind)
        return [(gpu, kind, numbers[i]) for i in op["channel_ids"]]

    def _peers(self, gpu: int, kind: str) -> list[int]:
        return [
            peer for one in self.gpus[gpu]["channels"] if one["channel_type"] == kind for peer in one["connected_to"]
        ]

    def _opposite(self, end: tuple[int, str, int]) -> tuple[int, str, int]:
        gpu, kind, number = end
        peers = self._peers(gpu, kind)
        back = [i for i, other in enumerate(self._peers(peers[number], kind)) if other == gpu]
        return peers[number], kind, back[peers[:number].count(peers[number])]

    # -- threads

    def _meet(self, key: Any, count: int) -> Iterator[bool]:
        """Wait until so many have come here, as often as this one has."""
        self.met[key] += 1
        target = -(-self.met[key] // count) * count
        while self.met[key] < target:
            yield False

    def _thread(self, gpu: int, block: Any, thread: int, num_calls: int) -> Iterator[bool]:
        blocks = self.gpus[gpu]["threadblocks"]
        for call in range(num_calls):
            while self.call[gpu] < call:
                yield False
            for op in block["ops"]:
                yield from self._op(gpu, block, thread, op)
                yield True
            self.met[gpu, "end", call] += 1
            if self.met[gpu, "end", call] == len(blocks) * NUM_THREADS:
                self._end(gpu)

    def _op(self, gpu: int, block: Any, thread: int, op: Any) -> Iterator[bool]:
        name = op["name"]
        if name == "nop":
            yield from self._meet((gpu, block["id"]), NUM_THREADS)
        elif name == "barrier":
            yield from self._meet((gpu, "barrier", op["barrier_id"]), NUM_THREADS * op["num_threadblocks"])
        elif name in ("sem_acquire", "sem_release"):
            for semaphore in op["semaphore_ids"][thread::NUM_THREADS]:
                while name == "sem_acquire" and self.semaphores[gpu][semaphore] == 0:
                    yield False
                self.semaphores[gpu][semaphore] += 1 if name == "sem_release" else -1
        elif name in ("signal", "rlxsignal", "wait", "rlxwait", "flush"):
            for end in self._ends(gpu, block, op)[thread::NUM_THREADS]:
                if name in ("wait", "rlxwait"):
                    self.expected[end] += 1
                    target = self.expected[end]
                    while self.arrived[end] < target:
                        yield False
                elif name == "flush":
                    while self.proxy[end]:
                        yield False
                elif end[1] == "port":
                    self.proxy[end].append(self._signal(end))
                else:
                    self._signal(end)()
        else:
            yield from self._move(gpu, block, thread, op)

    def _signal(self, end: tuple[int, str, int]) -> Callable[[], None]:
        def signal() -> None:
            self.arrived[self._opposite(end)] += 1

        return signal

    def _move(self, gpu: int, block: Any, thread: int, op: Any) -> Iterator[bool]:
        sources, targets = ([self._place(gpu, block, op, one) for one in op[side]] for side in ("src_buff", "dst_buff"))
        count = op["src_buff"][0]["size"] * NUM_ELEMENTS
        part, parts = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1}).values()
        everything = [divmod(i, NUM_ELEMENTS) for i in range(part * count // parts, (part + 1) * count // parts)]
        if op.get("channel_type") == "port":
            ends = self._ends(gpu, block, op)
            for i in range(thread, len(ends), NUM_THREADS):
                self.proxy[ends[i]].append(self._copying(sources[i], targets[i], everything))
                if op["name"] != "put":
                    self.proxy[ends[i]].append(self._signal(ends[i]))
                while op["name"] == "pwsf" and self.proxy[ends[i]]:
                    yield False
            return
        share = random.Random(repr((gpu, block["id"], block["ops"].index(op), self.call[gpu])))
        mine = [pair for pair in everything if share.randrange(NUM_THREADS) == thread]
        if op["name"].endswith("pkt"):
            yield from self._pass(op["name"], sources, targets, mine, self.call[gpu])
            return
        if op["name"] in ADDS:
            for chunk, element in mine:
                self._set(targets[0], chunk, element, sum(self._get(one, chunk, element) for one in sources))
            sources, targets = [targets[0] for _ in targets[1:]], targets[1:]
        for one, other in zip(sources, targets, strict=True):
            self._copying(one, other, mine)()

    def _pass(self, name: str, sources: list[Any], targets: list[Any], mine: list[Any], call: int) -> Iterator[bool]:
        """Copy or add, element by element: what comes in packets, and what goes out in packets."""
        rounds = [([], [one], [], [other]) for one, other in zip(sources, targets, strict=False)]  # ppkt, cpkt
        if name == "upkt":
            rounds = [(sources, [], targets, [])]
        elif name == "rppkt":
            rounds = [(sources, [], [], targets)]
        elif name.startswith("re"):
            rounds = [(sources[1:], sources[:1], targets[:1], targets[1:])]
        half = call % 2 if self.plan["use_double_scratch_buffer"] else 0
        for arriving, local, stored, leaving in rounds:
            for chunk, element in mine:
                value = 0
                for gpu, _, first in arriving:
                    place = (gpu, half, first + chunk, element)
                    while self.packets.get(place, (0, -1))[1] != call:
                        yield False
                    value += self.packets[place][0]
                value += sum(self._get(one, chunk, element) for one in local)
                for one in stored:
                    self._set(one, chunk, element, value)
                for gpu, _, first in leaving:
                    self.packets[gpu, half, first + chunk, element] = (value, call)
                yield True

    def _copying(
        self, source: tuple[int, str, int], target: tuple[int, str, int], which: list[tuple[int, int]]
    ) -> Callable[[], None]:
        def copy() -> None:
            for chunk, element in which:
                self._set(target, chunk, element, self._get(source, chunk, element))

        return copy

    def _get(self, place: tuple[int, str, int], chunk: int, element: int) -> int:
        gpu, kind, first = place
        return self.memory[(*self.cell(gpu, kind, first + chunk), element)]

    def _set(self, place: tuple[int, str, int], chunk: int, element: int, value: int) -> None:
        gpu, kind, first = place
        self.memory[(*self.cell(gpu, kind, first + chunk), element)] = value
