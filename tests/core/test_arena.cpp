// Reserving, freeing and joining holes; memory that the system does not have; what a mapping says about addresses.

#include "transport/shm/arena.h"

#include "base/error.h"
#include "check.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>

using namespace hocket;
using namespace hocket::test;

namespace {

thread_local bool system_is_full = false;

} // namespace

// Replaces the C library's function: no limit that a process can set makes only a memfd run out of memory.
extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t length) {
    if (system_is_full && mode == 0) {
        errno = ENOSPC;
        return -1;
    }
    return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}

namespace {

template <typename Action> Failure resource_failure_of(Action action) {
    try {
        action();
    } catch (const Failure &failure) {
        CHECK(failure.cause == Cause::resource);
        return failure;
    }
    throw CheckFailed("nothing was thrown");
}

const std::size_t page = page_bytes(), huge_page = 512 * page;

/// Whether the system makes huge pages of shared memory on request; if not, the arena has small pages.
bool system_has_huge_pages() {
    std::ifstream size("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"),
        shmem("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    std::size_t bytes = 0;
    std::string policy;
    utsname system{};
    int major = 0, minor = 0;
    return size >> bytes && bytes == huge_page && std::getline(shmem, policy) &&
           policy.find("[deny]") == std::string::npos && uname(&system) == 0 &&
           std::sscanf(system.release, "%d.%d", &major, &minor) == 2 && std::pair(major, minor) >= std::pair(6, 1);
}

/// The bytes of this process's mapping that its page tables have as huge pages.
std::size_t bytes_in_huge_pages(const Mapping &mapping) {
    std::ostringstream begin;
    begin << std::hex << reinterpret_cast<std::uintptr_t>(mapping.base()) << '-';
    std::ifstream maps("/proc/self/smaps");
    bool is_meant = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.starts_with(begin.str())) is_meant = true;
        if (!is_meant || !line.starts_with("ShmemPmdMapped:")) continue;
        return std::stoul(line.substr(line.find_first_of("0123456789"))) << 10;
    }
    throw CheckFailed("the system does not tell of the mapping");
}

std::size_t bytes_in_use(const Arena &arena) {
    struct stat status{};
    CHECK(fstat(arena.descriptor(), &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
}

} // namespace

TEST(arena_allocates_zeroed_pages_and_gives_them_back) {
    Arena arena(64 * page);
    CHECK(bytes_in_use(arena) == 0);
    const std::size_t offset = arena.allocate(3 * page - 1);
    CHECK(offset % page == 0 && bytes_in_use(arena) == 3 * page);
    std::byte *memory = arena.mapping()->base() + offset;
    for (std::size_t i = 0; i < 3 * page; ++i) CHECK(memory[i] == std::byte{0}, i);
    std::memset(memory, 1, 3 * page);
    arena.free(offset);
    CHECK(bytes_in_use(arena) == 0);
    CHECK(arena.allocate(3 * page) == offset, "the lowest hole that fits is taken");
    for (std::size_t i = 0; i < 3 * page; ++i) CHECK(memory[i] == std::byte{0}, i);
}

TEST(arena_gives_huge_pages_to_what_fills_them) {
    Arena arena(16 * huge_page);
    CHECK(arena.allocate(page) == 0);
    CHECK(bytes_in_huge_pages(*arena.mapping()) == 0);
    const std::size_t num_bytes = 2 * huge_page + page; // two, and one small page
    const std::size_t offset = arena.allocate(num_bytes);
    std::byte *memory = arena.mapping()->base() + offset;
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % huge_page == 0);
    CHECK(bytes_in_use(arena) == num_bytes + page, "whether the pages are huge or not");
    if (system_has_huge_pages()) CHECK(bytes_in_huge_pages(*arena.mapping()) == 2 * huge_page);
    for (std::size_t i = 0; i < num_bytes; ++i) CHECK(memory[i] == std::byte{0}, i);
    std::memset(memory, 1, num_bytes);
    CHECK(arena.allocate(page) == page, "what lies before an aligned range is not lost");
    arena.free(offset);
    CHECK(bytes_in_use(arena) == 2 * page, "huge pages go back too");
    CHECK(bytes_in_huge_pages(*arena.mapping()) == 0);

    Arena tight(2 * huge_page);
    CHECK(tight.allocate(page) == 0);
    CHECK(tight.allocate(2 * huge_page - page) == page, "what fits in one way only is not refused");
    if (system_has_huge_pages()) CHECK(bytes_in_huge_pages(*tight.mapping()) == huge_page);

    // A peer, which maps the same memory itself, has used small pages where huge ones come later.
    const Mapping peers(arena.descriptor(), 16 * huge_page);
    const std::size_t small = arena.allocate(huge_page - page);
    CHECK(peers.base()[small] == std::byte{0});
    arena.free(small);
    const std::size_t again = arena.allocate(2 * huge_page);
    peers.base()[again] = std::byte{7};
    CHECK(arena.mapping()->base()[again] == std::byte{7});
    if (system_has_huge_pages()) CHECK(bytes_in_huge_pages(peers) == huge_page, "as far as it has looked");
}

