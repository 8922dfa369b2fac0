// What one host tells another of control pages, and of reasons: it arrives equal, and nothing malformed does harm.

#include "control/news.h"

#include "check.h"
#include "control/members.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr PageName name_of_page{.offset = 1 << 14, .rank = 3};
constexpr std::uint64_t communicator = 0xabcdef;

Fingerprint call_number(std::uint64_t number) {
    return {.sequence = number,
            .count = 3 * number,
            .schedule = number << 40,
            .detail = ~number,
            .kind = static_cast<std::int32_t>(number % 9),
            .dtype = 7,
            .op = static_cast<std::int32_t>(number % 5),
            .root = static_cast<std::int32_t>(number % 3)};
}

/// Makes the next calls, as their rank does.
void call_up_to(ControlPage &page, std::uint64_t last) {
    for (std::uint64_t number = page.last_call.load() + 1; number <= last; ++number) {
        const Site site{.number = static_cast<std::uint32_t>(1 + number % 40),
                        .text = "train.py:" + std::to_string(number % 40)};
        page.note_call(call_number(number), number % 4 == 0 ? nullptr : &site, number % 8 == 1);
        if (number % ControlPage::lead == 0) page.digest_at(number).store(number * 1001);
        page.last_call.store(number);
    }
}

/// A host that tells of one page, and another one that mirrors it.
struct Pair {
    std::unique_ptr<ControlPage> page = std::make_unique<ControlPage>(), other = std::make_unique<ControlPage>();
    Told told;

    Pair() { page->name.store(communicator); }
    std::vector<std::byte> news(std::optional<bool> is_stopped = std::nullopt) {
        std::vector<std::byte> found;
        append_news(found, name_of_page, *page, is_stopped, told);
        return found;
    }
    /// Whether a wait may end by it.
    bool tell(std::optional<bool> is_stopped = std::nullopt) {
        const auto told_news = news(is_stopped);
        Bytes rest = told_news;
        const auto found = take_page(rest);
        CHECK(found && rest.empty() && !take_page(rest));
        CHECK(found->head.page == name_of_page);
        return mirror(*found, *other);
    }
    void check_equal() const {
        const auto equal = [this](auto ControlPage::*field) {
            return ((*page).*field).load() == ((*other).*field).load();
        };
        CHECK(equal(&ControlPage::generation) && equal(&ControlPage::state) && equal(&ControlPage::name));
        CHECK(equal(&ControlPage::last_call) && equal(&ControlPage::gave_up));
        CHECK(equal(&ControlPage::in_call) && equal(&ControlPage::in_messages));
        CHECK(equal(&ControlPage::waits_for) && equal(&ControlPage::waits_in));
        for (std::size_t i = 0; i < page->digests.size(); ++i)
            CHECK(page->digests[i].load() == other->digests[i].load(), "digest", i);
        const std::uint64_t last = page->last_call.load();
        for (std::uint64_t call = last - std::min<std::uint64_t>(last, ControlPage::history - 1); call <= last;
             ++call) {
            CHECK(page->call_of(call) == other->call_of(call), "call", call);
            CHECK(page->site_of(call) == other->site_of(call), "call", call, "was at", page->site_of(call),
                  "and seems to be at", other->site_of(call));
        }
    }
};

Failure a_failure() {
    Failure failure(Cause::mismatch, 2, "reason");
    failure.sequence = 77;
    failure.seconds = 1.5;
    failure.missing = {0, 3};
    failure.calls[1] = call_number(77);
    failure.calls[3] = call_number(78);
    return failure;
}

/// A record, and the calls that belong to it.
struct Reason {
    AbortRecord record{};
    std::vector<Fingerprint> calls;

    explicit Reason(std::size_t size) : calls(size) {}
    Reason(const Failure &failure, std::size_t size) : Reason(size) {
        record.cause = static_cast<std::int32_t>(failure.cause);
        record.rank = failure.rank;
        record.sequence = failure.sequence;
        record.seconds = failure.seconds;
        for (const int member : failure.missing)
            record.missing[static_cast<std::size_t>(member) / 64] |= std::uint64_t{1} << member % 64;
        std::ranges::copy(failure.text, record.text.begin());
        for (const auto &[member, call] : failure.calls) calls[static_cast<std::size_t>(member)] = call;
    }
    std::vector<std::byte> encoded() const { return encode_reason(communicator, record, calls); }
};

