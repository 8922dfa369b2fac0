// Attached chunks: private memory that its reader copies by the system, and that nobody else writes.

#include "check.h"
#include "executor/executor.h"
#include "matchers.h"
#include "processes.h"
#include "transport/shm/attach.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::size_t num_bytes = std::size_t{64} << 10;

/// Two ranks in one thread that believe that they are processes; rank 1 lends private memory to rank 0.
struct Pair {
    explicit Pair(bool may_attach = true, bool spin = false)
        : world(2, {.spin = spin, .as_processes = true, .may_attach = may_attach}) {
        window.place = memory.data();
        window.num_bytes = num_bytes;
        std::fill_n(data.data(), num_bytes, std::byte{3});
    }

    ShmTransport &reader() { return world[0].communicator().transport(); }
    ShmTransport &writer() { return world[1].communicator().transport(); }
    Taken lend(Bytes bytes) {
        const int peer = 0;
        return writer().post(std::span(&peer, 1), bytes, tag, {.way = Way::fetch});
    }

    World world;
    Buffer memory{world[0].arena, Memory::owned, num_bytes}, data{world[1].arena, Memory::owned, num_bytes};
    Window window;
};

bool is_refused(ShmTransport &reader) {
    return failure_of([&] { reader.view(1); }).has_value();
}

/// Returns how the first message of an exchange of int64 blocks goes, and checks the result. One rank runs after the
/// other: no rank grants anything, and the first one does not wait for the other.
Endpoint::Tier tier_of(const std::string &collective, bool spin, std::size_t count, std::string_view processor,
                       Memory memory = Memory::huge) {
    const Launch launch{.dtype = Dtype::int64, .op = Op::sum, .block = count, .tag = tag};
    const Fixture &plans = fixture(collective.c_str(), "direct", 2);
    Pair pair(true, spin);
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::span<std::int64_t> inputs[2], outputs[2];
    const auto take = [&](std::size_t rank) {
        const auto &arena = pair.world[static_cast<int>(rank)].arena;
        buffers.push_back(std::make_unique<Buffer>(arena, memory, 2 * count * sizeof(std::int64_t)));
        return std::span(reinterpret_cast<std::int64_t *>(buffers.back()->data()), 2 * count);
    };
    std::vector<std::unique_ptr<Executor>> executors;
    for (std::size_t rank = 0; rank < 2; ++rank) {
        inputs[rank] = take(rank);
        std::iota(inputs[rank].begin(), inputs[rank].end(), static_cast<std::int64_t>(rank * 10 * count));
        outputs[rank] = take(rank);
        auto &transport = pair.world[static_cast<int>(rank)].communicator().transport();
        executors.push_back(std::make_unique<Executor>(*plans.plans[rank], transport, measured(!spin, processor)));
        Launch run = launch;
        run.input = reinterpret_cast<std::byte *>(inputs[rank].data());
        run.output = reinterpret_cast<std::byte *>(outputs[rank].data());
        executors[rank]->start(run);
        executors[rank]->advance();
    }
    for (bool first = false, second = false; !first || !second;) {
        if (!first) first = executors[0]->advance();
        if (!second) second = executors[1]->advance();
    }
    for (std::size_t rank = 0; rank < 2 && collective == "all_to_all"; ++rank) {
        for (std::size_t i = 0; i < 2 * count; ++i) {
            CHECK(outputs[rank][i] == inputs[i / count][rank * count + i % count], i);
        }
    }
    CHECK(outputs[1].back() != 0 || collective == "reduce_scatter");
    for (const auto &buffer : buffers) need(memory == Memory::huge ? Pages::huge : Pages::small, *buffer);
    const auto tier = pair.world[0].communicator().transport().endpoint(0).ring(Lane::collectives, 1)[0].tier;
    const bool is_staged = tier >= Endpoint::Tier::kept; // in both directions or not
    return is_staged ? Endpoint::Tier::arena : tier;
}

} // namespace

TEST(attached_loans_are_copied_by_the_reader) {
    Pair pair;
    CHECK(pair.lend(pair.data.bytes()).lent);
    const View view = pair.reader().view(1);
    CHECK(view.attached && view.bytes.size() == num_bytes && view.tag == tag);
    CHECK(pair.reader().copy(1, pair.memory.data(), 1000));
    pair.reader().release(1, 1000);
    CHECK(pair.reader().view(1).bytes.size() == num_bytes - 1000);
    CHECK(pair.reader().copy(1, pair.memory.data() + 1000, num_bytes - 1000));
    CHECK(std::ranges::equal(pair.memory.bytes(), pair.data.bytes()) && pair.memory.is_intact());
    CHECK(pair.writer().released(0) == 0);
    pair.reader().release(1, num_bytes - 1000);
    CHECK(pair.writer().released(0) == 1);
}

TEST(registered_memory_that_is_lent_is_read_without_attaching) {
    Pair pair;
    const Buffer registered(pair.world[1].arena, Memory::registered, num_bytes);
    CHECK(pair.lend(registered.bytes()).lent && !pair.reader().view(1).attached);
}

/// A program may forbid it at any time, for example as it becomes another user.
TEST(private_memory_is_staged_where_nobody_may_read_it) {
    for (const bool may_attach : {false, true}) {
        Pair pair(may_attach);
        if (may_attach) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        const Taken taken = pair.lend(pair.data.bytes());
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        CHECK(taken.num_bytes == num_bytes && !taken.lent && taken.way == Way::stage);
        const View view = pair.reader().view(1);
        CHECK(!view.attached && std::ranges::equal(view.bytes, pair.data.bytes()));
    }
}

