#include "machine/pages.h"

#include "base/system.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace hocket {
namespace {

// As linux/fs.h has them, but older headers do not.
struct PageRegion {
    std::uint64_t begin = 0, end = 0, categories = 0;
};
struct PageScan {
    std::uint64_t num_bytes = sizeof(PageScan), flags = 0, begin = 0, end = 0, end_of_walk = 0;
    std::uint64_t regions = 0, num_regions = 0, most_pages = 0;
    std::uint64_t category_inverted = 0, category_mask = 0, category_any_of = 0, return_mask = 0;
};
static_assert(sizeof(PageScan) == 96);
constexpr unsigned long scan_pages = _IOWR('f', 16, PageScan);
constexpr std::uint64_t is_present = 1U << 3, is_huge = 1U << 6;

} // namespace

PageMap::PageMap() : descriptor_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

PageMap::~PageMap() { end(); }

void PageMap::end() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
}

Pages PageMap::ask(Bytes memory) {
    if (descriptor_ < 0) return Pages::unknown;
    const std::size_t page = page_bytes();
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) & ~(page - 1);
    const auto middle = reinterpret_cast<std::uintptr_t>(&memory[memory.size() / 2]) & ~(page - 1);
    const auto end = round_up(reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size(), page);
    std::array<PageRegion, 16> found{};
    PageScan scan{.begin = middle, .end = middle + page, .regions = reinterpret_cast<std::uintptr_t>(&found)};
    scan.num_regions = scan.most_pages = 1;
    scan.category_mask = is_present;
    scan.return_mask = is_huge;
    const int num_found = ioctl(descriptor_, scan_pages, &scan);
    if (num_found < 0 && (errno == ENOTTY || errno == EINVAL)) this->end(); // an older system
    if (num_found <= 0) return Pages::unknown;
    if ((found[0].categories & is_huge) == 0) return Pages::small;
    // What is in small ones, up to so many that it is too much, or scattered.
    const std::size_t most = (end - begin) / page / most_part_in_small;
    scan = {.begin = begin, .end = end, .regions = reinterpret_cast<std::uintptr_t>(&found)};
    scan.num_regions = found.size();
    scan.most_pages = most + 1;
    scan.category_inverted = is_huge;
    scan.category_mask = is_present | is_huge;
    const int num_small = ioctl(descriptor_, scan_pages, &scan);
    std::size_t num_bytes = 0;
    for (int i = 0; i < num_small; ++i) {
        const PageRegion &region = found[static_cast<std::size_t>(i)];
        num_bytes += region.end - region.begin;
    }
    const bool is_scattered = num_small == static_cast<int>(found.size());
    return num_small < 0 || is_scattered || num_bytes > most * page ? Pages::small : Pages::huge;
}

Pages PageMap::of(Bytes memory) {
    const std::lock_guard lock(mutex_);
    const auto is_of = [memory](const Answer &answer) {
        return answer.memory.data() == memory.data() && answer.memory.size() == memory.size();
    };
    const auto found = std::ranges::find_if(answers_, is_of);
    if (found != answers_.end() && found->num_uses < most_uses) {
        ++found->num_uses;
        return found->pages;
    }
    const Pages pages = ask(memory);
    Answer &answer = found != answers_.end() ? *found : answers_[next_++ % answers_.size()];
    answer = Answer();
    if (pages != Pages::unknown) answer = {.memory = memory, .pages = pages, .num_uses = 1};
    return pages;
}

} // namespace hocket
