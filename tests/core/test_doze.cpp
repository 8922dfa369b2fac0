// A thread that does work for others: when it must be woken, and what it finds by itself.

#include "check.h"
#include "streams/doze.h"
#include "world.h"

#include <condition_variable>
#include <mutex>
#include <thread>

using namespace hocket;
using namespace hocket::test;

namespace {

/// Work is a number. The thread subtracts one when it finds some.
struct Place {
    explicit Place(bool spin) {
        thread = std::jthread([this, spin] {
            std::unique_lock lock(mutex);
            for (;;) {
                const bool is_needed = doze.await(
                    lock, changed, spin, [this] { return is_over || num_left > 0; },
                    [this] { return is_over || is_told; });
                if (!is_needed) continue;
                if (is_over) return;
                --num_left;
                ++num_found;
                is_told = false;
                done.notify_all();
            }
        });
    }
    ~Place() {
        const std::scoped_lock lock(mutex);
        is_over = true;
        changed.notify_all();
    }

    void begin() {
        doze.note_begun();
        ++num_left;
        if (doze.is_asleep()) changed.notify_all();
    }
    /// Begins work, waits for it at once and so does it itself, unless the thread was faster.
    void begin_and_do() {
        const auto now = Clock::now();
        begin();
        doze.note_wait(now);
        --num_left;
        doze.note_done();
    }
    bool wait_for(std::unique_lock<std::mutex> &lock, const std::function<bool()> &condition) {
        const auto until = Clock::now() + patience;
        while (!condition() && Clock::now() < until) done.wait_for(lock, std::chrono::microseconds(100));
        return condition();
    }
    /// With the mutex locked: waits until the thread dozes.
    void lull(std::unique_lock<std::mutex> &lock) {
        CHECK(wait_for(lock, [this] {
            if (!doze.is_asleep()) return true;
            begin_and_do();
            return false;
        }));
    }

    std::mutex mutex; // guards all
    std::condition_variable changed, done;
    Doze doze;
    int num_left = 0, num_found = 0;
    bool is_told = false, is_over = false;
    std::jthread thread;
};

} // namespace

TEST(doze_begins_once_most_is_waited_for) {
    for (const bool spin : {false, true}) {
        Place place(spin);
        std::unique_lock lock(place.mutex);
        CHECK(place.doze.is_asleep() && place.doze.is_watchful());
        place.begin();
        CHECK(place.wait_for(lock, [&] { return place.num_found == 1; }));
        CHECK(place.doze.is_watchful());
        place.lull(lock);
        CHECK(!place.doze.is_watchful());
        const int num_found = place.num_found;
        for (int i = 0; i < 100; ++i) place.begin_and_do();
        CHECK(place.num_found == num_found && place.num_left == 0);
    }
}

TEST(doze_finds_what_is_left) {
    for (const bool spin : {false, true}) {
        Place place(spin);
        std::unique_lock lock(place.mutex);
        for (int round = 0; round < 5; ++round) {
            place.lull(lock);
            const int num_found = place.num_found;
            place.begin();
            CHECK(place.wait_for(lock, [&] { return place.num_found > num_found; }));
            CHECK(place.doze.is_watchful(), "who begins something does not wait for it any more");
        }
    }
}

TEST(doze_becomes_sleep_where_nothing_is_begun) {
    Place place(true);
    std::unique_lock lock(place.mutex);
    place.lull(lock);
    CHECK(place.wait_for(lock, [&] { return place.doze.is_asleep(); }));
    const int num_found = place.num_found;
    place.begin(); // wakes it; it dozes first, because another thread may wait
    CHECK(place.wait_for(lock, [&] { return place.num_found > num_found; }));
}

TEST(doze_ends_where_it_is_told) {
    Place place(false);
    std::unique_lock lock(place.mutex);
    for (int round = 0; round < 5; ++round) {
        place.lull(lock);
        const int num_found = place.num_found;
        place.begin();
        place.is_told = true;
        place.changed.notify_all();
        CHECK(place.wait_for(lock, [&] { return place.num_found > num_found; }));
        CHECK(!place.doze.is_watchful(), "nothing was left: somebody waits");
    }
}

TEST(doze_says_where_nothing_has_come_for_long) {
    std::mutex mutex;
    std::condition_variable changed;
    Doze doze;
    std::unique_lock lock(mutex);
    const auto never = [] { return false; };
    CHECK(!doze.await(lock, changed, false, never, never));
    CHECK(doze.is_asleep());
}
