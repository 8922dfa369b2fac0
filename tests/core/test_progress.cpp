// What the program of a rank notes of itself: word and time belong together, and other hosts hear of it.

#include "check.h"
#include "control/control.h"
#include "world.h"

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

std::int64_t now() { return Clock::now().time_since_epoch() / 1ns; }

} // namespace

TEST(the_last_note_of_a_page_is_read_with_its_time) {
    const auto page = std::make_unique<ControlPage>();
    CHECK(page->progress.read().at == 0);
    for (const std::uint64_t word : {std::uint64_t{7}, ~std::uint64_t{0}, std::uint64_t{0}}) {
        const std::int64_t before = now();
        page->progress.write(word);
        const ProgressRecord::Note note = page->progress.read();
        CHECK(note.word == word && note.at >= before && note.at <= now(), note.word, note.at);
    }
    page->progress.write(1, std::chrono::nanoseconds::max()); // another host may tell any age
    CHECK(page->progress.read().word == 1 && page->progress.read().at <= now());
    page->renew();
    CHECK(page->progress.read().at == 0 && page->progress.read().word == 0);
}

/// The note of word n says that it was written at 10 n seconds: no word comes with the time of another note.
TEST(a_note_is_read_as_a_whole) {
    constexpr int num_notes = thread_sanitizer ? 20'000 : 200'000; // that are read
    const auto until = Clock::now() + 1s;
    const auto page = std::make_unique<ControlPage>();
    std::atomic<bool> is_over{false};
    const auto write = [&](std::int64_t word) {
        page->progress.write(static_cast<std::uint64_t>(word), std::chrono::nanoseconds(now()) - word * 10s);
    };
    write(1);
    std::thread owner([&] {
        for (std::int64_t word = 2; !is_over.load(); ++word) write(word);
    });
    std::string trouble;
    std::int64_t last = 0;
    for (int read = 0; read < num_notes && trouble.empty() && Clock::now() < until;) {
        const ProgressRecord::Note note = page->progress.read();
        if (std::chrono::nanoseconds(note.at) / 10s != static_cast<std::int64_t>(note.word)) trouble = "a mixed note";
        if (note.at < last) trouble = "an earlier note than before";
        if (note.at != last) ++read;
        last = note.at;
    }
    is_over.store(true);
    owner.join();
    CHECK(trouble.empty(), "found", trouble, "after", last);
}

TEST(members_on_other_hosts_hear_what_a_program_has_noted) {
    World world(3, {.hosts = {2, 1}});
    std::array<std::atomic<std::int64_t>, 3> noted{}; // when, in nanoseconds
    world.run([&](Rank &rank) {
        Communicator &communicator = rank.communicator();
        CHECK(std::isinf(communicator.progress()[1].second));
        for (const std::uint64_t round : {1U, 2U}) {
            world.meet();
            if (rank.rank == 1) continue; // it notes nothing
            noted[static_cast<std::size_t>(rank.rank)].store(now());
            communicator.note_progress(10 * round + static_cast<std::uint64_t>(rank.rank));
            const std::uint64_t other = 2 - static_cast<std::uint64_t>(rank.rank);
            const auto until = Clock::now() + patience;
            auto found = communicator.progress();
            for (; found[other].first != 10 * round + other; found = communicator.progress()) {
                CHECK(Clock::now() < until && !world.has_failed(), "rank", rank.rank, "found", found[other].first);
                sched_yield();
            }
            const double seconds = static_cast<double>(now() - noted[other].load()) * 1e-9;
            CHECK(found[other].second >= 0 && found[other].second <= seconds, found[other].second, "of", seconds);
            CHECK(found[1].first == 0 && std::isinf(found[1].second));
        }
        communicator.close(do_nothing);
    });
}