/// Overwrites a number in what travels.
template <typename Number> void put(std::vector<std::byte> &bytes, std::size_t at, Number number) {
    std::memcpy(bytes.data() + at, &number, sizeof number);
}

} // namespace

// Pages ---------------------------------------------------------------------------------------------------------------

TEST(news_of_a_page_arrive_equal) {
    Pair hosts;
    CHECK(!hosts.tell(), "no wait ends by it");
    CHECK(hosts.news().empty(), "nothing is new");
    hosts.page->in_call.store(6);
    hosts.page->in_messages.store(1);
    hosts.page->waits_for.store(4);
    hosts.page->waits_in.store(6);
    call_up_to(*hosts.page, 5);
    CHECK(!hosts.tell(), "no wait ends by a call");
    hosts.check_equal();
    CHECK(hosts.news().empty());
    hosts.page->gave_up.store(6);
    CHECK(hosts.tell(), "it has failed");
    hosts.page->state.store(ControlPage::closing);
    CHECK(hosts.tell(), "it sends nothing more");
    hosts.check_equal();
}

TEST(only_calls_that_are_new_and_still_known_are_told) {
    Pair hosts;
    call_up_to(*hosts.page, 100);
    const std::size_t first = hosts.news().size();
    call_up_to(*hosts.page, 101);
    CHECK(hosts.news().size() < first / 10);
    Pair late; // so many calls between two looks that some are forgotten
    for (const std::uint64_t last : {3UL, 127UL, 128UL, 400UL, 401UL, 1000UL}) {
        call_up_to(*late.page, last);
        late.tell();
        late.check_equal();
    }
}

TEST(a_stopped_process_is_told_until_somebody_looks_again) {
    Pair hosts;
    hosts.tell(true);
    CHECK(hosts.other->is_stopped.load() == 1 && hosts.news(true).empty());
    call_up_to(*hosts.page, 1);
    hosts.tell();
    CHECK(hosts.other->is_stopped.load() == 1, "nobody has looked");
    hosts.tell(false);
    CHECK(hosts.other->is_stopped.load() == 0);
}

TEST(a_note_travels_with_other_news_or_if_somebody_asks) {
    Pair hosts;
    hosts.tell();
    CHECK(hosts.other->progress.read().at == 0);
    hosts.page->progress.write(7);
    CHECK(hosts.news().empty(), "nobody has asked");
    hosts.page->last_call.store(1);
    CHECK(!hosts.tell() && hosts.other->progress.read().word == 7);
    const auto until = Clock::now() + std::chrono::seconds(60);
    for (const std::uint64_t word : {8U, 8U}) { // the same word once more is news, too
        const std::int64_t before = hosts.other->progress.read().at;
        hosts.page->progress.write(word);
        std::vector<std::byte> told;
        while (told.empty() && Clock::now() < until) told = hosts.news(false); // notes alone are told at intervals
        Bytes rest = told;
        const auto found = take_page(rest);
        CHECK(found && !mirror(*found, *hosts.other), "no wait ends by it");
        const ProgressRecord::Note note = hosts.other->progress.read();
        CHECK(note.word == word && note.at > before && note.at >= hosts.page->progress.read().at, "it has travelled");
        CHECK(hosts.news(false).empty(), "it was told");
    }
    hosts.page->renew();
    hosts.tell();
    CHECK(hosts.other->progress.read().at == 0, "it was another communicator's");
}

TEST(news_of_the_next_communicator_take_the_place_of_the_last_one) {
    Pair hosts;
    call_up_to(*hosts.page, 300);
    hosts.page->state.store(ControlPage::closed);
    const auto old = hosts.news();
    Bytes rest = old;
    mirror(*take_page(rest), *hosts.other);
    hosts.page->renew();
    hosts.page->name.store(communicator + 1);
    call_up_to(*hosts.page, 2);
    CHECK(hosts.tell(), "the last one is over");
    hosts.check_equal();
    CHECK(!hosts.other->call_of(300) && hosts.other->generation.load() == 1);
    rest = old;
    CHECK(!mirror(*take_page(rest), *hosts.other), "they are late");
    hosts.check_equal();
}

