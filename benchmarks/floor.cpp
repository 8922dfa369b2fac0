// How fast this machine can be with code that knows its task: written by hand for two ranks, without Python, checks,
// or choice. Processes, one a core, that spin; the protocol is that of comparison/measuring.py.
//
//     floor OPERATION MEMORY RANKS BYTES SECONDS BATCHES        prints seconds of a call: touched untouched
//
// MEMORY private: each rank's buffer is its own, and what travels passes through shared pieces that stay in the cache.
// MEMORY registered: all buffers are shared; a rank adds its part of all of them and writes the sum to all of them.
// With more ranks than cores as many processes as cores do the work of all ranks: copies and additions alone, a bound.
// OPERATION turns: a process for each rank, which writes a line and reads those of all others, and lets the others run
// until all have written: what taking turns alone costs, a bound of whatever makes each rank wait for all.

#include "comparison/touching.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr int most_ranks = 64;
constexpr std::size_t most_batches = 64;
constexpr std::size_t table_bytes = 65 * 64;
constexpr std::size_t ring_slots = 4;
constexpr std::size_t slot_bytes = 256 << 10;
constexpr std::size_t inline_bytes = 48;
constexpr unsigned most_seconds = 10;

// One writer each. Numbers only grow.
struct alignas(64) Signal {
    std::atomic<std::uint64_t> number;
    std::byte payload[inline_bytes];
};

struct Shared {
    Signal inlined[most_ranks][2]; // small messages travel in the line of their number
    Signal staged[most_ranks];     // pieces that lie in `outgoing`
    Signal folded[most_ranks];     // pieces whose sum lies in `results`
    Signal taken[most_ranks];      // pieces that this rank needs no more
    Signal arrived[most_ranks];    // of the barrier
    double loops[most_ranks][3][most_batches];
    bool wrong;
    alignas(4096) std::byte outgoing[2][ring_slots][slot_bytes];
    alignas(4096) std::byte results[2][ring_slots][slot_bytes];
};

void *map(std::size_t bytes, int kind) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("mmap");
        std::exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

int num_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

void await(const Signal &signal, std::uint64_t number, bool yields = false) {
    while (signal.number.load(std::memory_order_acquire) < number) {
        if (yields) {
            sched_yield();
        } else {
            __builtin_ia32_pause();
        }
    }
}

void tell(Signal &signal, std::uint64_t number) { signal.number.store(number, std::memory_order_release); }

void add(float *__restrict result, const float *__restrict other, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) { result[i] += other[i]; }
}

// Both get the sum.
void add_into_both(float *__restrict one, float *__restrict other, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) { other[i] = one[i] += other[i]; }
}

// What lies in shared pieces is read by the other core only. Where the two share no cache, lines that come from memory
// can be had sooner than lines that are dirty in the other's cache.
void lay_out(void *to, const void *from, std::size_t bytes, bool streamed) {
#if defined(__AVX2__)
    if (streamed) {
        constexpr std::size_t width = sizeof(__m256i);
        auto *const target = static_cast<std::byte *>(to);
        const auto *const source = static_cast<const std::byte *>(from);
        std::size_t place = 0;
        for (; place + width <= bytes; place += width) {
            _mm256_stream_si256(reinterpret_cast<__m256i *>(target + place),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i *>(source + place)));
        }
        std::memcpy(target + place, source + place, bytes - place);
        _mm_sfence();
        return;
    }
#endif
    std::memcpy(to, from, bytes);
}

enum class Way { inlined, one_shot, two_shot, broadcast_staged, all_reduce_shared, broadcast_shared };

struct Variant {
    Way way;
    std::size_t piece_bytes;
    bool streamed;
};

// One process of `num_workers`; rank = index where there are as many ranks as cores allow.
class Worker {
  public:
    Worker(Shared &shared, int index, int num_workers, std::vector<std::span<std::byte>> buffers)
        : shared_(shared), index_(index), num_workers_(num_workers), buffers_(std::move(buffers)) {}

    void barrier() {
        tell(shared_.arrived[index_], ++barriers_);
        for (int other = 0; other < num_workers_; ++other) { await(shared_.arrived[other], barriers_); }
    }