TEST(attached_messages_are_believed_only_where_they_can_be_had) {
    for (const bool may_attach : {false, true}) {
        for (const bool spin : {false, true}) {
            Pair stranger(may_attach, spin);
            CHECK(stranger.lend(stranger.data.bytes()).num_bytes == num_bytes);
            stranger.writer().endpoint(1).ring(Lane::collectives, 0)[0].tier = Endpoint::Tier::attach;
            CHECK(is_refused(stranger.reader()) == !may_attach, "it reads in the memory of its sender alone");
        }
    }
}

/// Another process may have got the number of one that has died.
TEST(private_memory_is_never_let_to_be_written) {
    Pair pair;
    pair.reader().grant(1, tag, std::span(&pair.window, 1));
    CHECK(pair.writer().granted(0, tag, 0).empty() && !pair.reader().may_be_written_by(1));
}

TEST(attaching_says_what_the_kernel_refuses) {
    std::byte here[64]{};
    CHECK(read_attached(getpid(), here, std::span(here).first(0)));
    const auto failure = failure_of([&] { read_attached(getpid(), nullptr, here); });
    CHECK(failure && failure->cause == Cause::resource && failure->error_number == EFAULT);
    CHECK(failure->text.find("HOCKET_CMA=0") != std::string::npos, failure->text);
    // Half of it is there: it must not count as a copy of all.
    const std::size_t page = page_bytes();
    auto *pages =
        static_cast<std::byte *>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    munmap(pages + page, page);
    std::vector<std::byte> data(2 * page);
    CHECK(failure_of([&] { read_attached(getpid(), pages, data); }).has_value());
    munmap(pages, page);
    if (thread_sanitizer) return;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    CHECK(!read_attached(child, here, here), "it has ended");
    CHECK(!can_attach(child, 0, 0));
}

/// In copies of a megabyte; the last one may be shorter.
TEST(what_is_only_copied_is_fetched) {
    struct Run {
        const char *processor;
        bool spin;
        std::size_t least; // of int64
        Memory memory = Memory::huge;
    };
    for (const auto &[processor, spin, least, memory] : {
             Run{"intel", true, 65'536},
             Run{"intel", false, 131'072},
             Run{"zen3", true, 262'144},
             Run{"zen3", false, 131'072},
             Run{"zen3", true, 262'144, Memory::small},
             Run{"zen3", false, 524'288, Memory::small},
         }) {
        CHECK(tier_of("all_to_all", spin, least, processor, memory) == Endpoint::Tier::attach, processor, spin, least);
        CHECK(tier_of("all_to_all", spin, least + 1, processor, memory) == Endpoint::Tier::attach, processor, spin);
        CHECK(tier_of("all_to_all", spin, least - 1, processor, memory) == Endpoint::Tier::arena, processor, spin);
        CHECK(tier_of("reduce_scatter", spin, least, processor, memory) == Endpoint::Tier::arena, "it is folded");
    }
    // To look up small pages takes as long as quick copies.
    for (const bool spin : {false, true})
        CHECK(tier_of("all_to_all", spin, 524'288, "intel", Memory::small) == Endpoint::Tier::arena);
    CHECK(tier_of("all_to_all", true, 524'288, "generic") == Endpoint::Tier::arena, "nobody has measured it");
}

TEST(one_way_collectives_of_processes_move_private_memory) {
    for (const char *algorithm : {"direct", "binomial"}) {
        const Processes run(2,
                            [algorithm](Rank &rank, Board &) {
                                const Fixture &plans = fixture("broadcast", algorithm, 2, 0, true);
                                for (const std::size_t count : {12345UL, 1UL << 18, 1UL << 21, 2'400'001UL}) {
                                    for (std::int64_t turn = 0; turn < 4; ++turn) {
                                        Buffer memory(rank.arena, Memory::huge, count * 8);
                                        auto *values = reinterpret_cast<std::int64_t *>(memory.data());
                                        std::iota(values, values + count, rank.rank == 0 ? turn : -1);
                                        rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, count,
                                                                        memory.data(), memory.data()),
                                                                do_nothing);
                                        for (std::size_t i = 0; i < count; ++i)
                                            CHECK(values[i] == turn + static_cast<std::int64_t>(i));
                                        CHECK(memory.is_intact());
                                    }
                                }
                                rank.communicator().close(do_nothing);
                            },
                            {.may_attach = true});
    }
}

TEST(exchanges_of_processes_are_fetched) {
    for (const int num_ranks : {2, 3}) {
        const auto exchange = [num_ranks](Rank &rank, Board &) {
            const std::size_t count = num_ranks == 2 ? 300'001 : 150'001; // of int64, in each block
            const std::size_t all = static_cast<std::size_t>(num_ranks) * count;
            const Fixture &plans = fixture("all_to_all", "direct", num_ranks);
            Buffer input(rank.arena, Memory::huge, all * 8), output(rank.arena, Memory::huge, all * 8);
            auto *given = reinterpret_cast<std::int64_t *>(input.data());
            const auto *found = reinterpret_cast<const std::int64_t *>(output.data());
            for (std::int64_t turn = 0; turn < 4; ++turn) {
                std::iota(given, given + all, turn + rank.rank * std::int64_t{1'000'000});
                rank.communicator().run(
                    call_of(plans, rank.rank, Dtype::int64, Op::sum, count, input.data(), output.data()), do_nothing);
                for (std::size_t i = 0; i < all; ++i) {
                    const auto source = static_cast<std::int64_t>(i / count);
                    const auto place =
                        static_cast<std::int64_t>(static_cast<std::size_t>(rank.rank) * count + i % count);
                    CHECK(found[i] == turn + source * 1'000'000 + place, i);
                }
                CHECK(output.is_intact());
            }
            rank.communicator().close(do_nothing);
        };
        const Processes run(num_ranks, exchange, {.spin = num_ranks == 2, .may_attach = true});
    }
}
