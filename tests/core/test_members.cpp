// What members know of each other beside all channels: their pages may lie anywhere, as here, where there is no
// transport.

#include "control/members.h"

#include "check.h"
#include "world.h"

#include <deque>

using namespace hocket;
using namespace hocket::test;

namespace {

/// The pages of all members, and the view that each has of them.
struct Roster {
    struct Place {
        ControlPage page{};
        Presence presence{};
        std::vector<Fingerprint> aborted_calls;
    };

    explicit Roster(int size) : places(static_cast<std::size_t>(size)) {
        for (Place &place : places) place.aborted_calls.resize(places.size());
        open();
    }

    /// A communicator on these pages.
    void open() {
        views.clear();
        for (int member = 0; member < static_cast<int>(places.size()); ++member) {
            std::vector<Member> members;
            for (Place &one : places) {
                const int rank = 10 * (static_cast<int>(members.size()) + 1);
                members.push_back({rank, true, one.presence, one.page, one.aborted_calls});
            }
            views.emplace_back(std::move(members), member);
        }
    }

    ControlPage &operator[](int member) { return places[static_cast<std::size_t>(member)].page; }
    const Members &of(int member) const { return views[static_cast<std::size_t>(member)]; }
    void kill(int member) { places[static_cast<std::size_t>(member)].presence.state.store(Presence::dead); }

    std::deque<Place> places;
    std::deque<Members> views;
};

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
