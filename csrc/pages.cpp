#include "pages.h"

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

Pages PageMap::ask(std::uintptr_t address) {
    if (descriptor_ < 0) return Pages::unknown;
    PageRegion found{};
    PageScan scan;
    scan.begin = address;
    scan.end = address + page;
    scan.regions = reinterpret_cast<std::uintptr_t>(&found);
    scan.num_regions = scan.most_pages = 1;
    scan.category_mask = is_present;
    scan.return_mask = is_huge;
    const int num_found = ioctl(descriptor_, scan_pages, &scan);
    if (num_found < 0 && (errno == ENOTTY || errno == EINVAL)) end(); // an older system
    if (num_found <= 0) return Pages::unknown;
    return (found.categories & is_huge) != 0 ? Pages::huge : Pages::small;
}

Pages PageMap::of(Bytes memory) {
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(&memory[memory.size() / 2]) & ~(page - 1);
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(answers_, address, &Answer::address);
    if (found != answers_.end() && found->num_uses < most_uses) {
        ++found->num_uses;
        return found->pages;
    }
    const Pages pages = ask(address);
    Answer &answer = found != answers_.end() ? *found : answers_[next_++ % answers_.size()];
    answer = Answer();
    if (pages != Pages::unknown) answer = {.address = address, .pages = pages, .num_uses = 1};
    return pages;
}

} // namespace hocket
