// Blocks of different length: errors of ranks that disagree about one, and empty blocks.

#include "check.h"
#include "world.h"

#include <numeric>

using namespace hocket;
using namespace hocket::test;

namespace {

using Lengths = std::vector<std::uint64_t>;

std::int64_t value_of(std::int32_t block, std::size_t element) {
    return block * 1'000'003LL + static_cast<std::int64_t>(element);
}

/// A call of int64 in which this rank assumes these block lengths; each element encodes its block.
struct Uneven {
    Uneven(const Fixture &plans, Rank &rank, const Lengths &lengths, Memory memory = Memory::owned)
        : shape(plans.plans[static_cast<std::size_t>(rank.rank)]->shape()),
          input_counts(counts_of(shape.input_blocks, lengths)), output_counts(counts_of(shape.output_blocks, lengths)),
          input(rank.arena, memory, bytes_of(input_counts)), output(rank.arena, memory, bytes_of(output_counts)),
          call(call_of(plans, rank.rank, Dtype::int64, Op::sum, 0, input.data(), output.data())) {
        auto *next = reinterpret_cast<std::int64_t *>(input.data());
        for (std::size_t i = 0; i < input_counts.size(); ++i) {
            for (std::size_t j = 0; j < input_counts[i]; ++j) *next++ = value_of(shape.input_blocks[i], j);
        }
        call.launch.input_counts = input_counts;
        call.launch.output_counts = output_counts;
    }

    /// Each element is the sum of `num_terms` equal ones.
    void check(int num_terms) const {
        const auto *next = reinterpret_cast<const std::int64_t *>(output.data());
        for (std::size_t i = 0; i < output_counts.size(); ++i) {
            for (std::size_t j = 0; j < output_counts[i]; ++j, ++next) {
                CHECK(*next == num_terms * value_of(shape.output_blocks[i], j), "block", shape.output_blocks[i], j);
            }
        }
        CHECK(output.is_intact(), "wrote behind the end");
    }

    static Lengths counts_of(const std::vector<std::int32_t> &blocks, const Lengths &lengths) {
        Lengths counts;
        for (std::int32_t block : blocks) counts.push_back(lengths[static_cast<std::size_t>(block)]);
        return counts;
    }
    static std::size_t bytes_of(const Lengths &counts) {
        return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * sizeof(std::int64_t);
    }

    const PlanShape &shape;
    Lengths input_counts, output_counts;
    Buffer input, output;
    Call call;
};

struct Kind {
    const char *collective, *algorithm;
    std::size_t (*num_blocks)(std::size_t num_ranks);
    bool reduces = false;
};

constexpr auto one_each = [](std::size_t num_ranks) { return num_ranks; };
constexpr auto one_per_pair = [](std::size_t num_ranks) { return num_ranks * num_ranks; };

constexpr Kind kinds[] = {
    {"all_gather_v", "ring", one_each},
    {"all_gather_v", "direct", one_each},
    {"gather_v", "direct", one_each},
    {"scatter_v", "direct", one_each},
    {"all_to_all_v", "pairwise", one_per_pair},
    {"all_to_all_v", "direct", one_per_pair},
    {"reduce_scatter_v", "ring", one_each, true},
    {"reduce_scatter_v", "tree", one_each, true},
};

} // namespace

