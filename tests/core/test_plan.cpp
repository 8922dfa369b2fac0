// A malformed table is refused when a plan is made, because the executor indexes without further tests.

#include "base/error.h"
#include "check.h"
#include "plan/plan.h"
#include "world.h"

#include <functional>

using namespace hocket;
using namespace hocket::test;

namespace {

using Row = std::vector<std::int32_t>;

/// Rank 0 of 2 sends its chunk and folds what rank 1 sends; each test breaks one thing of it.
struct Tables {
    PlanShape shape{.num_ranks = 2, .rank = 0, .input_blocks = {0}, .output_blocks = {0}};
    Row instructions{0, 0, 1, 1, 0, 0, /* fold: */ 0, 0, 3, 2, 1, 1};
    Row sources{-1, 0, 0, 0, /* own, and a message: */ -1, 0, 0, 1, 1, 3, 0, 0};
    Row destinations{1, 3, 0, /* output: */ -1, 1, 0};
    Row dependencies{0};

    Plan plan() const { return {shape, "test", instructions, sources, destinations, dependencies}; }
};

void refuses(const char *expected, const std::function<void(Tables &)> &change) {
    Tables tables;
    change(tables);
    std::string text = "accepted";
    try {
        const Plan plan = tables.plan();
    } catch (const Failure &failure) {
        CHECK(failure.cause == Cause::internal);
        text = failure.text;
    }
    CHECK(text.find(expected) != std::string::npos, "expected", expected, "found", text);
}

} // namespace

TEST(plan_reads_tables) {
    const Plan plan = Tables{}.plan();
    CHECK(plan.instructions().size() == 2);
    const Instruction &send = plan.instructions()[0], &fold = plan.instructions()[1];
    CHECK(send.sends() && !send.completes && send.destinations[0].peer == 1 && send.dependencies.empty());
    CHECK(!fold.sends() && fold.completes && !fold.staged && fold.sources.size() == 2);
    CHECK(fold.sources[1].space == Space::remote && fold.dependencies[0] == 0);
    CHECK(fold.raw.size() == 2 && fold.raw[0] && !fold.raw[1] && !send.raw[0]);
}

TEST(plan_bounds_of_chunks) {
    Tables tables;
    tables.shape.chunks_per_block = 3;
    tables.shape.input_blocks = {0, 1};
    const Plan plan = tables.plan();
    const std::size_t expected[] = {0, 2, 4, 7, 9, 11}; // two blocks of 7
    for (int chunk = 0; chunk < 6; ++chunk) CHECK(plan.offset_of(chunk, 7) == expected[chunk], chunk);
    CHECK(plan.elements_of(0, 7) == 2 && plan.elements_of(1, 7) == 2 && plan.elements_of(2, 7) == 3);
    CHECK(plan.elements_of(0, 0) == 0 && plan.elements_of(2, 1) == 1);
}

TEST(plan_of_uneven_blocks_finds_where_a_length_is_known) {
    Tables tables;
    tables.shape = {.num_ranks = 2, .rank = 0, .chunks_per_block = 2, .uneven = true};
    tables.shape.input_blocks = {5, 2};
    tables.shape.output_blocks = {2, 3};
    tables.instructions[1] = 5; // the second half of block 2, the second block of input
    tables.instructions[7] = 6; // the first half of block 3, which only output has
    const Plan plan = tables.plan();
    const Operand &first = plan.instructions()[0].sized_as, &second = plan.instructions()[1].sized_as;
    CHECK(first.space == Space::input && first.index == 3, first.index);
    CHECK(second.space == Space::output && second.index == 2, second.index);
    for (const std::int32_t unknown : {-1, 0, 8}) { // blocks 0 and 4 are of other ranks
        tables.instructions[7] = unknown;
        const auto failure = failure_of([&] { tables.plan(); });
        CHECK(failure && failure->text.find("does not know the length of its chunk") != std::string::npos, unknown);
    }
}