TEST(arena_joins_neighbouring_holes) {
    for (int order = 0; order < 6; ++order) {
        Arena arena(3 * page);
        const std::size_t offsets[] = {arena.allocate(1), arena.allocate(0), arena.allocate(page)};
        CHECK(resource_failure_of([&] { arena.reserve(1); }).error_number == ENOMEM);
        const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        for (int which : orders[order]) arena.free(offsets[which]);
        CHECK(arena.reserve(3 * page) == 0, "order", order);
    }
}

TEST(arena_survives_a_random_life) {
    std::mt19937 random(7);
    constexpr std::size_t num_pages = 40;
    Arena arena(num_pages * page);
    std::vector<std::pair<std::size_t, std::size_t>> used; // offset, pages; each page holds the owner's mark
    for (int round = 0; round < 3000; ++round) {
        if (random() % 2 == 0 || used.empty()) {
            const std::size_t size = random() % 6 + 1;
            try {
                const std::size_t offset = arena.allocate(size * page);
                CHECK(offset + size * page <= num_pages * page);
                for (const auto &[other, pages] : used) {
                    CHECK(offset + size * page <= other || other + pages * page <= offset, "ranges overlap");
                }
                used.emplace_back(offset, size);
            } catch (const Failure &failure) { CHECK(failure.error_number == ENOMEM); }
        } else {
            const std::size_t which = random() % used.size();
            arena.free(used[which].first);
            used[which] = used.back();
            used.pop_back();
        }
    }
    for (const auto &[offset, pages] : used) arena.free(offset);
    CHECK(arena.reserve(num_pages * page) == 0, "all holes have joined again");
}

TEST(arena_serves_threads_at_once) {
    Arena arena(256 * page);
    std::vector<std::thread> threads;
    for (int mark = 1; mark <= 4; ++mark) {
        threads.emplace_back([&arena, mark] {
            for (int round = 0; round < 200; ++round) {
                const std::size_t offset = arena.allocate(page + 1);
                std::memset(arena.mapping()->base() + offset, mark, 2 * page);
                arena.free(offset);
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(arena.reserve(256 * page) == 0);
}

TEST(arena_refuses_what_it_has_not) {
    Arena arena(4 * page);
    CHECK(resource_failure_of([&] { arena.allocate(5 * page); }).error_number == ENOMEM);
    bool refused = false;
    try {
        arena.free(page);
    } catch (const Failure &failure) { refused = failure.cause == Cause::internal; }
    CHECK(refused, "freed what was not allocated");
    CHECK(arena.reserve(4 * page) == 0, "a refused allocation leaves no trace");
}

TEST(arena_reports_memory_that_the_system_has_not) {
    Arena arena(1024 * page);
    CHECK(arena.allocate(8 * page) == 0);
    system_is_full = true;
    const Failure failure = resource_failure_of([&] { arena.allocate(64 * page); });
    system_is_full = false;
    CHECK(failure.error_number == ENOSPC, failure.error_number);
    CHECK(failure.text.find("fallocate of 262144 bytes") != std::string::npos, failure.text);
    CHECK(arena.allocate(1016 * page) == 8 * page, "the range that got no memory is free again");
}

TEST(arena_cannot_be_shrunk_or_grown_by_a_peer) {
    const Arena arena(4 * page);
    CHECK(ftruncate(arena.descriptor(), page) != 0 && errno == EPERM);
    CHECK(ftruncate(arena.descriptor(), 8 * page) != 0 && errno == EPERM);
    CHECK((fcntl(arena.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST(mapping_is_shared_within_a_process_and_knows_its_addresses) {
    const Arena arena(4 * page), other(4 * page);
    const auto mapping = Mapping::of(arena.descriptor());
    CHECK(mapping == arena.mapping() && mapping != other.mapping());
    const std::byte *base = mapping->base();
    CHECK(mapping->contains(base, 4 * page) && mapping->contains(base + 4 * page, 0) && mapping->contains(base + 1, 1));
    CHECK(!mapping->contains(base, 4 * page + 1) && !mapping->contains(base + 4 * page, 1));
    CHECK(!mapping->contains(base - 1, 1) && !mapping->contains(base + 1, ~std::size_t{0}));
    CHECK(!mapping->contains(other.mapping()->base(), 1));
}
