// What one host tells another one of a control page, and how that one mirrors it. All hosts run one build, so numbers
// travel as they lie in memory. What arrives comes from a rank of the job, but no length in it is believed.
#pragma once

#include "base/waiting.h"
#include "control/control.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace hocket {

/// The page of one rank of the job, by its place in the memory of that rank.
struct PageName {
    std::uint64_t offset = 0;
    std::int64_t rank = 0;

    auto operator<=>(const PageName &) const = default;
};

/// The part of a page that has one length. What follows it are calls, then lines of the program.
struct NewsHead {
    PageName page;
    std::uint32_t generation = 0, state = 0, is_stopped = 0;
    std::uint32_t num_calls = 0, num_sites = 0;
    std::int32_t waits_for = 0;
    std::uint64_t name = 0, last_call = 0, in_call = 0, in_messages = 0, gave_up = 0, waits_in = 0;
    std::array<std::uint64_t, 4> digests{};
    std::uint64_t progress = 0;
    std::int64_t noted_at = 0, note_age = 0; // nanoseconds: by the clock of its host; when these news were written

    bool operator==(const NewsHead &) const = default;
};

/// What has been told of a page, so that only what is new is told again.
struct Told {
    NewsHead head;
    std::array<std::uint32_t, ControlPage::num_sites> sites{};
    Clock::time_point at{}; // the last time
};

/// Appends what is new on a page; nothing if nothing is. `is_stopped`: whether the owner's process is, if somebody has
/// asked for it. Only then a note of its program is news by itself, and not in quick succession.
void append_news(std::vector<std::byte> &news, const PageName &name, const ControlPage &page,
                 std::optional<bool> is_stopped, Told &told);

/// What `news` begin with, which it takes from them; nothing at the end, or if they are malformed.
struct PageNews {
    NewsHead head;
    Bytes calls, sites;
};
std::optional<PageNews> take_page(Bytes &news);

/// Writes them on a mirror; one thread at a time may do so. Returns whether a wait may end by it: the owner has given
/// up, or left. It drops news of an earlier communicator.
bool mirror(const PageNews &news, ControlPage &page);

/// Why a communicator failed, between hosts: the record of a page, and the calls that belong to it, by member.
std::vector<std::byte> encode_reason(std::uint64_t name, const AbortRecord &record, std::span<const Fingerprint> calls);
/// The communicator of such a reason; nothing if it is malformed.
std::optional<std::uint64_t> communicator_of(Bytes reason);
/// Writes it into a record that the caller has moved to `agent`.
void decode_reason(Bytes reason, AbortRecord &record, std::span<Fingerprint> calls);

} // namespace hocket