TEST(uneven_calls_with_blocks_of_nothing) {
    // All lengths from an empty call to blocks of several pieces, one call after the other.
    for (const Kind &kind : kinds) {
        for (int num_ranks : {1, 2, 5}) {
            const Fixture &plans = fixture(kind.collective, kind.algorithm, num_ranks);
            const auto num_blocks = kind.num_blocks(static_cast<std::size_t>(num_ranks));
            for (bool as_processes : {false, true}) {
                World world(num_ranks, {.as_processes = as_processes});
                world.run([&](Rank &rank) {
                    for (std::size_t longest : {0U, 1U, 3U, 40'000U}) {
                        Lengths lengths(num_blocks);
                        for (std::size_t i = 0; i < num_blocks; ++i)
                            lengths[i] = i % 3 == 1 ? 0 : longest * (i % 4) / 3;
                        Uneven uneven(plans, rank, lengths);
                        rank.communicator().run(uneven.call, do_nothing);
                        uneven.check(kind.reduces ? num_ranks : 1);
                    }
                    rank.communicator().close(do_nothing);
                });
            }
        }
    }
}

// No other thread writes their headers.
TEST(uneven_blocks_are_put_behind_the_copy_that_a_rank_keeps) {
    const Fixture &plans = fixture("all_gather_v", "direct", 2);
    World world(2, {.spin = true, .as_processes = true});
    world.run([&](Rank &rank) {
        for (const Lengths &lengths : {Lengths{100'003, 70'001}, {16'384, 300'000}, {0, 100'000}, {5, 16'385}}) {
            for (int call = 0; call < 5; ++call) {
                Uneven uneven(plans, rank, lengths, Memory::registered);
                rank.communicator().run(uneven.call, do_nothing);
                uneven.check(1);
            }
        }
        rank.communicator().close(do_nothing);
    });
}

TEST(uneven_lengths_that_two_ranks_differ_about_name_both) {
    // Rank 0 sends `sent` elements to rank 1, which expects `expected`; all other counts agree.
    const std::pair<std::uint64_t, std::uint64_t> differences[] = {{3, 4},      {4, 3},      {0, 5},          {5, 0},
                                                                   {0, 50'000}, {50'000, 0}, {50'000, 16'384}};
    for (const auto &[sent, expected] : differences) {
        for (const char *algorithm : {"pairwise", "direct"}) {
            const Fixture &plans = fixture("all_to_all_v", algorithm, 3);
            World world(3);
            std::vector<std::optional<Failure>> heard(3);
            world.run([&, sent = sent, expected = expected](Rank &rank) {
                Lengths lengths(9, 7);
                lengths[1] = rank.rank == 0 ? sent : expected; // of rank 0, to rank 1
                Uneven uneven(plans, rank, lengths);
                heard[static_cast<std::size_t>(rank.rank)] = failure_of([&] {
                    rank.communicator().run(uneven.call, do_nothing);
                    rank.communicator().close(do_nothing); // a rank that was already done learns of it here
                });
            });
            for (int rank = 0; rank < 3; ++rank) {
                const auto &own = heard[static_cast<std::size_t>(rank)];
                if (!own && rank == 2) continue; // it has all that it needs, and may have left before
                CHECK(own, "rank", rank, "noticed nothing:", algorithm, sent, expected);
                CHECK(own->cause == Cause::mismatch, "rank", rank, static_cast<int>(own->cause), own->text);
                CHECK(own->text == "for the block from rank 0 to rank 1", own->text);
                CHECK(own->calls.size() == 2 && own->calls.at(0).count == sent && own->calls.at(1).count == expected,
                      "rank", rank, own->calls.size());
                CHECK(own->sequence == 1 && own->self == rank);
            }
        }
    }
}

TEST(uneven_lengths_of_a_gather_are_compared_with_the_root_s) {
    for (const char *collective : {"gather_v", "scatter_v"}) {
        const bool gathers = collective[0] == 'g';
        for (std::uint64_t of_rank_2 : {0U, 6U, 40'000U}) {
            World world(4);
            std::vector<std::optional<Failure>> heard(4);
            world.run([&](Rank &rank) {
                Lengths lengths(4, 7);
                if (rank.rank == 2) lengths[2] = of_rank_2;
                Uneven uneven(fixture(collective, "direct", 4), rank, lengths);
                heard[static_cast<std::size_t>(rank.rank)] = failure_of([&] {
                    rank.communicator().run(uneven.call, do_nothing);
                    rank.communicator().close(do_nothing);
                });
            });
            for (int rank = 0; rank < 4; ++rank) {
                const auto &own = heard[static_cast<std::size_t>(rank)];
                if (!own && rank % 2 == 1) continue; // may have left before
                CHECK(own && own->cause == Cause::mismatch, "rank", rank, collective, of_rank_2);
                CHECK(own->text ==
                          (gathers ? "for the block from rank 2 to rank 0" : "for the block from rank 0 to rank 2"),
                      own->text);
                CHECK(own->calls.at(0).count == 7 && own->calls.at(2).count == of_rank_2, collective, of_rank_2);
            }
        }
    }
}

TEST(uneven_calls_must_tell_all_lengths) {
    World world(2);
    std::vector<std::optional<Failure>> heard(2);
    world.run([&heard](Rank &rank) {
        Uneven uneven(fixture("all_gather_v", "ring", 2), rank, {3, 4});
        if (rank.rank == 1) uneven.call.launch.output_counts = std::span(uneven.output_counts).first(1);
        heard[static_cast<std::size_t>(rank.rank)] =
            failure_of([&] { rank.communicator().run(uneven.call, do_nothing); });
    });
    CHECK(heard[1] && heard[1]->cause == Cause::internal, heard[1] ? heard[1]->text : "nothing");
    CHECK(heard[0] && heard[0]->cause == Cause::aborted && heard[0]->rank == 1);
    CHECK(heard[0]->text.find("the lengths of its blocks") != std::string::npos, heard[0]->text);
}
