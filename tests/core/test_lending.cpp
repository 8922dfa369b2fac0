// What a sender lends to its readers, and what it has staged.

#include "base/system.h"
#include "check.h"
#include "executor/executor.h"
#include "fixtures.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

/// With this much a core's own cache holds everything that no other reason keeps from it.
Profile roomy(std::size_t all_caches) {
    return {.own_cache = std::size_t{1} << 30, .all_caches = all_caches, .halve = all_caches};
}

/// Only records what it is allowed to do.
class Hesitant final : public Transport, public Windows {
  public:
    Taken post(std::span<const int>, Bytes bytes, std::uint32_t, const Manner &how) override {
        if (how.may_wait && misses_slot) return {};
        may_have_lent = how.way == Way::lend;
        return {.num_bytes = takes ? bytes.size() : 0, .lent = takes && *may_have_lent};
    }
    Reach reach(std::span<const int>) const override { return {.may_put = true, .is_far = is_far}; }
    MemoryKind memory_of(Bytes, std::span<const int>, bool) override {
        return is_private ? MemoryKind::small_pages : MemoryKind::registered;
    }
    std::uint64_t posted(int) const override { return 1; }
    std::uint64_t released(int) const override { return 0; }
    View view(int) const override { return {}; }
    void release(int, std::size_t) override {}
    void tell(int, std::uint64_t) override {}
    std::uint64_t told(int) const override { return 0; }
    Windows *windows() override { return this; }

    void grant(int, std::uint32_t, std::span<const Window>) override {}
    void revoke() override {}
    void withdraw() override {}
    bool may_be_written_by(int) const override { return false; }
    std::span<const Window> granted(int, std::uint32_t, std::uint64_t) override { return offered; }
    bool put(std::span<const int>, std::span<std::byte *const>, Bytes, std::uint32_t, bool, const Making &) override {
        has_put = true;
        return false;
    }

    std::optional<bool> may_have_lent;
    bool is_far = false, is_private = false, misses_slot = false, has_put = false;
    bool takes = false; // accepts what is published
    std::vector<Window> offered;
};

} // namespace

