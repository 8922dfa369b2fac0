// Puts: a sender writes where its reader lets it, and nowhere else.

#include "check.h"
#include "executor/executor.h"
#include "kernels/copy.h"
#include "world.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::size_t num_bytes = 20'000;

/// Two ranks in one thread; rank 0 grants one window of its own memory to rank 1.
struct Pair {
    explicit Pair(bool as_processes) : world(2, {.as_processes = as_processes}) {
        window.target.place = memory.data();
        window.num_bytes = num_bytes;
        std::fill_n(data.data(), num_bytes, std::byte{3});
    }

    ShmTransport &reader() { return world[0].communicator().transport(); }
    ShmTransport &writer() { return world[1].communicator().transport(); }
    void grant() { reader().grant(1, tag, std::span(&window, 1), false, false); }
    bool put(std::byte *place) {
        const int peer = 0;
        const Target target{place};
        return writer().put(std::span(&peer, 1), std::span(&target, 1), data.bytes(), tag, false);
    }

    World world;
    Buffer memory{world[0].arena, Memory::registered, num_bytes}, data{world[1].arena, Memory::owned, num_bytes};
    Window window;
};

} // namespace

TEST(puts_show_the_reader_its_own_memory) {
    for (const bool as_processes : {false, true}) {
        Pair pair(as_processes);
        CHECK(pair.writer().granted(0, tag, 0).empty(), "nothing yet");
        pair.grant();
        CHECK(pair.writer().granted(0, tag + 1, 0).empty(), "another call");
        CHECK(pair.writer().granted(0, tag, 1).empty(), "a later call");
        const auto windows = pair.writer().granted(0, tag, 0);
        CHECK(windows.size() == 1 && windows[0].num_bytes == num_bytes && windows[0].after_step == -1);
        CHECK(pair.reader().may_be_used_by(1));
        CHECK(pair.put(windows[0].target.place));
        const View view = pair.reader().view(1);
        CHECK(view.bytes.data() == pair.memory.data() && view.bytes.size() == num_bytes && view.tag == tag);
        CHECK(std::ranges::all_of(view.bytes, [](std::byte byte) { return byte == std::byte{3}; }));
        pair.reader().release(1, num_bytes);
        pair.reader().revoke();
        CHECK(!pair.reader().may_be_used_by(1) && pair.memory.is_intact());
        CHECK(pair.writer().granted(0, tag, 1).empty(), "what was granted was for that call");
    }
}

TEST(puts_are_exact_whether_they_are_watched_or_not) {
    constexpr std::size_t least = 4096; // of the watched messages: one in eight
    Pair pair(true);
    pair.grant();
    const Target target{pair.writer().granted(0, tag, 0)[0].target};
    const int peer = 0;
    for (std::size_t turn = 0; turn < 40; ++turn) {
        const std::size_t size = least - 1 + turn * 100;
        for (std::size_t i = 0; i < size; ++i) pair.data.data()[i] = static_cast<std::byte>((turn + i) % 251);
        const Bytes bytes(pair.data.data(), size);
        CHECK(pair.writer().put(std::span(&peer, 1), std::span(&target, 1), bytes, tag, false));
        CHECK(std::ranges::equal(pair.reader().view(1).bytes, bytes), turn);
        pair.reader().release(1, size);
    }
    CHECK(pair.memory.is_intact());
}

TEST(puts_write_what_is_made_part_by_part) {
    Pair pair(true);
    pair.grant();
    const Target target{pair.writer().granted(0, tag, 0)[0].target};
    const int peer = 0;
    std::size_t made = 0;
    const auto make = [&](std::size_t begin, std::size_t part_bytes, std::byte *also) {
        CHECK(also == target.place + begin, "where the reader is, in the same pass");
        CHECK(begin == made && part_bytes <= num_bytes - made);
        for (std::size_t i = 0; i < made; ++i) CHECK(pair.memory.data()[i] == std::byte{5}, i, made, "written by now");
        std::fill_n(pair.data.data() + begin, part_bytes, std::byte{5});
        std::fill_n(also, part_bytes, std::byte{5});
        made += part_bytes;
    };
    const auto put = [&] {
        return pair.writer().put(std::span(&peer, 1), std::span(&target, 1), pair.data.bytes(), tag, false, make);
    };
    CHECK(put() && made == num_bytes && pair.memory.is_intact());
    CHECK(std::ranges::equal(pair.reader().view(1).bytes, pair.data.bytes()));
    pair.reader().withdraw();
    CHECK(!put() && made == num_bytes, "nothing is made that cannot be put");
}