/// The leader of a host looks at a page while its owner opens one communicator after the other on it.
TEST(news_never_mix_two_communicators_of_a_page) {
    constexpr int num_looks = thread_sanitizer ? 2000 : 20'000; // at another communicator each
    Pair hosts;
    hosts.page->name.store(0);
    std::atomic<bool> is_over{false};
    std::thread owner([&] {
        for (std::uint64_t round = 1; !is_over.load(); ++round) {
            hosts.page->renew();
            hosts.page->name.store(round);
            for (std::uint64_t call = 1; call <= 3; ++call) {
                hosts.page->note_call({.sequence = call, .count = round}, nullptr, false);
                hosts.page->gave_up.store(round);
                hosts.page->last_call.store(call);
            }
            hosts.page->state.store(ControlPage::closed);
        }
    });
    std::string trouble;
    const auto until = Clock::now() + std::chrono::seconds(2);
    for (int looks = 0; looks < num_looks && Clock::now() < until;) {
        const std::uint32_t before = hosts.told.head.generation;
        const auto news = hosts.news();
        Bytes rest = news;
        const auto found = take_page(rest);
        if (!found) continue;
        const NewsHead &head = found->head;
        const std::uint64_t generation = head.generation;
        if (generation != before) ++looks;
        // What its owner has just cleared nobody asks for any more.
        if (head.gave_up != 0 && head.gave_up != generation) trouble = "it gave up";
        if (head.name != 0 && head.name != generation) trouble = "it has the name";
        for (std::size_t i = 0; i < head.num_calls; ++i) {
            CallRecord::Words words{};
            std::memcpy(words.data(), found->calls.data() + i * sizeof words, sizeof words);
            if (words[1] != generation) trouble = "it makes the calls";
        }
        if (head.state == ControlPage::closed && head.last_call != 3 && head.last_call != 0) trouble = "it has closed";
        if (!trouble.empty()) break;
    }
    is_over.store(true);
    owner.join();
    CHECK(trouble.empty(), trouble, "of another communicator");
}

/// A rank reads a mirror while the leader of its host writes the next communicator there.
TEST(a_mirror_shows_a_communicator_as_a_whole) {
    const auto until = Clock::now() + std::chrono::seconds(1);
    Pair hosts;
    std::deque<Presence> presences(2);
    std::vector<Fingerprint> calls(2);
    const auto own = std::make_unique<ControlPage>();
    std::atomic<std::uint32_t> round{0}, has_seen{0}, last{0};
    std::string trouble;
    std::thread reader([&] {
        for (std::uint32_t next = 1; last.load() == 0; ++next) {
            const Members members({{0, true, presences[0], *own, calls},
                                   {1, false, presences[1], *hosts.other, calls, next, "elsewhere"}},
                                  0);
            round.store(next);
            // Until it has come: then this communicator, which has made no call, and is open.
            for (bool has_come = false; !has_come;) {
                has_come = hosts.other->generation.load() == next;
                if (members.last_call(1) != 0) trouble = "has made calls";
                if (members.has_closed(1)) trouble = "is closed";
                if (members.has_given_up(1000)) trouble = "has given up";
            }
            has_seen.store(next);
        }
    });
    for (std::uint32_t next = 1; last.load() == 0; ++next) {
        while (round.load() != next) std::this_thread::yield();
        hosts.page->renew();
        hosts.page->name.store(next);
        if (Clock::now() > until) last.store(next); // before the reader goes on
        hosts.tell();
        while (has_seen.load() != next) std::this_thread::yield();
        call_up_to(*hosts.page, 3);
        hosts.page->gave_up.store(3);
        hosts.page->state.store(ControlPage::closed);
        hosts.tell();
    }
    reader.join();
    CHECK(trouble.empty(), "before its first call, it", trouble);
}

// What is malformed ---------------------------------------------------------------------------------------------------

TEST(news_that_are_cut_are_refused) {
    Pair hosts;
    call_up_to(*hosts.page, 7);
    const auto news = hosts.news();
    for (std::size_t length = 0; length < news.size(); ++length) {
        const std::vector<std::byte> cut(news.begin(), news.begin() + static_cast<std::ptrdiff_t>(length));
        Bytes rest = cut; // of its own memory, so that AddressSanitizer sees who reads behind it
        CHECK(!take_page(rest), length);
    }
}

