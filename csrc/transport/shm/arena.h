// One rank's shared memory: a sparse, sealed memfd without a name, mapped once by its owner and once by each peer.
#pragma once

#include "base/system.h"
#include "base/types.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace hocket {

/// A mapped range of shared memory that unmaps itself.
class Mapping {
  public:
    /// The arena behind a descriptor. Ranks that are threads of one process share one mapping: it saves addresses, and
    /// the thread sanitizer, which knows memory by its address, sees what they do to each other.
    static std::shared_ptr<const Mapping> of(int descriptor);

    Mapping(int descriptor, std::size_t num_bytes);
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping();

    std::byte *base() const { return base_; }
    std::size_t num_bytes() const { return num_bytes_; }
    bool contains(const void *address, std::size_t num_bytes) const;
    /// Whether something of this type lies inside, where a peer says that it does; `num_bytes`: if it is longer.
    template <typename T> bool has(std::size_t offset, std::size_t num_bytes = sizeof(T)) const {
        return offset % alignof(T) == 0 && num_bytes <= num_bytes_ && offset <= num_bytes_ - num_bytes;
    }

  private:
    std::byte *base_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// The owner's side: allocates whole pages, so that freed ones can be given back to the system. Thread-safe.
class Arena {
  public:
    /// Reserves `capacity` bytes of addresses; memory is taken by allocate() only.
    explicit Arena(std::size_t capacity);
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    ~Arena();

    int descriptor() const { return descriptor_; }
    const std::shared_ptr<const Mapping> &mapping() const { return mapping_; }

    /// Reserves a range of pages, which begins at a multiple of `alignment` where there is room for that; commit() must
    /// follow before it is touched.
    std::size_t reserve(std::size_t num_bytes, std::size_t alignment = page_bytes());
    /// Takes memory for a range. Throws a resource failure where the system has none, instead of a later SIGBUS.
    void commit(std::size_t offset, std::size_t num_bytes);
    /// Gives the memory of a range back; its addresses stay reserved.
    void decommit(std::size_t offset, std::size_t num_bytes);
    /// Reserves and commits, in huge pages where there are any; the memory is zero.
    std::size_t allocate(std::size_t num_bytes);
    void free(std::size_t offset);
    /// Frees these once `is_unused` says that nobody looks at them any more: it is asked when anything is reserved.
    void free_once(std::function<bool()> is_unused, std::vector<std::size_t> offsets);

  private:
    Arena() = default;

    struct Leftover {
        std::function<bool()> is_unused;
        std::vector<std::size_t> offsets;
    };

    void free_leftovers();
    void collapse(std::size_t offset, std::size_t num_bytes);

    int descriptor_ = -1;
    HomeProcess home_; // the memory is shared with a forked child, but who owns which part of it is the parent's to say
    std::shared_ptr<const Mapping> mapping_;
    std::mutex mutex_;                        // guards the three below
    std::map<std::size_t, std::size_t> used_; // offset -> bytes
    std::map<std::size_t, std::size_t> holes_;
    std::vector<Leftover> leftovers_;
};

} // namespace hocket