TEST(puts_end_when_a_window_is_withdrawn) {
    Pair pair(true);
    pair.grant();
    std::byte *place = pair.writer().granted(0, tag, 0)[0].target.place;
    pair.reader().withdraw();
    CHECK(!pair.put(place));
    CHECK(pair.memory.data()[0] == std::byte{} && pair.reader().view(1).bytes.empty());
    CHECK(pair.reader().may_be_used_by(1), "a put that had begun may go on");
}

TEST(puts_need_memory_that_the_peer_can_reach) {
    Pair pair(true);
    Buffer own(pair.world[0].arena, Memory::owned, num_bytes);
    pair.window.target.place = own.data();
    pair.grant();
    CHECK(pair.writer().granted(0, tag, 0).empty() && !pair.reader().may_be_used_by(1));
}

TEST(puts_trust_no_window_outside_of_the_peers_arena) {
    Pair pair(true);
    pair.grant();
    auto &entry = pair.reader().endpoint(0).board(1).entries[0];
    entry.place = pair.world[0].arena->mapping()->num_bytes() - num_bytes + 1;
    CHECK(pair.writer().granted(0, tag, 0).empty());
}

// Two ranks sum in place, in two steps: each folds one half, then the other rank needs the result in the memory that it
// has lent as an operand of that fold.
TEST(puts_wait_until_what_lay_there_has_been_folded) {
    const Fixture &two_shot = fixture("all_reduce", "direct_two_shot", 2, 0, true);
    constexpr std::size_t block = 100'003; // elements: several pieces, the last one odd
    for (const bool as_processes : {false, true}) {
        World world(2, {.as_processes = as_processes});
        std::vector<std::unique_ptr<Buffer>> memories;
        std::vector<std::unique_ptr<Executor>> executors;
        for (int rank = 0; rank < 2; ++rank) {
            memories.push_back(
                std::make_unique<Buffer>(world[rank].arena, Memory::registered, block * sizeof(std::int64_t)));
            executors.push_back(std::make_unique<Executor>(*two_shot.plans[static_cast<std::size_t>(rank)],
                                                           world[rank].communicator().transport()));
        }
        bool has_put = false;
        for (unsigned seed = 0; seed < 20; ++seed) {
            std::mt19937 random(seed);
            for (std::size_t rank = 0; rank < 2; ++rank) {
                std::vector<std::int64_t> values(block);
                for (std::size_t i = 0; i < block; ++i) values[i] = static_cast<std::int64_t>((rank + 1) * i + seed);
                std::memcpy(memories[rank]->data(), values.data(), block * sizeof(std::int64_t));
            }
            std::array<bool, 2> begun{}, done{};
            while (!done[0] || !done[1]) {
                const std::size_t rank = random() % 2;
                if (done[rank]) continue;
                if (!begun[rank]) {
                    executors[rank]->start({.dtype = Dtype::int64,
                                            .op = Op::sum,
                                            .block = block,
                                            .input = memories[rank]->data(),
                                            .output = memories[rank]->data(),
                                            .tag = seed + 1});
                    begun[rank] = true;
                }
                done[rank] = executors[rank]->advance();
            }
            const Endpoint::Line *ring = world[0].communicator().transport().endpoint(0).ring(Lane::collectives, 1);
            for (std::uint64_t i = 0; i < largest_ring; ++i) {
                const bool is_put = as_processes ? ring[i].tier == Endpoint::Tier::put
                                                 : ring[i].elsewhere.address >= memories[1]->bytes().data() &&
                                                       ring[i].elsewhere.address < memories[1]->bytes().data() + block;
                has_put = has_put || is_put;
            }
            for (const auto &memory : memories) {
                CHECK(memory->is_intact());
                for (std::size_t i = 0; i < block; ++i) {
                    std::int64_t found = 0;
                    std::memcpy(&found, memory->data() + i * sizeof found, sizeof found);
                    CHECK(found == static_cast<std::int64_t>(3 * i + 2 * seed), i, found);
                }
            }
        }
        CHECK(has_put);
    }
}

