// Where the program makes its calls, as the control page says it: only what is still known, and never of another call.

#include "check.h"
#include "control/control.h"

#include <memory>

using namespace hocket;

namespace {

void note(ControlPage &page, std::uint64_t sequence, const Site &site, bool is_repeated) {
    Fingerprint call;
    call.sequence = sequence;
    page.note_call(call, &site, is_repeated);
}

} // namespace

TEST(sites_of_calls_are_known_until_others_take_their_place) {
    const auto page = std::make_unique<ControlPage>();
    const Site first{1, "program.py:10"}, second{2, "program.py:20"};
    note(*page, 1, first, false);
    note(*page, 2, first, true);
    Fingerprint call;
    call.sequence = 3;
    call.kind = 13;
    call.dtype = 17;
    page->note_call(call, nullptr, false);
    note(*page, 4, second, false);
    CHECK(page->call_of(3) == call);
    CHECK(page->site_of(1) == "program.py:10", page->site_of(1));
    CHECK(page->site_of(2) == "program.py:10, repeated", page->site_of(2));
    CHECK(page->site_of(3).empty() && page->site_of(5).empty());
    CHECK(page->site_of(4) == "program.py:20", page->site_of(4));

    note(*page, 1 + ControlPage::history, second, true);
    CHECK(page->site_of(1).empty(), page->site_of(1));
    note(*page, 5, {1 + ControlPage::num_sites, "program.py:30"}, false);
    CHECK(page->site_of(2).empty(), page->site_of(2));
    note(*page, 6, first, true); // its line comes back
    CHECK(page->site_of(6) == "program.py:10, repeated" && page->site_of(5).empty());

    page->renew();
    for (std::uint64_t call = 0; call <= 2 * ControlPage::history; ++call) CHECK(page->site_of(call).empty(), call);
}

TEST(sites_keep_the_end_of_a_long_name) {
    const auto page = std::make_unique<ControlPage>();
    const std::string longest = std::string(200, 'x') + "/program.py:12345";
    note(*page, 7, {3, longest}, false);
    const std::string kept = page->site_of(7);
    CHECK(kept.size() == 120 && longest.ends_with(kept), kept);
}