TEST(news_with_wrong_counts_are_refused) {
    Pair hosts;
    call_up_to(*hosts.page, 7);
    const auto news = hosts.news();
    for (const std::size_t field : {offsetof(NewsHead, num_calls), offsetof(NewsHead, num_sites)}) {
        for (const std::uint32_t count : {129U, 1000U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
            auto wrong = news;
            put(wrong, field, count);
            Bytes rest = wrong;
            CHECK(!take_page(rest), count);
        }
    }
}

/// All that passes is written inside of the page, whatever it says, and read without harm.
TEST(news_of_any_content_stay_inside_of_their_page) {
    struct Guarded {
        alignas(cache_line) std::array<std::byte, 4096> before{};
        ControlPage page{};
        std::array<std::byte, 4096> behind{};
    };
    const auto guarded = std::make_unique<Guarded>();
    Pair hosts;
    call_up_to(*hosts.page, 100);
    const auto news = hosts.news();
    std::deque<Presence> presences(2);
    std::vector<Fingerprint> calls(2);
    const auto own = std::make_unique<ControlPage>();
    std::mt19937 choose(5);
    int num_taken = 0;
    for (int round = 0; round < (thread_sanitizer ? 300 : 3000); ++round) {
        auto wrong = news;
        for (unsigned i = 0; i < 1 + choose() % 60; ++i) {
            const std::size_t end = choose() % 2 == 0 ? sizeof(NewsHead) : wrong.size();
            wrong[choose() % end] = static_cast<std::byte>(choose());
        }
        if (round % 7 == 0) put(wrong, offsetof(NewsHead, waits_for), std::numeric_limits<std::int32_t>::min());
        Bytes rest = wrong;
        const auto found = take_page(rest);
        if (!found) continue;
        ++num_taken;
        mirror(*found, guarded->page);
        const Members members({{0, true, presences[0], *own, calls},
                               {1, false, presences[1], guarded->page, calls, found->head.generation, "elsewhere"}},
                              0);
        own->waits_for.store(2);
        static_cast<void>(members.circle());
        for (std::uint64_t call = 0; call < ControlPage::history; ++call) {
            static_cast<void>(members.call_of(1, call));
            static_cast<void>(guarded->page.site_of(call));
        }
    }
    CHECK(num_taken > 10, num_taken);
    for (const auto *const edge : {&guarded->before, &guarded->behind})
        CHECK(std::ranges::all_of(*edge, [](std::byte byte) { return byte == std::byte{0}; }));
}

// Reasons -------------------------------------------------------------------------------------------------------------

TEST(a_reason_arrives_equal) {
    const Reason sent(a_failure(), 5);
    const auto encoded = sent.encoded();
    CHECK(communicator_of(encoded) == communicator);
    Reason found(5);
    found.calls[0].sequence = 9; // of an earlier one
    decode_reason(encoded, found.record, found.calls);
    CHECK(found.record.cause == sent.record.cause && found.record.rank == 2);
    CHECK(found.record.sequence == 77 && found.record.seconds == 1.5);
    CHECK(found.record.missing == sent.record.missing && found.record.text == sent.record.text);
    CHECK(found.calls == sent.calls);
}

TEST(a_reason_that_is_cut_or_miscounted_is_refused) {
    const auto encoded = Reason(a_failure(), 5).encoded();
    for (std::size_t length = 0; length < encoded.size(); ++length) {
        const std::vector<std::byte> cut(encoded.begin(), encoded.begin() + static_cast<std::ptrdiff_t>(length));
        CHECK(!communicator_of(cut), length);
    }
    auto longer = encoded;
    longer.emplace_back();
    CHECK(!communicator_of(longer));
    // Every word in turn becomes a large number: only what is a number of calls, or a cause, is refused.
    int num_refused = 0;
    for (std::size_t at = 0; at + 8 <= encoded.size(); at += 4) {
        for (const std::uint32_t number : {0x40000000U, 0xffffffffU}) {
            auto wrong = encoded;
            put(wrong, at, number);
            if (!communicator_of(wrong)) {
                ++num_refused;
                continue;
            }
            Reason found(3); // of another size
            decode_reason(wrong, found.record, found.calls);
            CHECK(found.record.rank >= -1 && found.record.rank < 3, found.record.rank);
            CHECK(found.record.text.back() == '\0');
        }
    }
    CHECK(num_refused >= 6, num_refused);
}