// Data goes one way, and each end has a core. The first rank waits a moment, until it knows whether it may write.
TEST(puts_are_every_second_piece_of_a_long_registered_broadcast) {
    struct Run {
        const char *what;
        std::size_t num_bytes;
        Memory root = Memory::registered, reader = Memory::registered;
        bool shares_cores = false, waits = true, is_shared = true;
        std::size_t least_bytes_past_caches = std::size_t{16} << 20;
    };
    const Fixture &direct = fixture("broadcast", "direct", 2, 0, true);
    // With data that fits in a core's own cache, only string moves do so.
    const std::size_t held = has_quick_string_moves() ? 0 : bytes_of_own_cache(),
                      least = std::max(std::size_t{768} << 10, held + piece_bytes);
    for (const Run &run : {
             Run{.what = "long", .num_bytes = least},
             Run{.what = "odd", .num_bytes = least + (std::size_t{256} << 10) + 8},
             Run{.what = "short",
                 .num_bytes = std::max(std::size_t{760} << 10, held),
                 .waits = false,
                 .is_shared = false},
             Run{.what = "from private memory",
                 .num_bytes = least,
                 .root = Memory::owned,
                 .waits = false,
                 .is_shared = false},
             Run{.what = "to private memory", .num_bytes = least, .reader = Memory::owned, .is_shared = false},
             Run{.what = "on shared cores",
                 .num_bytes = least,
                 .shares_cores = true,
                 .waits = false,
                 .is_shared = false},
             Run{.what = "on shared cores, though it outgrows caches",
                 .num_bytes = std::size_t{1} << 20,
                 .shares_cores = true,
                 .waits = false,
                 .is_shared = false,
                 .least_bytes_past_caches = std::size_t{1} << 20},
         }) {
        World world(2, {.spin = !run.shares_cores, .as_processes = true});
        ShmTransport &root = world[0].communicator().transport();
        std::vector<std::unique_ptr<Buffer>> memories;
        std::vector<std::unique_ptr<Executor>> executors;
        const std::size_t block = run.num_bytes / sizeof(std::int64_t);
        const auto start = [&](int rank) {
            auto &memory = memories.emplace_back(
                std::make_unique<Buffer>(world[rank].arena, rank == 0 ? run.root : run.reader, run.num_bytes));
            auto *const values = reinterpret_cast<std::int64_t *>(memory->data());
            std::iota(values, values + block, rank == 0 ? 5 : -7);
            executors
                .emplace_back(std::make_unique<Executor>(*direct.plans[static_cast<std::size_t>(rank)],
                                                         world[rank].communicator().transport(),
                                                         run.least_bytes_past_caches))
                ->start({.dtype = Dtype::int64,
                         .block = block,
                         .input = memory->data(),
                         .output = memory->data(),
                         .tag = 1});
        };
        start(0);
        CHECK(!executors[0]->advance() && (root.posted(1) == 0) == run.waits, run.what);
        start(1);
        executors[0]->advance();
        CHECK(root.posted(1) > 0, run.what, "it has been told");
        for (bool done = false; !done;) {
            done = true;
            for (const auto &executor : executors) done = executor->advance() && done;
        }
        const Endpoint::Line *const ring = root.endpoint(0).ring(Lane::collectives, 1);
        for (std::uint64_t i = 0; i < root.posted(1); ++i) {
            CHECK((ring[i].tier == Endpoint::Tier::put) == (run.is_shared && i % 2 == 1), run.what, i);
        }
        CHECK(std::memcmp(memories[0]->data(), memories[1]->data(), run.num_bytes) == 0, run.what);
        CHECK(memories[1]->is_intact() && memories[1]->data()[0] == std::byte{5}, run.what);
    }
}