// Ranks whose cores share no cache have two of them.
TEST(executor_lends_what_all_ranks_together_cannot_keep_in_caches) {
    constexpr std::size_t all_caches = std::size_t{64} << 10;
    const Fixture &to_one = fixture("all_reduce", "direct_two_shot", 4), &to_two = fixture("all_gather", "direct", 3);
    struct Run {
        const Fixture &one;
        std::size_t block;
        bool is_far, lends;
    };
    std::vector<std::int64_t> memory(32'768), result(3 * memory.size());
    for (const Run &run : {
             Run{to_one, 4032, false, false}, // chunks of 8,064 bytes, 129,024 on all ranks
             Run{to_one, 4096, false, true},  // twice what a chunk alone must have
             Run{to_one, 4096, true, false},
             Run{to_one, 8191, true, false},
             Run{to_one, 8192, true, true},
             Run{to_one, 32'768, false, true}, // a chunk alone has enough
             Run{to_two, 3600, false, true},   // 259,200 bytes on all ranks
             Run{to_two, 3600, true, false},
             Run{to_two, 3648, true, true},
         }) {
        Hesitant transport;
        transport.is_far = run.is_far;
        Executor executor(*run.one.plans[0], transport, roomy(all_caches));
        executor.start({.dtype = Dtype::int64,
                        .block = run.block,
                        .input = reinterpret_cast<const std::byte *>(memory.data()),
                        .output = reinterpret_cast<std::byte *>(result.data()),
                        .tag = 1});
        executor.advance();
        CHECK(transport.may_have_lent == run.lends, run.one.name(), run.block, run.is_far);
    }
}

// A chunk has two pieces, and several ranks grant memory for it: the second piece is put there.
TEST(executor_puts_to_several_whose_caches_are_others_only_past_them) {
    constexpr std::size_t num_bytes = 2 * piece_bytes;
    const Plan &plan = *fixture("all_gather", "direct", 3).plans[0];
    std::vector<std::byte> memory(num_bytes), result(3 * num_bytes);
    struct Run {
        std::size_t all_caches;
        bool is_far, puts;
    };
    for (const Run &run : {Run{num_bytes, false, true}, Run{num_bytes, true, false}, Run{num_bytes / 2, true, true}}) {
        Hesitant transport;
        transport.is_far = run.is_far;
        transport.takes = true;
        for (const auto &to : plan.instructions()[0].destinations) {
            transport.offered.push_back({.order = to.index, .place = result.data(), .num_bytes = num_bytes});
        }
        Executor executor(plan, transport, roomy(run.all_caches));
        executor.start({.dtype = Dtype::int64,
                        .block = num_bytes / sizeof(std::int64_t),
                        .input = memory.data(),
                        .output = result.data(),
                        .tag = 1});
        executor.advance();
        CHECK(transport.has_put == run.puts, run.all_caches, run.is_far);
    }
}

// It does not wait for a peer that only receives, for an answer to a loan, or for a slot that only one of several has.
TEST(executor_waits_for_a_slot_of_a_peer_that_sends_as_well) {
    const Fixture &exchange = fixture("all_gather", "direct", 2), &several = fixture("all_gather", "direct", 3),
                  &one_way = fixture("broadcast", "direct", 2, 0, true);
    struct Run {
        const Fixture &one;
        bool is_private, misses_slot, waits;
    };
    std::vector<std::int64_t> memory(5000), result(3 * memory.size());
    for (const Run &run : {
             Run{exchange, true, true, true},
             Run{exchange, true, false, false},
             Run{exchange, false, true, false},
             Run{one_way, true, true, false},
             Run{several, true, true, false},
         }) {
        Hesitant transport;
        transport.is_private = run.is_private;
        transport.misses_slot = run.misses_slot;
        Executor executor(*run.one.plans[0], transport,
                          {.all_caches = 1024}); // too long for the caches, so lent if possible
        executor.start({.dtype = Dtype::int64,
                        .block = memory.size(),
                        .input = reinterpret_cast<const std::byte *>(memory.data()),
                        .output = reinterpret_cast<std::byte *>(result.data()),
                        .tag = 1});
        executor.advance();
        CHECK(transport.may_have_lent.has_value() != run.waits, run.one.name(), run.is_private, run.misses_slot);
    }
}

// In place and in two steps, the rank that folds a half writes the sum back to the operand's memory, so the operand
// goes to that rank's cache in any case.
TEST(executor_lends_what_is_written_back) {
    const Fixture &two_shot = fixture("all_reduce", "direct_two_shot", 2, 0, true);
    constexpr std::size_t num_bytes = 16'000;
    World world(2, {.as_processes = true});
    Buffer memory(world[0].arena, Memory::registered, num_bytes);
    Executor executor(*two_shot.plans[0], world[0].communicator().transport());
    executor.start({.dtype = Dtype::int64,
                    .op = Op::sum,
                    .block = num_bytes / sizeof(std::int64_t),
                    .input = memory.data(),
                    .output = memory.data(),
                    .tag = 1});
    CHECK(!executor.advance());
    CHECK(world[1].communicator().transport().view(0).bytes.data() == memory.data() + num_bytes / 2);
}

// Data in a core's own cache is staged. Data in a larger cache is lent unless lines come slowly from another core; data
// that is too long for the caches is always lent.
TEST(executor_stages_what_its_cache_holds_and_lends_what_other_caches_do) {
    const Fixture &direct = fixture("all_reduce", "direct", 2);
    enum class Fits { own_cache, caches, nowhere };
    struct Run {
        Fits fits;
        bool is_far;
    };
    for (const auto &[fits, is_far] :
         {Run{Fits::own_cache, false}, Run{Fits::own_cache, true}, Run{Fits::caches, false}, Run{Fits::caches, true},
          Run{Fits::nowhere, false}, Run{Fits::nowhere, true}}) {
        // One piece, or an odd number of them.
        const std::size_t num_bytes = fits == Fits::caches ? Profile().own_cache + piece_bytes / 2 : 16'000;
        const std::size_t block = num_bytes / sizeof(std::int64_t);
        const std::size_t all_caches = fits == Fits::nowhere ? num_bytes / 2 : 2 * num_bytes;
        // So everything goes piece by piece.
        World world(2, {.spin = true, .as_processes = true, .is_far = is_far});
        std::vector<std::unique_ptr<Buffer>> inputs, outputs;
        std::vector<std::unique_ptr<Executor>> executors;
        for (std::size_t rank = 0; rank < 2; ++rank) {
            for (auto *buffers : {&inputs, &outputs}) {
                buffers->push_back(std::make_unique<Buffer>(world[rank].arena, Memory::registered, num_bytes));
            }
            executors.push_back(std::make_unique<Executor>(*direct.plans[rank], world[rank].communicator().transport(),
                                                           Profile{.all_caches = all_caches}));
        }
        std::size_t num_lent = 0, num_staged = 0;
        for (std::int64_t call = 1; call <= 100; ++call) {
            for (std::size_t rank = 0; rank < 2; ++rank) {
                const std::vector<std::int64_t> values(block, call + static_cast<std::int64_t>(rank));
                std::memcpy(inputs[rank]->data(), values.data(), num_bytes);
                executors[rank]->start({.dtype = Dtype::int64,
                                        .op = Op::sum,
                                        .block = block,
                                        .input = inputs[rank]->data(),
                                        .output = outputs[rank]->data(),
                                        .tag = static_cast<std::uint32_t>(call)});
            }
            executors[0]->advance();
            const View view = world[1].communicator().transport().view(0);
            CHECK(view.bytes.size() == std::min(num_bytes, piece_bytes));
            ++(view.bytes.data() == inputs[0]->data() ? num_lent : num_staged);
            std::array<bool, 2> done{};
            while (!done[0] || !done[1]) {
                for (std::size_t rank = 0; rank < 2; ++rank) done[rank] = done[rank] || executors[rank]->advance();
            }
            for (const auto &output : outputs) {
                const std::vector<std::int64_t> sum(block, 2 * call + 1);
                CHECK(std::memcmp(output->data(), sum.data(), num_bytes) == 0, "call", call);
            }
        }
        const bool lends = fits == Fits::nowhere || (fits == Fits::caches && !is_far);
        CHECK((lends ? num_staged : num_lent) == 0, "always the same way:", num_lent, num_staged);
    }
}

// A rank can do all its work while it has a core, even if the other rank has none.
TEST(executor_lends_for_good_in_one_message_where_ranks_share_cores) {
    constexpr std::size_t block = 100'003; // elements: several pieces, the last one odd
    constexpr std::size_t num_bytes = 2 * block * sizeof(std::int64_t);
    for (const bool in_place : {false, true}) {
        for (const bool shares_cores : {false, true}) {
            const Fixture &one = in_place ? fixture("all_reduce", "direct_two_shot", 2, 0, true)
                                          : fixture("reduce_scatter", "direct", 2);
            Profile profile = measured(shares_cores);
            profile.all_caches = std::size_t{64} << 10;
            World world(2, {.spin = !shares_cores, .as_processes = true});
            std::vector<std::unique_ptr<Buffer>> inputs, outputs;
            std::vector<std::unique_ptr<Executor>> executors;
            for (int rank = 0; rank < 2; ++rank) {
                auto &input =
                    inputs.emplace_back(std::make_unique<Buffer>(world[rank].arena, Memory::registered, num_bytes));
                auto &output =
                    outputs.emplace_back(std::make_unique<Buffer>(world[rank].arena, Memory::registered, num_bytes));
                auto *values = reinterpret_cast<std::int64_t *>(input->data());
                for (std::size_t i = 0; i < 2 * block; ++i) values[i] = static_cast<std::int64_t>(i) * (rank + 1);
                executors.push_back(std::make_unique<Executor>(*one.plans[static_cast<std::size_t>(rank)],
                                                               world[rank].communicator().transport(), profile));
                executors.back()->start({.dtype = Dtype::int64,
                                         .op = Op::sum,
                                         .block = block,
                                         .input = input->data(),
                                         .output = (in_place ? input : output)->data(),
                                         .tag = 1});
            }
            executors[0]->advance();
            for (int turn = 0; turn < 100; ++turn) executors[1]->advance();
            const std::uint64_t num_posted = world[0].communicator().transport().posted(1);
            CHECK(in_place || (num_posted == 1) == shares_cores, num_posted);
            CHECK(!in_place || num_posted > 1, "another step's messages come between");
            for (std::size_t i = 0; i < block && shares_cores && !in_place; ++i) {
                std::int64_t found = 0;
                std::memcpy(&found, outputs[1]->data() + i * sizeof found, sizeof found);
                CHECK(found == static_cast<std::int64_t>(3 * (block + i)), i, found);
            }
            for (bool done = false; !done;) {
                done = true;
                for (const auto &executor : executors) done = executor->advance() && done;
            }
            for (const auto &buffer : outputs) CHECK(buffer->is_intact());
        }
    }
}
