// Proved plans with known results, as export_plans.py wrote them.
#pragma once

#include "kernels/reduce.h"
#include "plan/plan.h"

#include <memory>
#include <string>
#include <vector>

namespace hocket::test {

/// Where input and output of a call are. In place, both are in one memory, which has the blocks of the longer one.
struct Layout {
    int num_blocks = 0;                      // of the one memory
    int input_block = -1, output_block = -1; // -1: this rank has none
};

struct Case {
    Dtype dtype;
    Op op;
    Factor factor;                      // of premul_sum
    std::size_t block;                  // elements, if all blocks are equally long
    std::vector<std::uint64_t> lengths; // uneven: elements of each block of data
    std::vector<std::uint64_t> digests; // by rank, 0 if it has no output

    /// The elements of each of these blocks of data.
    std::vector<std::uint64_t> counts_of(std::span<const std::int32_t> blocks) const;
};

/// All ranks' plans of one schedule, in one alias mode.
struct Fixture {
    std::string collective, algorithm;
    int num_ranks = 0, root = 0;
    bool in_place = false, uneven = false, only_copies = false;
    std::uint64_t id = 0;
    std::vector<std::shared_ptr<const Plan>> plans;
    std::vector<Layout> layouts;
    std::vector<Case> cases;

    std::string name() const;
};

void load_fixtures(const char *path);
const std::vector<Fixture> &fixtures();
/// By default, the fixture for root 0 and memory that is not aliased.
const Fixture &fixture(std::string_view collective, std::string_view algorithm, int num_ranks, int root = 0,
                       bool in_place = false);

/// The rank's input: a formula of rank and index.
void fill_input(int rank, Dtype dtype, std::byte *to, std::size_t count);
std::uint64_t digest(Bytes bytes);

} // namespace hocket::test