// Each of two ranks with a core sends data to the other and also copies it for itself. The first rank copies until it
// may write, and lends the rest when it has nothing else to copy.
TEST(puts_follow_the_copy_that_a_rank_keeps) {
    struct Run {
        const char *what;
        std::size_t num_bytes;
        Memory inputs = Memory::registered, output = Memory::registered; // of rank 1; rank 0 has registered ones
        bool in_place = false, shares_cores = false;
        int turns_before = 1; // of rank 0
        bool waits = true;    // rank 0, to send
        bool puts = true;
        std::size_t num_puts_back = 0; // of rank 1
    };
    constexpr std::size_t mib = std::size_t{1} << 20;
    for (const Run &run : {
             Run{.what = "long", .num_bytes = 4 * mib, .num_puts_back = 32},
             Run{.what = "odd", .num_bytes = 4 * mib - 8, .num_puts_back = 32},
             Run{.what = "from private memory", .num_bytes = 4 * mib, .inputs = Memory::owned, .num_puts_back = 32},
             Run{.what = "to private memory", .num_bytes = 4 * mib, .output = Memory::owned, .puts = false},
             Run{.what = "in place", .num_bytes = 4 * mib, .in_place = true, .waits = false, .puts = false},
             Run{.what = "on shared cores", .num_bytes = 4 * mib, .shares_cores = true, .waits = false, .puts = false},
             Run{.what = "late", .num_bytes = 4 * mib, .turns_before = 9, .waits = false, .puts = false},
             Run{.what = "short", .num_bytes = mib / 8 - 8, .waits = false, .puts = false},
         }) {
        const Fixture &direct = fixture("all_gather", "direct", 2, 0, run.in_place);
        World world(2, {.spin = !run.shares_cores, .as_processes = true});
        std::vector<std::unique_ptr<Buffer>> inputs, outputs;
        std::vector<std::unique_ptr<Executor>> executors;
        const std::size_t block = run.num_bytes / sizeof(std::int64_t);
        const auto transport = [&](int rank) -> ShmTransport & { return world[rank].communicator().transport(); };
        const auto start = [&](int rank) {
            const auto &arena = world[rank].arena;
            const Memory of_input = rank == 1 ? run.inputs : Memory::registered;
            const Memory of_output = rank == 1 ? run.output : Memory::registered;
            auto &input = inputs.emplace_back(std::make_unique<Buffer>(arena, of_input, run.num_bytes));
            auto &output = outputs.emplace_back(std::make_unique<Buffer>(arena, of_output, 2 * run.num_bytes));
            std::byte *const own = output->data() + static_cast<std::size_t>(rank) * run.num_bytes;
            auto *const values = reinterpret_cast<std::int64_t *>(run.in_place ? own : input->data());
            std::iota(values, values + block, rank * 1'000'000'007LL);
            executors
                .emplace_back(
                    std::make_unique<Executor>(*direct.plans[static_cast<std::size_t>(rank)], transport(rank)))
                ->start({.dtype = Dtype::int64,
                         .block = block,
                         .input = run.in_place ? own : input->data(),
                         .output = output->data(),
                         .tag = 1});
        };
        const auto num_puts = [&](int rank) {
            const Endpoint::Line *const ring = transport(rank).endpoint(rank).ring(Lane::collectives, 1 - rank);
            const auto is_put = [](const Endpoint::Line &line) { return line.tier == Endpoint::Tier::put; };
            return static_cast<std::size_t>(std::count_if(ring, ring + transport(rank).posted(1 - rank), is_put));
        };
        start(0);
        for (int turn = 0; turn < run.turns_before; ++turn) CHECK(!executors[0]->advance(), run.what);
        CHECK((transport(0).posted(1) == 0) == run.waits, run.what, transport(0).posted(1));
        start(1);
        executors[0]->advance();
        CHECK(transport(0).posted(1) > 0, run.what, "it has been told");
        for (std::array<bool, 2> done{}; !done[0] || !done[1];) {
            for (std::size_t rank = 0; rank < 2; ++rank) done[rank] = done[rank] || executors[rank]->advance();
        }
        CHECK((num_puts(0) > 0) == run.puts, run.what, num_puts(0));
        CHECK(num_puts(1) == run.num_puts_back, run.what, num_puts(1));
        std::vector<std::int64_t> expected(2 * block);
        for (std::size_t rank = 0; rank < 2; ++rank) {
            const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(rank * block);
            std::iota(begin, begin + static_cast<std::ptrdiff_t>(block),
                      static_cast<std::int64_t>(rank) * 1'000'000'007LL);
        }
        for (const auto &output : outputs) {
            CHECK(output->is_intact(), run.what);
            CHECK(std::memcmp(output->data(), expected.data(), 2 * run.num_bytes) == 0, run.what);
        }
    }
}