    void call(const Variant &variant) {
        switch (variant.way) {
        case Way::inlined: return inlined();
        case Way::one_shot: return one_shot(variant.piece_bytes, variant.streamed);
        case Way::two_shot: return two_shot(variant.piece_bytes, variant.streamed);
        case Way::broadcast_staged: return broadcast_staged(variant.piece_bytes, variant.streamed);
        case Way::all_reduce_shared: return all_reduce_shared(variant.piece_bytes);
        case Way::broadcast_shared: return broadcast_shared();
        }
    }

  private:
    std::span<std::byte> own() { return buffers_[static_cast<std::size_t>(index_)]; }
    int peer() const { return 1 - index_; }
    static float *floats(std::byte *bytes) { return reinterpret_cast<float *>(bytes); }

    // Two lines in turn: the peer has read the last but one when its next number is seen.
    void inlined() {
        Signal &mine = shared_.inlined[index_][++calls_ & 1];
        const Signal &other = shared_.inlined[peer()][calls_ & 1];
        std::memcpy(mine.payload, own().data(), own().size());
        tell(mine, calls_);
        await(other, calls_);
        add(floats(own().data()), reinterpret_cast<const float *>(other.payload), own().size() / sizeof(float));
    }

    // Every rank gets all of the other's input and adds it: copied once, read once.
    void one_shot(std::size_t piece_bytes, bool streamed) {
        const std::size_t num_pieces = (own().size() + piece_bytes - 1) / piece_bytes;
        for (std::size_t piece = 0; piece <= num_pieces; ++piece) {
            if (piece < num_pieces) {
                const std::uint64_t number = pieces_ + piece + 1;
                await(shared_.taken[peer()], number < ring_slots ? 0 : number - ring_slots);
                const std::span<std::byte> part = piece_of(own(), piece, piece_bytes);
                lay_out(shared_.outgoing[index_][number % ring_slots], part.data(), part.size(), streamed);
                tell(shared_.staged[index_], number);
            }
            if (piece > 0) { // a piece behind, so that the other had time
                const std::uint64_t number = pieces_ + piece;
                const std::span<std::byte> part = piece_of(own(), piece - 1, piece_bytes);
                await(shared_.staged[peer()], number);
                add(floats(part.data()), floats(shared_.outgoing[peer()][number % ring_slots]),
                    part.size() / sizeof(float));
                tell(shared_.taken[index_], number);
            }
        }
        pieces_ += num_pieces;
        tell(shared_.folded[index_], pieces_); // as two_shot counts
    }

    // Every rank adds half: it is sent the other's half, and sends the sum back.
    void two_shot(std::size_t piece_bytes, bool streamed) {
        const std::size_t half = own().size() / 2 / 64 * 64;
        const std::span<std::byte> halves[2] = {own().first(half), own().subspan(half)};
        const std::size_t longest = own().size() - half;
        const std::size_t num_pieces = (longest + piece_bytes - 1) / piece_bytes;
        for (std::size_t piece = 0; piece < num_pieces + 2; ++piece) {
            if (piece < num_pieces) {
                const std::uint64_t number = pieces_ + piece + 1;
                await(shared_.folded[peer()], number < ring_slots ? 0 : number - ring_slots);
                const std::span<std::byte> part = piece_of(halves[peer()], piece, piece_bytes);
                lay_out(shared_.outgoing[index_][number % ring_slots], part.data(), part.size(), streamed);
                tell(shared_.staged[index_], number);
            }
            if (piece >= 1 && piece <= num_pieces) {
                const std::uint64_t number = pieces_ + piece;
                const std::span<std::byte> part = piece_of(halves[index_], piece - 1, piece_bytes);
                await(shared_.staged[peer()], number);
                await(shared_.taken[peer()], number < ring_slots ? 0 : number - ring_slots);
                add(floats(part.data()), floats(shared_.outgoing[peer()][number % ring_slots]),
                    part.size() / sizeof(float));
                lay_out(shared_.results[index_][number % ring_slots], part.data(), part.size(), streamed);
                tell(shared_.folded[index_], number);
            }
            if (piece >= 2) {
                const std::uint64_t number = pieces_ + piece - 1;
                const std::span<std::byte> part = piece_of(halves[peer()], piece - 2, piece_bytes);
                await(shared_.folded[peer()], number);
                std::memcpy(part.data(), shared_.results[peer()][number % ring_slots], part.size());
                tell(shared_.taken[index_], number);
            }
        }
        pieces_ += num_pieces;
    }

