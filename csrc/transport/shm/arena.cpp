#include "transport/shm/arena.h"

#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace hocket {

namespace {

#ifndef MADV_COLLAPSE // of Linux 6.1, and so younger than many headers
constexpr int MADV_COLLAPSE = 25;
#endif

#ifndef MFD_NOEXEC_SEAL // of Linux 6.3
constexpr unsigned MFD_NOEXEC_SEAL = 8;
#endif

/// Some systems refuse memory that could be executed (vm.memfd_noexec); older ones do not know the flag that says so.
int create_memory() {
    constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int descriptor = memfd_create("hocket-arena", flags | MFD_NOEXEC_SEAL);
    return descriptor < 0 && errno == EINVAL ? memfd_create("hocket-arena", flags) : descriptor;
}

} // namespace

Mapping::Mapping(int descriptor, std::size_t num_bytes) : num_bytes_(num_bytes) {
    const auto check = [num_bytes](void *address) {
        if (address != MAP_FAILED) return static_cast<std::byte *>(address);
        throw Failure::resource("mmap of " + std::to_string(num_bytes) + " bytes of an arena");
    };
    // The system maps a huge page only where address and offset agree about where it starts.
    const int addresses_only = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    std::byte *reserved = check(mmap(nullptr, num_bytes + huge_page_bytes, PROT_NONE, addresses_only, -1, 0));
    const std::size_t ahead = -reinterpret_cast<std::uintptr_t>(reserved) % huge_page_bytes;
    munmap(reserved, ahead);
    munmap(reserved + ahead + num_bytes, huge_page_bytes - ahead);
    const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    base_ = check(mmap(reserved + ahead, num_bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0));
}

Mapping::~Mapping() { munmap(base_, num_bytes_); }

std::shared_ptr<const Mapping> Mapping::of(int descriptor) {
    static std::mutex mutex; // guards `known`
    static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const Mapping>> known;
    struct stat status{};
    if (fstat(descriptor, &status) != 0) throw Failure::resource("fstat of an arena");
    const std::scoped_lock lock(mutex);
    std::erase_if(known, [](const auto &entry) { return entry.second.expired(); });
    auto &entry = known[{status.st_dev, status.st_ino}];
    auto mapping = entry.lock();
    if (!mapping) {
        mapping = std::make_shared<const Mapping>(descriptor, static_cast<std::size_t>(status.st_size));
        entry = mapping;
    }
    return mapping;
}

bool Mapping::contains(const void *address, std::size_t num_bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address), base = reinterpret_cast<std::uintptr_t>(base_);
    return at >= base && at - base <= num_bytes_ && num_bytes <= num_bytes_ - (at - base);
}

Arena::Arena(std::size_t capacity) : Arena() { // so whatever is thrown here, the destructor runs
    capacity = round_up(capacity, page_bytes());
    descriptor_ = create_memory();
    if (descriptor_ < 0) throw Failure::resource("memfd_create");
    if (ftruncate(descriptor_, static_cast<off_t>(capacity)) != 0) throw Failure::resource("ftruncate of an arena");
    // A peer that could shrink the file would turn our next access into SIGBUS.
    if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw Failure::resource("sealing an arena");
    mapping_ = Mapping::of(descriptor_);
    holes_[0] = capacity;
}

Arena::~Arena() { close(descriptor_); }

std::size_t Arena::reserve(std::size_t num_bytes, std::size_t alignment) {
    home_.check();
    free_leftovers();
    num_bytes = round_up(std::max<std::size_t>(num_bytes, 1), page_bytes());
    const std::scoped_lock lock(mutex_);
    const auto ahead = [&alignment](std::size_t offset) { return round_up(offset, alignment) - offset; };
    const auto fits = [&](const auto &entry) { return entry.second >= num_bytes + ahead(entry.first); };
    auto hole = std::ranges::find_if(holes_, fits);
    if (hole == holes_.end()) {
        alignment = page_bytes();
        hole = std::ranges::find_if(holes_, fits);
    }
    if (hole == holes_.end()) {
        errno = ENOMEM;
        throw Failure::resource("reserving " + std::to_string(num_bytes) + " bytes of the arena");
    }
    const auto [begin, size] = *hole;
    const std::size_t offset = begin + ahead(begin), end = offset + num_bytes;
    if (offset > begin) hole->second = offset - begin;
    else holes_.erase(hole);
    if (begin + size > end) holes_[end] = begin + size - end;
    used_[offset] = num_bytes;
    return offset;
}

void Arena::commit(std::size_t offset, std::size_t num_bytes) {
    home_.check();
    int result = 0;
    do {
        result = fallocate(descriptor_, 0, static_cast<off_t>(offset),
                           static_cast<off_t>(round_up(num_bytes, page_bytes())));
    } while (result != 0 && errno == EINTR);
    if (result != 0) throw Failure::resource("fallocate of " + std::to_string(num_bytes) + " bytes of shared memory");
}

void Arena::decommit(std::size_t offset, std::size_t num_bytes) {
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(num_bytes)); // refused: the pages merely stay
}

/// Makes huge pages of all that fits into whole ones, for fewer misses of address translation and of what a first use
/// costs. The system makes them around what is there already; where it refuses, commit() takes small ones.
void Arena::collapse(std::size_t offset, std::size_t num_bytes) {
    const std::size_t begin = round_up(offset, huge_page_bytes),
                      end = (offset + num_bytes) / huge_page_bytes * huge_page_bytes;
    for (std::size_t at = begin; at < end; at += huge_page_bytes) commit(at, page_bytes());
    if (begin < end) madvise(mapping_->base() + begin, end - begin, MADV_COLLAPSE);
}

std::size_t Arena::allocate(std::size_t num_bytes) {
    const std::size_t offset = reserve(num_bytes, num_bytes < huge_page_bytes ? page_bytes() : huge_page_bytes);
    try {
        collapse(offset, num_bytes);
        commit(offset, std::max<std::size_t>(num_bytes, 1));
    } catch (...) {
        free(offset);
        throw;
    }
    return offset;
}

void Arena::free_once(std::function<bool()> is_unused, std::vector<std::size_t> offsets) {
    const std::scoped_lock lock(mutex_);
    leftovers_.push_back({std::move(is_unused), std::move(offsets)});
}

void Arena::free_leftovers() {
    std::vector<std::size_t> unused;
    {
        const std::scoped_lock lock(mutex_);
        std::erase_if(leftovers_, [&unused](const Leftover &one) {
            if (!one.is_unused()) return false;
            unused.insert(unused.end(), one.offsets.begin(), one.offsets.end());
            return true;
        });
    }
    for (const std::size_t offset : unused) free(offset);
}

void Arena::free(std::size_t offset) {
    if (!home_.is_here()) return;
    const std::scoped_lock lock(mutex_);
    const auto entry = used_.find(offset);
    if (entry == used_.end()) throw Failure::internal("arena: freed memory that was not allocated");
    std::size_t size = entry->second;
    used_.erase(entry);
    decommit(offset, size);
    auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && next->first == offset + size) {
        size += next->second;
        next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            before->second += size;
            return;
        }
    }
    holes_[offset] = size;
}

} // namespace hocket