TEST(plan_knows_what_else_uses_a_destination) {
    Tables tables;
    const auto fold_of = [&tables] { return tables.plan().instructions()[1]; };
    CHECK(!fold_of().is_copy && !fold_of().is_grantable && fold_of().is_alone, "a fold");
    // Only the message: a copy, to memory that was not used before.
    tables.instructions = {0, 0, 1, 1, 0, 0, 0, 0, 2, 2, 1, 0};
    tables.sources = {-1, 0, 0, 0, 1, 3, 0, 0};
    CHECK(fold_of().is_copy && fold_of().is_grantable && fold_of().after == -1 && fold_of().is_alone);
    tables.sources[1] = 1; // the source is the message's target: rank 1 must read it first
    CHECK(fold_of().is_grantable && fold_of().after == 0 && !fold_of().is_alone);
    CHECK(tables.plan().instructions()[0].comes_back);
    tables.instructions[11] = 1;
    CHECK(!fold_of().is_copy && !fold_of().is_grantable, "it divides an average");
    tables.instructions[11] = 0;
    tables.sources[7] = 1;
    CHECK(!fold_of().is_copy && !fold_of().is_grantable, "a factor multiplies it");
    tables.sources[7] = 0;
    tables.shape.num_ranks = 3;
    tables.destinations[0] = 2;
    CHECK(fold_of().is_copy && !fold_of().is_grantable, "another rank than the sender reads what was there");
    CHECK(!tables.plan().instructions()[0].comes_back);
    tables.destinations.insert(tables.destinations.begin(), {1, 3, 0});
    tables.instructions[3] = 2, tables.instructions[9] = 3;
    CHECK(!fold_of().is_grantable, "another rank reads it too");
    tables.shape.num_scratch = 1;
    tables.destinations[7] = 2;
    CHECK(fold_of().is_copy && !fold_of().is_grantable, "scratch");
    // What is received and then sent on is read again.
    tables = {};
    tables.instructions = {0, 0, 1, 1, 0, 0, 1, 0, 2, 2, 1, 0};
    tables.sources = {1, 3, 0, 0, -1, 1, 0, 0};
    tables.destinations = {-1, 1, 0, 1, 3, 0};
    CHECK(!tables.plan().instructions()[0].is_alone && tables.plan().instructions()[0].is_grantable);
    CHECK(!tables.plan().instructions()[1].is_fresh, "a copy is not hot here");
    CHECK(tables.plan().instructions()[0].onward == -1);
    tables.instructions[5] = 1;
    CHECK(tables.plan().instructions()[1].is_fresh);
    CHECK(tables.plan().instructions()[0].onward == 1 && tables.plan().instructions()[1].onward == -1);
    tables.instructions[10] = 0;
    tables.dependencies = {};
    CHECK(tables.plan().instructions()[0].onward == -1, "it does not wait for the fold");
}

TEST(plan_refuses_malformed_tables) {
    refuses("six columns", [](Tables &t) { t.instructions.pop_back(); });
    refuses("do not fill their columns", [](Tables &t) { t.sources.pop_back(); });
    refuses("do not fill their columns", [](Tables &t) { t.destinations.push_back(0); });
    refuses("at least one chunk", [](Tables &t) { t.shape.chunks_per_block = 0; });
    refuses("do not ascend", [](Tables &t) { t.instructions[2] = -1; });
    refuses("do not ascend", [](Tables &t) { t.instructions[8] = 0; });
    refuses("do not ascend", [](Tables &t) { t.instructions[8] = 4; });
    refuses("do not ascend", [](Tables &t) { t.instructions[9] = 3; });
    refuses("do not ascend", [](Tables &t) { t.instructions[10] = 2; });
    refuses("steps do not ascend", [](Tables &t) { t.instructions[0] = 1; });
    refuses("steps do not ascend", [](Tables &t) { t.instructions[0] = -1; });
    refuses("its chunk does not exist", [](Tables &t) { t.instructions[1] = 1; });
    refuses("its chunk does not exist", [](Tables &t) { t.instructions[7] = -1; });
    refuses("no source", [](Tables &t) { t.instructions[2] = 0; });
    refuses("no source", [](Tables &t) { t.instructions[9] = 1; });
    refuses("later instruction", [](Tables &t) { t.dependencies[0] = 1; });
    refuses("later instruction", [](Tables &t) { t.dependencies[0] = -1; });
}

TEST(plan_refuses_operands_that_do_not_exist) {
    refuses("no channel", [](Tables &t) { t.destinations[0] = 0; }); // to itself
    refuses("no channel", [](Tables &t) { t.destinations[0] = 2; });
    refuses("no channel", [](Tables &t) { t.sources[8] = -1; });
    refuses("does not exist", [](Tables &t) { t.sources[2] = 1; });
    refuses("does not exist", [](Tables &t) { t.sources[2] = -1; });
    refuses("does not exist", [](Tables &t) { t.sources[1] = 2; }); // there is no scratch
    refuses("does not exist", [](Tables &t) { t.sources[1] = 4; }); // nor a fifth space
    refuses("does not exist", [](Tables &t) { t.sources[0] = 1; }); // local memory of a peer
    refuses("does not exist", [](Tables &t) { t.destinations[5] = 1; });
    refuses("sends more than one place", [](Tables &t) {
        t.sources[0] = 1;
        t.sources[1] = 3;
    });
    refuses("both sends and stores", [](Tables &t) { t.instructions[3] = 2; });
    refuses("more than one place", [](Tables &t) {
        t.destinations.insert(t.destinations.end(), {-1, 1, 0});
        t.instructions[9] = 3;
    });
}
