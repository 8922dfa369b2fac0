// What the thresholds of routes depend on: the processor, and whether ranks share cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace hocket {

/// The lengths, in bytes, that depend on the processor. All ranks of a job have those of rank 0.
struct Profile {
    static constexpr std::size_t never = SIZE_MAX;

    /// What the second level of a core's caches holds, which cores seldom share.
    std::size_t own_cache = std::size_t{1} << 20;
    /// From here on no cache holds a chunk until it is read next. The same is true if all ranks together have twice as
    /// much.
    std::size_t all_caches = std::size_t{16} << 20;
    /// From here on a reader fetches what lies in private memory, in huge pages or in others.
    std::size_t fetch_huge = never, fetch_small = never;
    /// From here on each end moves one half of registered memory that goes one way.
    std::size_t halve = never;
    /// Whether some ranks have no core of their own. Then each word between two ranks takes a turn of both.
    bool shares_cores = false;
};

/// The names of the processors that were measured, and "generic".
std::span<const std::string_view> profile_names();
/// The name of this machine's.
std::string_view own_profile();
/// What the second level of a core's caches holds here; a common size where that is not known.
std::size_t bytes_of_own_cache();
/// The thresholds for a processor with such a cache. Nothing where the name is unknown.
std::optional<Profile> profile_of(std::string_view name, bool shares_cores,
                                  std::size_t own_cache = bytes_of_own_cache());

/// Whether this processor's string moves are the quickest way to copy much. The kernel copies by them, too.
bool has_quick_string_moves();

} // namespace hocket
