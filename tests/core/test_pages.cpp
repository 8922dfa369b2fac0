// What is known about the pages of a piece of memory, in addition to the system's numbers for the whole mapping.

#include "base/system.h"
#include "base/types.h"
#include "check.h"
#include "machine/pages.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/mman.h>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::size_t num_bytes = std::size_t{8} << 20;

struct Mapping {
    explicit Mapping(int advice, bool touched = true)
        : base(static_cast<std::byte *>(
              mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        CHECK(base != MAP_FAILED);
        madvise(base, num_bytes, advice);
        if (touched) std::memset(base, 1, num_bytes);
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() { munmap(base, num_bytes); }

    Bytes bytes() const { return {base, num_bytes}; }
    /// KiB in huge pages, by the system's list of mappings.
    int listed() const {
        std::ifstream file("/proc/self/smaps");
        std::ostringstream begin;
        begin << std::hex << reinterpret_cast<std::uintptr_t>(base) << '-';
        bool is_this = false;
        for (std::string line; std::getline(file, line);) {
            is_this = is_this || line.starts_with(begin.str());
            if (is_this && line.starts_with("AnonHugePages:")) return std::stoi(line.substr(line.find(':') + 1));
        }
        throw Skipped("the mapping was joined to another one");
    }

    std::byte *base;
};

} // namespace

TEST(pages_are_as_the_system_lists_them) {
    for (const int advice : {MADV_NOHUGEPAGE, MADV_HUGEPAGE}) {
        const Mapping mapping(advice);
        const Pages pages = PageMap().of(mapping.bytes());
        if (pages == Pages::unknown) throw Skipped("the system does not tell");
        const bool is_huge = mapping.listed() >= static_cast<int>((num_bytes - num_bytes / 4) >> 10);
        CHECK((pages == Pages::huge) == is_huge, mapping.listed());
        CHECK(!is_huge || advice == MADV_HUGEPAGE);
    }
}

TEST(pages_count_as_huge_where_few_are_small) {
    for (const std::size_t num_small : {std::size_t{0}, huge_page_bytes / 2, 2 * huge_page_bytes}) {
        const Mapping mapping(MADV_HUGEPAGE, false);
        // Memory that begins and ends between huge pages: a part at its front, and at most a quarter at its back.
        const auto begin = round_up(reinterpret_cast<std::uintptr_t>(mapping.base), huge_page_bytes);
        const std::size_t ahead = begin - reinterpret_cast<std::uintptr_t>(mapping.base);
        const Bytes whole = mapping.bytes().subspan(ahead, (num_bytes - ahead) / huge_page_bytes * huge_page_bytes);
        madvise(mapping.base + ahead, num_small == 0 ? 0 : round_up(num_small, huge_page_bytes), MADV_NOHUGEPAGE);
        std::memset(mapping.base, 1, num_bytes);
        const Bytes memory = whole.subspan(num_small == 0 ? 0 : round_up(num_small, huge_page_bytes) - num_small);
        const Pages back = PageMap().of(memory.last(huge_page_bytes));
        if (back != Pages::huge) throw Skipped("there are no huge pages");
        CHECK((PageMap().of(memory) == Pages::huge) == (num_small <= memory.size() / 4), num_small, memory.size());
    }
}

TEST(pages_are_looked_up_again_after_a_while) {
    PageMap map;
    const Mapping mapping(MADV_HUGEPAGE);
    if (map.of(mapping.bytes()) != Pages::huge) throw Skipped("there are no huge pages");
    madvise(mapping.base, num_bytes, MADV_NOHUGEPAGE);
    madvise(mapping.base, num_bytes, MADV_DONTNEED);
    std::memset(mapping.base, 1, num_bytes);
    int num_uses = 1;
    for (; map.of(mapping.bytes()) == Pages::huge; ++num_uses) CHECK(num_uses < 1000);
    CHECK(num_uses > 10 && map.of(mapping.bytes()) == Pages::small, num_uses);
}

TEST(pages_that_are_yet_to_be_are_not_known_and_asked_for_again) {
    PageMap map;
    const Mapping mapping(MADV_NOHUGEPAGE, false);
    CHECK(map.of(mapping.bytes()) == Pages::unknown);
    std::memset(mapping.base, 1, num_bytes);
    const Pages found = map.of(mapping.bytes());
    if (found == Pages::unknown) throw Skipped("the system does not tell");
    CHECK(found == Pages::small);
}

TEST(pages_of_more_places_than_are_remembered) {
    PageMap map;
    const Mapping small(MADV_NOHUGEPAGE), huge(MADV_HUGEPAGE);
    if (map.of(huge.bytes()) != Pages::huge) throw Skipped("there are no huge pages");
    const std::size_t page = page_bytes();
    for (int turn = 0; turn < 2; ++turn) {
        for (std::size_t at = num_bytes / 2; at < num_bytes / 2 + 100 * page; at += page) {
            CHECK(map.of(Bytes(small.base + at, page)) == Pages::small, at);
            CHECK(map.of(Bytes(huge.base + at, page)) == Pages::huge, at);
        }
    }
}
