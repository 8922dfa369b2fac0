#include "machine/profile.h"

#include <algorithm>
#include <array>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hocket {
namespace {

constexpr std::size_t kib = std::size_t{1} << 10, mib = std::size_t{1} << 20;

struct Row {
    Profile own_cores, shared_cores;
    bool has_quick_string_moves = false;
};

// Paragraphs of docs/lab/2026-11.md tell how these lengths were found.
//
// fetch: from so much on, the kernel's one copy takes no longer than two copies through slots. That is less where its
// string moves are quick. Small pages are never fetched there, because to look them up takes as long as two copies.
// Where ranks share cores, two copies find all data in the common cache for longer. [Copied once by the system; What
// hangs on quick string moves; Which pages memory lies in]
// halve: in shorter chunks, each end waits longer for the other than it copies. Ranks that share cores wait at any
// length. [Registered broadcasts that both ends copy; Long messages of ranks that share cores, fetched]
constexpr Row with_string_moves{.own_cores = {.fetch_huge = 512 * kib, .halve = 768 * kib},
                                .shared_cores = {.fetch_huge = 1 * mib, .shares_cores = true},
                                .has_quick_string_moves = true};
constexpr Row with_vectors{.own_cores = {.fetch_huge = 2 * mib, .fetch_small = 2 * mib, .halve = 768 * kib},
                           .shared_cores = {.fetch_huge = 1 * mib, .fetch_small = 4 * mib, .shares_cores = true}};
/// What nobody has measured neither fetches nor halves.
constexpr Row unknown{.own_cores = {}, .shared_cores = {.shares_cores = true}};

constexpr std::array<std::string_view, 4> names{"zen5", "intel", "zen3", "generic"};
constexpr std::array rows{with_string_moves, with_string_moves, with_vectors, unknown};

/// String moves write whole lines that they have not fetched. On AMD's family 26 (Zen 5) they are twice as quick where
/// the destination is in no near cache, and take no longer where lines of it lie in another core's. Before it they were
/// found to lose: on Zen 4 up to 1.15 times as long, on Zen 3 1.5 times into slots, and 10 to 30 times where the
/// destination lies less than a vector behind the source, counted from the beginnings of their pages, as do large
/// private arrays, 16 bytes into a page, behind a staging slot. On Emerald Rapids they gain 1.1 times on average; it is
/// taken for an example of all Intel processors that have "fast short" string moves.
std::string_view find_name() {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0, &a, &b, &c, &d) == 0) return "generic";
    const bool is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx,
               is_intel = b == signature_INTEL_ebx && c == signature_INTEL_ecx;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return "generic";
    const unsigned family = (a >> 8 & 0xf) + (a >> 20 & 0xff);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return "generic";
    constexpr unsigned zen3 = 25, zen5 = 26, enhanced = 1U << 9, fast_short = 1U << 4; // the last two: bits of leaf 7
    const bool has_enhanced = (b & enhanced) != 0;
    if (is_amd && family >= zen5 && has_enhanced) return "zen5";
    if (is_amd && family >= zen3) return "zen3";
    if (is_intel && has_enhanced && (d & fast_short) != 0) return "intel";
#endif
    return "generic";
}

const Row *row_of(std::string_view name) {
    const auto found = std::ranges::find(names, name);
    return found == names.end() ? nullptr : &rows[static_cast<std::size_t>(found - names.begin())];
}

} // namespace

std::span<const std::string_view> profile_names() { return names; }

std::string_view own_profile() {
    static const std::string_view found = find_name();
    return found;
}

std::size_t bytes_of_own_cache() {
#ifdef _SC_LEVEL2_CACHE_SIZE
    if (const long found = sysconf(_SC_LEVEL2_CACHE_SIZE); found > 0) return static_cast<std::size_t>(found);
#endif
    return Profile{}.own_cache;
}

std::optional<Profile> profile_of(std::string_view name, bool shares_cores, std::size_t own_cache) {
    const Row *const row = row_of(name);
    if (row == nullptr) return std::nullopt;
    Profile profile = shares_cores ? row->shared_cores : row->own_cores;
    profile.own_cache = own_cache;
    // A put into lines that the reader's own cache holds is only quick by string moves: so the chunk must not fit
    // there.
    if (!row->has_quick_string_moves && profile.halve != Profile::never)
        profile.halve = std::max(profile.halve, profile.own_cache + 1);
    return profile;
}

bool has_quick_string_moves() {
#if defined(HOCKET_SANITIZE) // sanitizers do not see what string moves read and write
    return false;
#else
    static const bool found = row_of(own_profile())->has_quick_string_moves;
    return found;
#endif
}

} // namespace hocket
