#include "fixtures.h"

#include "check.h"

#include <cstring>
#include <fstream>

namespace hocket::test {
namespace {

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;

std::vector<Fixture> loaded;

std::uint64_t mix(std::uint64_t word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9U;
    word = (word ^ word >> 27) * 0x94d049bb133111ebU;
    return word ^ word >> 31;
}

template <typename T> T element(std::uint64_t word) {
    if constexpr (std::is_floating_point_v<T>) {
        if ((word & 7) == 0) return (word & 8) != 0 ? T{-0.0} : T{0};
        return static_cast<T>(static_cast<std::int64_t>(word >> 41) - (1 << 22)) / T{1024};
    } else {
        return static_cast<T>(word);
    }
}

template <typename T> void fill_as(int rank, std::byte *to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        const T value = element<T>(mix((i + 1) * golden + (static_cast<std::uint64_t>(rank) << 40)));
        std::memcpy(to + i * sizeof(T), &value, sizeof(T));
    }
}

template <typename T> T read(std::istream &from) {
    T value{};
    if (!(from >> value)) throw std::runtime_error("the plans end in the middle of a line");
    return value;
}

std::vector<std::int32_t> read_table(std::istream &from, std::size_t size) {
    std::vector<std::int32_t> table(size);
    for (std::int32_t &value : table) value = read<std::int32_t>(from);
    return table;
}

void read_rank(std::istream &from, Fixture &fixture, int chunks_per_block) {
    PlanShape shape;
    shape.num_ranks = fixture.num_ranks;
    shape.rank = static_cast<int>(fixture.plans.size());
    shape.chunks_per_block = chunks_per_block;
    shape.uneven = fixture.uneven;
    shape.only_copies = fixture.only_copies;
    const int num_input_chunks = read<int>(from), num_output_chunks = read<int>(from);
    shape.num_scratch = read<int>(from);
    shape.hears_all = read<bool>(from);
    Layout &layout = fixture.layouts.emplace_back();
    for (int *value : {&layout.num_blocks, &layout.input_block, &layout.output_block}) *value = read<int>(from);
    constexpr std::size_t num_tables = 6;
    std::size_t sizes[num_tables];
    for (std::size_t &size : sizes) size = read<std::size_t>(from);
    std::vector<std::int32_t> tables[num_tables];
    for (std::size_t i = 0; i < num_tables; ++i) tables[i] = read_table(from, sizes[i]);
    shape.input_blocks = tables[4];
    shape.output_blocks = tables[5];
    if (num_input_chunks != static_cast<int>(sizes[4]) * chunks_per_block ||
        num_output_chunks != static_cast<int>(sizes[5]) * chunks_per_block) {
        throw std::runtime_error(fixture.name() + ": the blocks of a rank are not cut into its chunks");
    }
    fixture.plans.push_back(
        std::make_shared<const Plan>(shape, fixture.name(), tables[0], tables[1], tables[2], tables[3]));
}

} // namespace

std::vector<std::uint64_t> Case::counts_of(std::span<const std::int32_t> blocks) const {
    std::vector<std::uint64_t> counts;
    for (std::int32_t number : blocks) {
        counts.push_back(lengths.empty() ? block : lengths.at(static_cast<std::size_t>(number)));
    }
    return counts;
}

std::string Fixture::name() const {
    return collective + " " + algorithm + ", " + std::to_string(num_ranks) + " ranks, root " + std::to_string(root) +
           (in_place ? ", in place" : "");
}

void load_fixtures(const char *path) {
    std::ifstream from(path);
    if (!from) throw std::runtime_error(std::string("cannot read ") + path);
    int chunks_per_block = 1;
    for (std::string word; from >> word;) {
        if (word == "schedule") {
            Fixture &next = loaded.emplace_back();
            from >> next.collective >> next.algorithm >> next.num_ranks >> next.root >> next.in_place;
            chunks_per_block = read<int>(from);
            next.uneven = read<bool>(from);
            next.only_copies = read<bool>(from);
            next.id = read<std::uint64_t>(from);
        } else if (word == "rank" && !loaded.empty()) {
            read_rank(from, loaded.back(), chunks_per_block);
        } else if (word == "case" && !loaded.empty()) {
            Case &next = loaded.back().cases.emplace_back();
            next.dtype = static_cast<Dtype>(read<int>(from));
            next.op = static_cast<Op>(read<int>(from));
            const int factor = read<int>(from);
            next.factor = {.real = static_cast<double>(factor), .integer = static_cast<std::uint64_t>(factor)};
            next.block = read<std::size_t>(from);
            next.lengths.resize(read<std::size_t>(from));
            for (std::uint64_t &length : next.lengths) length = read<std::uint64_t>(from);
            for (int rank = 0; rank < loaded.back().num_ranks; ++rank) {
                next.digests.push_back(read<std::uint64_t>(from));
            }
        } else {
            throw std::runtime_error(std::string(path) + ": expected schedule, rank or case, found " + word);
        }
    }
    if (loaded.empty()) throw std::runtime_error(std::string(path) + " holds no plans");
}

const std::vector<Fixture> &fixtures() { return loaded; }

const Fixture &fixture(std::string_view collective, std::string_view algorithm, int num_ranks, int root,
                       bool in_place) {
    for (const Fixture &one : loaded) {
        if (one.collective == collective && one.algorithm == algorithm && one.num_ranks == num_ranks &&
            one.root == root && one.in_place == in_place) {
            return one;
        }
    }
    throw std::runtime_error("no plans for " + std::string(collective) + " by " + std::string(algorithm));
}

void fill_input(int rank, Dtype dtype, std::byte *to, std::size_t count) {
    switch (dtype) {
    case Dtype::float32: return fill_as<float>(rank, to, count);
    case Dtype::float64: return fill_as<double>(rank, to, count);
    case Dtype::int32: return fill_as<std::int32_t>(rank, to, count);
    case Dtype::int64: return fill_as<std::int64_t>(rank, to, count);
    case Dtype::uint8: return fill_as<std::uint8_t>(rank, to, count);
    default: throw std::runtime_error(std::string("the fixtures have no inputs of ") + name_of(dtype));
    }
}

std::uint64_t digest(Bytes bytes) {
    std::uint64_t sum = bytes.size() + 1, place = 0;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof place) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
        sum += mix(word + ++place * golden);
    }
    return sum;
}

} // namespace hocket::test
