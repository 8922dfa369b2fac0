// The rules of routes, at compile time: they need no clock, no processor and no memory.

#include "check.h"
#include "route/route.h"
#include "world.h"

#include <string_view>

using namespace hocket;

namespace {

constexpr std::size_t kib = std::size_t{1} << 10, mib = std::size_t{1} << 20;
constexpr Profile profile{.fetch_huge = 512 * kib, .fetch_small = 2 * mib, .halve = 768 * kib};
constexpr Reach reach{.may_put = true, .may_fetch = true, .line_bytes = 96};

/// Of a call whose vector is twice as long, between two ranks.
constexpr Transfer of(std::size_t num_bytes, MemoryKind source) {
    return {.num_bytes = num_bytes, .here = 2 * num_bytes, .of_all_ranks = 4 * num_bytes, .source = source};
}

constexpr bool goes(const Route &route, Way way, Way otherwise) {
    return route.way == way && route.otherwise == otherwise;
}

constexpr Transfer short_one = of(96, MemoryKind::registered), held = of(512 * kib, MemoryKind::registered),
                   longer = of(512 * kib + 1, MemoryKind::registered);
static_assert(goes(choose(short_one, reach, profile), Way::line, Way::line));
static_assert(goes(choose(of(97, MemoryKind::registered), reach, profile), Way::stage, Way::stage));
static_assert(goes(choose(held, reach, profile), Way::stage, Way::stage), "this core's own cache holds it");
static_assert(goes(choose(longer, reach, profile), Way::lend, Way::lend));
static_assert(goes(choose(longer, {.is_stream = true}, profile), Way::stream, Way::stream));
static_assert(goes(choose(of(64 * kib, MemoryKind::registered), reach, {.shares_cores = true}), Way::lend, Way::lend));
static_assert(choose(of(64 * kib, MemoryKind::registered), reach, {.shares_cores = true}).whole);
static_assert(choose(of(64 * kib - 1, MemoryKind::registered), reach, {.shares_cores = true}).way == Way::stage);

constexpr Transfer with(Transfer transfer, bool Transfer::*fact) {
    transfer.*fact = true;
    return transfer;
}
static_assert(goes(choose(with(held, &Transfer::comes_back), reach, profile), Way::lend, Way::lend));
static_assert(goes(choose(with(longer, &Transfer::overwritten), reach, profile), Way::stage, Way::stage));

constexpr Transfer given = with(longer, &Transfer::may_be_given);
static_assert(goes(choose(given, reach, profile), Way::lend, Way::lend), "it is not hot, and goes both ways");
static_assert(goes(choose(with(given, &Transfer::is_fresh), reach, profile), Way::put, Way::lend));
static_assert(goes(choose(with(given, &Transfer::one_way), reach, profile), Way::lend, Way::lend), "it is too short");
constexpr Transfer long_one =
    with(with(with(of(768 * kib, MemoryKind::registered), &Transfer::may_be_given), &Transfer::one_way),
         &Transfer::only_copied);
static_assert(goes(choose(long_one, reach, profile), Way::halve, Way::lend));
constexpr Transfer put_past(std::size_t num_bytes) {
    Transfer transfer = long_one;
    transfer.num_bytes = num_bytes;
    return transfer;
}
static_assert(choose(put_past(32 * mib), reach, profile).past_caches);
static_assert(!choose(put_past(32 * mib - 1), reach, profile).past_caches);
static_assert(choose(long_one, {.may_put = true, .is_far = true}, profile).way == Way::stage);
static_assert(choose(long_one, {}, profile).way == Way::lend, "nobody lets it write");
static_assert(choose(long_one, reach, {}).way == Way::lend, "nobody has measured it");

constexpr Transfer copied = with(of(512 * kib, MemoryKind::huge_pages), &Transfer::only_copied);
static_assert(goes(choose(copied, reach, profile), Way::fetch, Way::fetch) && choose(copied, reach, profile).whole);
static_assert(choose(of(512 * kib, MemoryKind::huge_pages), reach, profile).way == Way::stage, "it is folded");
static_assert(choose(with(of(512 * kib, MemoryKind::small_pages), &Transfer::only_copied), reach, profile).way ==
              Way::stage);
static_assert(choose(with(of(2 * mib, MemoryKind::small_pages), &Transfer::only_copied), reach, profile).way ==
              Way::fetch);
static_assert(choose(copied, {.may_put = true}, profile).way == Way::stage, "it may not");

static_assert(!choose(of(8 * mib - 1, MemoryKind::registered), reach, profile).past_caches);
static_assert(choose(of(8 * mib, MemoryKind::registered), reach, profile).past_caches);
static_assert(stores_of(of(8 * mib, MemoryKind::registered), true, reach, profile) == Stores::past_caches);
static_assert(stores_of(of(8 * mib, MemoryKind::registered), false, reach, profile) == Stores::near);
static_assert(stores_of(copied, true, {.is_far = true}, profile) == Stores::from_other_cache);

} // namespace

TEST(profiles_have_the_caches_of_this_machine) {
    for (const std::string_view name : profile_names()) {
        for (const bool shares_cores : {false, true}) {
            const auto found = profile_of(name, shares_cores);
            CHECK(found && found->shares_cores == shares_cores, name);
            CHECK(found->own_cache == profile_of("generic", false)->own_cache && found->own_cache > 0, name);
            CHECK(found->halve == Profile::never || !shares_cores, name);
        }
    }
    CHECK(!profile_of("unheard of", false));
    CHECK(profile_of(own_profile(), false).has_value());
    CHECK(profile_of("zen3", false)->halve > profile_of("zen3", false)->own_cache);
}
