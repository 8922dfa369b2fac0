// What members know of each other beside all channels: their pages may lie anywhere, as here, where there is no
// transport.

#include "control/members.h"

#include "check.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <string>
#include <thread>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t none = AbortRecord::none, ready = AbortRecord::ready, passed = AbortRecord::passed,
                        writing = AbortRecord::writing;

/// The pages of all members, and the view that each has of them, in which it hears of deaths at a time of its own.
struct Roster {
    struct Place {
        ControlPage page{};
        std::vector<Fingerprint> aborted_calls;
        std::deque<Presence> presences; // of all, as this one sees them
    };

    explicit Roster(int size) : places(static_cast<std::size_t>(size)) {
        for (Place &place : places) {
            place.aborted_calls.resize(places.size());
            place.presences.resize(places.size());
        }
        open();
    }

    /// A communicator on these pages.
    void open() {
        views.clear();
        for (int member = 0; member < static_cast<int>(places.size()); ++member) {
            std::vector<Member> members;
            for (Place &one : places) {
                const std::size_t at = members.size();
                members.push_back({10 * (static_cast<int>(at) + 1), true,
                                   places[static_cast<std::size_t>(member)].presences[at], one.page,
                                   one.aborted_calls});
            }
            views.emplace_back(std::move(members), member);
        }
    }

    ControlPage &operator[](int member) { return places[static_cast<std::size_t>(member)].page; }
    const Members &of(int member) const { return views[static_cast<std::size_t>(member)]; }
    /// `viewer` hears that `member` has died, or all do.
    void kill(int member, int viewer = -1) {
        for (int one = 0; one < static_cast<int>(places.size()); ++one) {
            if (viewer >= 0 && one != viewer) continue;
            places[static_cast<std::size_t>(one)].presences[static_cast<std::size_t>(member)].state = Presence::dead;
        }
    }

    std::vector<std::uint32_t> states() const {
        std::vector<std::uint32_t> states;
        for (const Place &one : places) states.push_back(one.page.abort.state.load());
        return states;
    }
    /// What all are told of, which is the same.
    std::string reason() const {
        const auto first = of(0).recorded_failure();
        for (const Members &view : views) {
            const auto own = view.recorded_failure();
            CHECK(own.has_value() == first.has_value() && (!own || own->text == first->text), view.rank());
        }
        return first ? first->text : "";
    }

    std::deque<Place> places;
    std::deque<Members> views;
};

Failure reason_of(int member) {
    Failure failure;
    failure.cause = Cause::aborted;
    failure.rank = member;
    failure.text = "reason of " + std::to_string(member);
    failure.missing = {1, 3};
    failure.calls[member].sequence = 8;
    return failure;
}

} // namespace

TEST(members_answer_from_their_pages) {
    Roster pages(3);
    const Fingerprint call{.sequence = 7, .count = 5};
    pages[1].note_call(call, nullptr, false);
    pages[1].last_call.store(7);
    const Members &members = pages.of(2);
    CHECK(&members.own() == &pages[2] && members.name_of(1) == "rank 20");
    CHECK(members.call_of(1, 7) == call && !members.call_of(1, 6) && !members.call_of(0, 7));
    CHECK(members.last_call(1) == 7 && members.behind(7) == (std::vector<int>{0, 2}));
    pages[0].digest_at(3 * ControlPage::lead).store(9);
    CHECK(members.digest_at(0, 3 * ControlPage::lead) == 9 && members.digest_at(0, 4 * ControlPage::lead) == 0);
    pages[0].give_up_at(6);
    CHECK(members.has_given_up(6) && members.has_given_up(7) && !members.has_given_up(5));
    pages.kill(1);
    CHECK(members.is_dead(1) && members.find_death(7)->rank == 1);
    pages[1].state.store(ControlPage::closing);
    CHECK(members.has_closed(1) && !members.find_death(7), "it had closed before");
    members.alarm_all();
    for (int member : {0, 1, 2}) CHECK(pages[member].alarm.load() == 1, member);
}

