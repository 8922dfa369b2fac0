// Long blocks are used again: AddressSanitizer gives each back to the system, and to get them anew takes most of the
// time of a run. What is behind the end of one, and what was freed, is poisoned as ever.

#include <cstddef>
#include <cstdlib>
#include <map>
#include <new>
#include <sanitizer/asan_interface.h>
#include <vector>

namespace {

constexpr std::size_t unit = std::size_t{1} << 16, most_units = 8;

struct Blocks {
    std::map<void *, std::size_t> units; // of those that are in use
    std::vector<void *> spare[most_units + 1];
};

Blocks &blocks() {
    static Blocks &all = *new Blocks; // for ever: others are freed after it
    return all;
}

} // namespace

void *operator new[](std::size_t num_bytes) {
    const std::size_t num_units = (num_bytes + unit - 1) / unit;
    if (num_units < 2 || num_units > most_units) return std::malloc(num_bytes);
    std::vector<void *> &spare = blocks().spare[num_units];
    if (spare.empty()) spare.push_back(std::malloc(num_units * unit));
    void *const block = spare.back();
    spare.pop_back();
    blocks().units[block] = num_units;
    __asan_poison_memory_region(block, num_units * unit);
    __asan_unpoison_memory_region(block, num_bytes);
    return block;
}

void operator delete[](void *block) noexcept {
    const auto found = blocks().units.find(block);
    if (found == blocks().units.end()) return std::free(block);
    const std::size_t num_units = found->second;
    blocks().units.erase(found);
    __asan_poison_memory_region(block, num_units * unit);
    blocks().spare[num_units].push_back(block);
}

void operator delete[](void *block, std::size_t) noexcept { operator delete[](block); }