    void broadcast_staged(std::size_t piece_bytes, bool streamed) {
        const std::size_t num_pieces = (own().size() + piece_bytes - 1) / piece_bytes;
        for (std::size_t piece = 0; piece < num_pieces; ++piece) {
            const std::uint64_t number = pieces_ + piece + 1;
            const std::span<std::byte> part = piece_of(own(), piece, piece_bytes);
            if (index_ == 0) {
                await(shared_.taken[1], number < ring_slots ? 0 : number - ring_slots);
                lay_out(shared_.outgoing[0][number % ring_slots], part.data(), part.size(), streamed);
                tell(shared_.staged[0], number);
            } else {
                await(shared_.staged[0], number);
                std::memcpy(part.data(), shared_.outgoing[0][number % ring_slots], part.size());
                tell(shared_.taken[1], number);
            }
        }
        pieces_ += num_pieces;
    }

    // The sum of a piece is written everywhere while it is hot.
    void all_reduce_shared(std::size_t piece_bytes) {
        barrier();
        const std::size_t share = (own().size() / static_cast<std::size_t>(num_workers_) + 63) / 64 * 64;
        const std::size_t begin = std::min(own().size(), share * static_cast<std::size_t>(index_));
        const std::size_t end = std::min(own().size(), begin + share);
        const std::size_t first = static_cast<std::size_t>(index_);
        for (std::size_t place = begin; place < end; place += piece_bytes) {
            const std::size_t count = std::min(piece_bytes, end - place) / sizeof(float);
            float *const sum = floats(buffers_[first].data() + place);
            for (std::size_t next = 1; next + 1 < buffers_.size(); ++next) {
                add(sum, floats(buffers_[(first + next) % buffers_.size()].data() + place), count);
            }
            const std::size_t last = (first + buffers_.size() - 1) % buffers_.size();
            add_into_both(sum, floats(buffers_[last].data() + place), count);
            for (std::size_t next = 1; next + 1 < buffers_.size(); ++next) {
                std::memcpy(buffers_[(first + next) % buffers_.size()].data() + place, sum, count * sizeof(float));
            }
        }
        barrier();
    }

    // The root pushes one half while the other rank pulls the other.
    void broadcast_shared() {
        barrier();
        const std::size_t half = own().size() / 2 / 64 * 64;
        const std::span<std::byte> from = buffers_[0];
        const std::span<std::byte> to = buffers_[1];
        if (index_ == 0) {
            std::memcpy(to.data(), from.data(), half);
        } else {
            std::memcpy(to.data() + half, from.data() + half, to.size() - half);
        }
        barrier();
    }

    static std::span<std::byte> piece_of(std::span<std::byte> whole, std::size_t piece, std::size_t piece_bytes) {
        const std::size_t begin = std::min(whole.size(), piece * piece_bytes);
        return whole.subspan(begin, std::min(piece_bytes, whole.size() - begin));
    }

    Shared &shared_;
    int index_;
    int num_workers_;
    std::vector<std::span<std::byte>> buffers_;
    std::uint64_t barriers_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t pieces_ = 0;
};

std::vector<Variant> variants_of(const std::string &operation, const std::string &memory, int ranks,
                                 std::size_t bytes) {
    if (operation == "all_reduce" && ranks == 2 && bytes <= inline_bytes) { return {{Way::inlined, bytes, false}}; }
    const std::size_t pieces[] = {4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10};
    std::vector<Variant> found;
    for (const std::size_t piece : pieces) {
        if (piece != pieces[0] && (piece > bytes || piece * 512 < bytes)) { continue; }
        if (memory == "registered") {
            found.push_back({operation == "all_reduce" ? Way::all_reduce_shared : Way::broadcast_shared, piece, false});
            continue;
        }
        for (const bool streamed : {false, true}) {
            if (operation == "broadcast") {
                found.push_back({Way::broadcast_staged, piece, streamed});
            } else {
                found.push_back({Way::one_shot, piece, streamed});
                found.push_back({Way::two_shot, piece, streamed});
            }
        }
    }
    return found;
}