TEST(all_have_left_when_each_has_closed_died_or_gone_to_another_communicator) {
    Roster pages(3);
    const auto have_all_left = pages.of(0).have_all_left();
    pages[0].renew();
    pages[1].state.store(ControlPage::closing);
    pages.kill(2);
    CHECK(!have_all_left());
    pages[1].state.store(ControlPage::closed);
    CHECK(have_all_left());
    pages.open();
    CHECK(have_all_left() && !pages.of(0).have_all_left()());
    CHECK(pages.of(0).generation() == 1 && pages.of(1).generation() == 1);
}

TEST(readers_are_awaited_where_they_may_use_what_was_lent) {
    Roster pages(4);
    for (int member = 0; member < 4; ++member) pages[member].in_call.store(member == 3 ? 4 : 5);
    pages.kill(2);
    std::vector<int> asked;
    bool withdrawn = false;
    pages.of(0).await_readers(
        &ControlPage::in_call, 5, [&] { withdrawn = true; },
        [&](int member) {
            CHECK(withdrawn && pages[0].in_call.load() == 0 && pages[1].alarm.load() == 1);
            asked.push_back(member);
            return member != 1 || asked.size() < 4;
        });
    CHECK(asked == (std::vector<int>{0, 1, 1, 1, 2, 3}), "one is dead, and one in an earlier call", asked.size());
}

// Why it failed -------------------------------------------------------------------------------------------------------

TEST(a_reason_is_at_the_lowest_member_that_lives) {
    for (int num_dead : {0, 1, 3}) {
        Roster pages(5);
        for (int member = 0; member < num_dead; ++member) pages.kill(member);
        CHECK(pages.reason().empty());
        pages.of(4).record(reason_of(4));
        std::vector<std::uint32_t> expected(5, none);
        std::fill_n(expected.begin(), num_dead, passed);
        expected[static_cast<std::size_t>(num_dead)] = ready;
        CHECK(pages.states() == expected, num_dead);
        pages.kill(num_dead);
        pages.of(num_dead + 1).record(reason_of(num_dead + 1));
        CHECK(pages.states() == expected && pages.reason() == "reason of 4", "the first one, wherever that lies");
        const Failure found = *pages.of(0).recorded_failure();
        CHECK(found.rank == 4 && found.missing == (std::vector{1, 3}) && found.calls == reason_of(4).calls);
        for (int member = 0; member < 5; ++member) CHECK(pages[member].alarm.load() == 1, member);
    }
}

TEST(a_page_of_another_communicator_has_no_reason) {
    Roster pages(2);
    pages.kill(0);
    pages.of(1).record(reason_of(1));
    CHECK(pages.states() == (std::vector{passed, ready}));
    for (int member : {0, 1}) pages[member].renew();
    CHECK(pages.states() == (std::vector{none, none}));
}

TEST(recorders_that_hear_of_a_death_at_different_times_write_one_reason) {
    Roster pages(4);
    pages.kill(0, 1);
    pages.of(1).record(reason_of(1));
    pages.of(2).record(reason_of(2)); // takes member 0 for alive
    CHECK(pages.states() == (std::vector{passed, ready, none, none}) && pages.reason() == "reason of 1");

    Roster later(4); // member 2 has begun to write to member 0's page before that died
    later[0].abort.state.store(writing + 2);
    later.kill(0);
    later.of(1).record(reason_of(1)); // in vain, as it had to wait for long
    CHECK(later.states() == (std::vector{writing + 2, none, none, none}) && later.reason().empty());
    later[0].abort.state.store(ready);
    later.of(3).record(reason_of(3));
    CHECK(later.states() == (std::vector{ready, none, none, none}));
}

TEST(what_a_dying_writer_has_left_unfinished_is_written_by_another) {
    for (int writer : {0, 1}) { // to its own page, or to another one's, which may die, too
        for (bool owner_dies : {false, true}) {
            Roster pages(4);
            pages[0].abort.state.store(writing + static_cast<std::uint32_t>(writer));
            std::ranges::fill(pages[0].abort.text, 'x');
            pages.kill(writer);
            if (owner_dies) pages.kill(0);
            CHECK(pages.reason().empty());
            pages.of(3).record(reason_of(3));
            CHECK(pages.states() == (std::vector{ready, none, none, none}) && pages.reason() == "reason of 3", writer);
        }
    }
}

