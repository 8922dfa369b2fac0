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
        window.place = memory.data();
        window.num_bytes = num_bytes;
        std::fill_n(data.data(), num_bytes, std::byte{3});
    }

    ShmTransport &reader() { return world[0].communicator().transport(); }
    ShmTransport &writer() { return world[1].communicator().transport(); }
    void grant() { reader().grant(1, tag, std::span(&window, 1)); }
    bool put(std::byte *place) {
        const int peer = 0;
        return writer().put(std::span(&peer, 1), std::span(&place, 1), data.bytes(), tag, false);
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
        CHECK(pair.reader().may_be_written_by(1));
        CHECK(pair.put(windows[0].place));
        const View view = pair.reader().view(1);
        CHECK(view.bytes.data() == pair.memory.data() && view.bytes.size() == num_bytes && view.tag == tag);
        CHECK(std::ranges::all_of(view.bytes, [](std::byte byte) { return byte == std::byte{3}; }));
        pair.reader().release(1, num_bytes);
        pair.reader().revoke();
        CHECK(!pair.reader().may_be_written_by(1) && pair.memory.is_intact());
        CHECK(pair.writer().granted(0, tag, 1).empty(), "what was granted was for that call");
    }
}

TEST(puts_write_what_is_made_part_by_part) {
    Pair pair(true);
    pair.grant();
    std::byte *const place = pair.writer().granted(0, tag, 0)[0].place;
    const int peer = 0;
    std::size_t made = 0;
    const auto make = [&](std::size_t begin, std::size_t part_bytes, std::byte *also) {
        CHECK(also == place + begin, "where the reader is, in the same pass");
        CHECK(begin == made && part_bytes <= num_bytes - made);
        for (std::size_t i = 0; i < made; ++i) CHECK(pair.memory.data()[i] == std::byte{5}, i, made, "written by now");
        std::fill_n(pair.data.data() + begin, part_bytes, std::byte{5});
        std::fill_n(also, part_bytes, std::byte{5});
        made += part_bytes;
    };
    const auto put = [&] {
        return pair.writer().put(std::span(&peer, 1), std::span(&place, 1), pair.data.bytes(), tag, false, make);
    };
    CHECK(put() && made == num_bytes && pair.memory.is_intact());
    CHECK(std::ranges::equal(pair.reader().view(1).bytes, pair.data.bytes()));
    pair.reader().withdraw();
    CHECK(!put() && made == num_bytes, "nothing is made that cannot be put");
}

TEST(puts_end_when_a_window_is_withdrawn) {
    Pair pair(true);
    pair.grant();
    std::byte *place = pair.writer().granted(0, tag, 0)[0].place;
    pair.reader().withdraw();
    CHECK(!pair.put(place));
    CHECK(pair.memory.data()[0] == std::byte{} && pair.reader().view(1).bytes.empty());
    CHECK(pair.reader().may_be_written_by(1), "a put that had begun may go on");
}

TEST(puts_need_memory_that_the_peer_can_reach) {
    Pair pair(true);
    Buffer own(pair.world[0].arena, Memory::owned, num_bytes);
    pair.window.place = own.data();
    pair.grant();
    CHECK(pair.writer().granted(0, tag, 0).empty() && !pair.reader().may_be_written_by(1));
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

// Data goes one way, and each end has a core.
TEST(puts_are_every_second_piece_of_a_long_registered_broadcast) {
    struct Run {
        const char *what;
        std::size_t num_bytes;
        Memory root = Memory::registered, reader = Memory::registered;
        bool shares_cores = false, is_shared = true;
        std::size_t all_caches = std::size_t{16} << 20;
    };
    const Fixture &direct = fixture("broadcast", "direct", 2, 0, true);
    constexpr std::size_t least = std::size_t{768} << 10;
    for (const Run &run : {
             Run{.what = "long", .num_bytes = least},
             Run{.what = "odd", .num_bytes = least + (std::size_t{256} << 10) + 8},
             Run{.what = "short", .num_bytes = least - 8, .is_shared = false},
             Run{.what = "from private memory", .num_bytes = least, .root = Memory::owned, .is_shared = false},
             Run{.what = "to private memory", .num_bytes = least, .reader = Memory::owned, .is_shared = false},
             Run{.what = "on shared cores", .num_bytes = least, .shares_cores = true, .is_shared = false},
             Run{.what = "on shared cores, though it outgrows caches",
                 .num_bytes = std::size_t{1} << 20,
                 .shares_cores = true,
                 .is_shared = false,
                 .all_caches = std::size_t{1} << 20},
         }) {
        World world(2, {.spin = !run.shares_cores, .as_processes = true});
        Profile profile = measured(run.shares_cores);
        profile.all_caches = run.all_caches;
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
                                                         world[rank].communicator().transport(), profile))
                ->start({.dtype = Dtype::int64,
                         .block = block,
                         .input = memory->data(),
                         .output = memory->data(),
                         .tag = 1});
        };
        start(1); // before the root begins, so that it knows where it may write
        start(0);
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