struct Task {
    std::string operation;
    std::string memory;
    int ranks;
    std::size_t bytes;
    double seconds;
    std::size_t batches;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// What one rank gives: whole numbers, and the sum over ranks is known.
std::vector<float> table_of(int rank) {
    std::vector<float> table(table_bytes / sizeof(float));
    for (std::size_t i = 0; i < table.size(); ++i) {
        table[i] = static_cast<float>(i * 7 % 23 + static_cast<std::size_t>(rank));
    }
    return table;
}

std::span<const std::byte> bytes_of(const std::vector<float> &table) { return std::as_bytes(std::span(table)); }

// The loops of one process, into shared.loops: touched, touching alone, untouched.
void work(Shared &shared, const Task &task, int index, int num_workers, std::vector<std::span<std::byte>> buffers) {
    const bool all_reduce = task.operation == "all_reduce";
    std::vector<std::size_t> mine; // the ranks whose work this process does
    for (std::size_t rank = static_cast<std::size_t>(index); rank < buffers.size();
         rank += static_cast<std::size_t>(num_workers)) {
        mine.push_back(rank);
    }
    std::vector<std::vector<float>> tables;
    std::vector<float> total(table_bytes / sizeof(float));
    for (int rank = 0; rank < task.ranks; ++rank) {
        tables.push_back(table_of(rank));
        for (std::size_t i = 0; i < total.size(); ++i) { total[i] += all_reduce || rank == 0 ? tables.back()[i] : 0; }
    }
    std::uint64_t seen = 0;
    const auto touch = [&] {
        for (const std::size_t rank : mine) {
            if (all_reduce || rank != 0) { seen += touching::sum_of_lines(buffers[rank]); }
            if (all_reduce || rank == 0) { touching::write(buffers[rank], bytes_of(tables[rank])); }
        }
    };
    Worker worker(shared, index, num_workers, buffers);
    const auto timed = [&](std::size_t num_calls, auto &&body) {
        worker.barrier();
        const double began = now();
        for (std::size_t i = 0; i < num_calls; ++i) { body(); }
        return now() - began;
    };
    const auto agreed = [&](double own) { // the slowest
        shared.loops[index][0][0] = own;
        worker.barrier();
        double slowest = 0;
        for (int other = 0; other < num_workers; ++other) { slowest = std::max(slowest, shared.loops[other][0][0]); }
        worker.barrier();
        return slowest;
    };
    Variant best{};
    double least = std::numeric_limits<double>::infinity();
    std::size_t num_calls = 1;
    for (const Variant &variant : variants_of(task.operation, task.memory, task.ranks, task.bytes)) {
        const auto body = [&] {
            touch();
            worker.call(variant);
        };
        const double once = agreed(timed(2, body)) / 2;
        const std::size_t calls = std::clamp<std::size_t>(static_cast<std::size_t>(task.seconds / once / 4), 1, 20'000);
        const double spent = agreed(timed(calls, body)) / static_cast<double>(calls);
        for (const std::size_t rank : mine) {
            touching::along(buffers[rank], bytes_of(total), 0, [&](auto part, auto wanted) {
                shared.wrong = shared.wrong || std::memcmp(part.data(), wanted.data(), part.size()) != 0;
                return !shared.wrong;
            });
        }
        if (spent < least) {
            least = spent;
            best = variant;
            num_calls = std::clamp<std::size_t>(static_cast<std::size_t>(task.seconds / spent), 1, 20'000);
        }
    }
    for (std::size_t batch = 0; batch < task.batches; ++batch) {
        const double touched = timed(num_calls, [&] {
            touch();
            worker.call(best);
        });
        const double touching_alone = timed(num_calls, touch);
        const double untouched = timed(num_calls, [&] { worker.call(best); });
        const double found[] = {touched, touching_alone, untouched};
        for (std::size_t loop = 0; loop < 3; ++loop) {
            shared.loops[index][loop][batch] = found[loop] / static_cast<double>(num_calls);
        }
    }
    asm volatile("" : : "r"(seen)); // what was read counts as used
}

// There is nothing to touch, so all loops are one.
void take_turns(Shared &shared, const Task &task, int index) {
    std::uint64_t number = 0;
    const bool yields = task.ranks > num_cores();
    const auto once = [&] {
        tell(shared.arrived[index], ++number);
        for (int other = 0; other < task.ranks; ++other) { await(shared.arrived[other], number, yields); }
    };
    constexpr int trial = 100;
    once(); // all have started
    double began = now();
    for (int i = 0; i < trial; ++i) { once(); }
    shared.loops[index][0][0] = (now() - began) / trial;
    once();
    double slowest = 0;
    for (int other = 0; other < task.ranks; ++other) { slowest = std::max(slowest, shared.loops[other][0][0]); }
    const auto calls = std::clamp<std::size_t>(static_cast<std::size_t>(task.seconds / slowest), 1, 20'000);
    once();
    for (std::size_t batch = 0; batch < task.batches; ++batch) {
        once();
        began = now();
        for (std::size_t i = 0; i < calls; ++i) { once(); }
        const double spent = (now() - began) / static_cast<double>(calls);
        shared.loops[index][0][batch] = shared.loops[index][2][batch] = spent;
        shared.loops[index][1][batch] = 0;
    }
}

// Of each batch the slowest process, of these the median.
double median_of(const Shared &shared, const Task &task, int num_workers, std::size_t loop) {
    std::vector<double> slowest;
    for (std::size_t batch = 0; batch < task.batches; ++batch) {
        double most = 0;
        for (int index = 0; index < num_workers; ++index) { most = std::max(most, shared.loops[index][loop][batch]); }
        slowest.push_back(most);
    }
    std::nth_element(slowest.begin(), slowest.begin() + static_cast<std::ptrdiff_t>(slowest.size() / 2), slowest.end());
    return slowest[slowest.size() / 2];
}

} // namespace

int main(int count, char **words) {
    if (count != 7) {
        std::fprintf(stderr,
                     "usage: floor all_reduce|broadcast|turns private|registered RANKS BYTES SECONDS BATCHES\n");
        return 2;
    }
    const Task task{
        words[1], words[2], std::atoi(words[3]), std::stoul(words[4]), std::atof(words[5]), std::stoul(words[6])};
    const int cores = num_cores();
    const bool turns = task.operation == "turns";
    const int num_workers = turns ? task.ranks : std::min(task.ranks, cores);
    const bool by_two = !turns && (task.operation == "broadcast" || task.memory == "private");
    if (task.ranks < 2 || task.ranks > most_ranks || task.batches < 1 || task.batches > most_batches ||
        task.bytes % 4 != 0 || (by_two && (task.ranks != 2 || num_workers != 2)) || num_workers < 2) {
        std::fprintf(stderr, "floor: cannot do this with %d cores\n", cores);
        return 2;
    }
    Shared &shared = *new (map(sizeof(Shared), MAP_SHARED)) Shared{};
    std::vector<std::span<std::byte>> buffers;
    for (int rank = 0; rank < task.ranks && !turns; ++rank) {
        auto *const memory =
            static_cast<std::byte *>(map(task.bytes, task.memory == "registered" ? MAP_SHARED : MAP_PRIVATE));
        buffers.emplace_back(memory, task.bytes);
    }
    std::vector<pid_t> children;
    for (int index = 0; index < num_workers; ++index) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(most_seconds); // spinning alone cannot go on for ever
            if (turns) {
                take_turns(shared, task, index);
            } else {
                work(shared, task, index, num_workers, buffers);
            }
            _exit(0);
        }
        children.push_back(child);
    }
    bool well = true;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        well = well && status == 0;
    }
    if (!well || shared.wrong) {
        std::fprintf(stderr, "floor: %s\n", well ? "a wrong result" : "a process failed");
        return 1;
    }
    std::printf("%.9g %.9g\n",
                std::max(median_of(shared, task, num_workers, 0) - median_of(shared, task, num_workers, 1), 1e-9),
                median_of(shared, task, num_workers, 2));
}