TEST(recorders_race_with_deaths) {
    constexpr int size = 6, rounds = thread_sanitizer ? 100 : 300;
    for (int round = 0; round < rounds; ++round) {
        Roster pages(size);
        std::vector<std::thread> threads;
        std::atomic<int> num_ready{0};
        const auto meet = [&] {
            for (num_ready.fetch_add(1); num_ready.load() < size - 2;) std::this_thread::yield();
        };
        for (int member = 2; member < size; ++member) {
            threads.emplace_back([&, member] {
                meet();
                for (int dead : {round % 2, 1 - round % 2}) {
                    for (int turn = 0; turn < (round + member) % 4; ++turn) std::this_thread::yield();
                    pages.kill(dead, member); // each hears of it by itself
                    if ((round + member) % 3 == dead) pages.of(member).record(reason_of(member));
                }
                pages.of(member).record(reason_of(member));
            });
        }
        for (auto &thread : threads) thread.join();
        CHECK(!pages.reason().empty(), round);
        CHECK(std::ranges::count(pages.states(), ready) == 1, round);
    }
}

// Members on other hosts ----------------------------------------------------------------------------------------------

namespace {

/// What member 0, the second rank of its host, knows of member 1, which is elsewhere. Its leader is no member.
struct Split {
    ControlPage own{}, mirror{};
    std::deque<Presence> presences{3}; // of the two members, and of the leader
    std::vector<Fingerprint> calls = std::vector<Fingerprint>(2);
    Members members{{{1, true, presences[0], own, calls}, {2, false, presences[1], mirror, calls, 4, "host 1"}},
                    0,
                    Spanning{.name = 9, .bell = -1, .leader = presences[2]}};

    /// The mirror shows this use of the page.
    void show(std::uint32_t generation) { mirror.generation.store(generation); }
};

} // namespace

TEST(a_mirror_counts_only_while_it_shows_this_communicator) {
    for (const std::uint32_t before : {3U, 0U, 0x80000005U}) { // numbers come round
        Split split;
        split.mirror.last_call.store(8);
        split.mirror.state.store(ControlPage::closed);
        split.show(before);
        CHECK(split.members.last_call(1) == 0 && !split.members.has_closed(1) && !split.members.have_all_left()());
        split.show(4);
        CHECK(split.members.last_call(1) == 8 && split.members.has_closed(1));
        split.mirror.state.store(ControlPage::open);
        split.show(5);
        CHECK(split.members.last_call(1) == 0 && split.members.has_closed(1), "it has gone on");
    }
}

TEST(members_elsewhere_are_cut_off_once_the_leader_has_died) {
    Split split;
    split.show(4);
    split.own.state.store(ControlPage::closed);
    const auto have_all_left = split.members.have_all_left();
    CHECK(!split.members.find_death(3) && !have_all_left());
    split.presences[2].state = Presence::dead;
    const auto death = split.members.find_death(3);
    CHECK(death && death->rank == 1 && death->text == "cut off" && death->sequence == 3);
    CHECK(split.members.is_dead(1) && !split.members.is_dead(0) && have_all_left());
    const auto begun = Clock::now();
    CHECK(split.members.settle(reason_of(0)).text == "reason of 0");
    CHECK(Clock::now() - begun < std::chrono::seconds(1), "nobody is left who decides");
    split.presences[1].state = Presence::dead; // so much was still told
    CHECK(split.members.find_death(3)->text.empty());
}

TEST(a_decision_that_a_dying_leader_has_left_unfinished_is_written_by_the_rank) {
    Split split;
    split.own.abort.state.store(AbortRecord::agent);
    CHECK(!split.members.recorded_failure());
    split.presences[2].state = Presence::dead;
    CHECK(split.members.settle(reason_of(0)).text == "reason of 0");
    CHECK(split.own.abort.state.load() == ready);
}

TEST(what_other_hosts_tell_of_senders_is_not_believed) {
    Split split;
    for (const std::int32_t root : {-1, 2, 1'000'000, std::numeric_limits<std::int32_t>::min()}) {
        Failure failure(Cause::mismatch);
        failure.calls[0].root = root;
        failure.calls[1].root = 1;
        split.members.address(failure);
        CHECK(failure.calls.at(1).root == root && failure.calls.at(2).root == 2);
    }
}
