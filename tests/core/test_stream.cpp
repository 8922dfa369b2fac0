// Streams: their order, marks and failures; and calls and messages in streams.

#include "check.h"
#include "processes.h"
#include "streams/stream.h"
#include "world.h"

#include <array>
#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

using namespace hocket;
using namespace hocket::test;

namespace {

class Doing final : public Task {
  public:
    explicit Doing(std::function<void()> body) : body_(std::move(body)) {}
    void run() override { body_(); }

  private:
    std::function<void()> body_;
};

void submit(Stream &stream, std::function<void()> body) { stream.submit(std::make_unique<Doing>(std::move(body))); }

/// Waits for all actions of the stream; returns its error.
std::string synchronize(Stream &stream) {
    CHECK(stream.record()->wait(patience));
    const std::exception_ptr failure = stream.take_failure();
    return failure ? text_of(failure) : "";
}

/// A gate that blocks a stream until it is opened.
class Gate {
  public:
    void wait() { CHECK(mark_.wait(patience)); }
    void open() { mark_.pass(); }

  private:
    Mark mark_;
};

constexpr std::size_t count = 5000;
using Numbers = std::vector<std::int64_t>;

Call sum_of(Rank &rank, Numbers &numbers) {
    auto *const bytes = reinterpret_cast<std::byte *>(numbers.data());
    return call_of(fixture("all_reduce", "ring", 2), rank.rank, Dtype::int64, Op::sum, count, bytes, bytes);
}

Message message_of(bool sends, int peer, Numbers &numbers) {
    return {.sends = sends,
            .peer = peer,
            .tag = 1,
            .dtype = Dtype::int64,
            .data = reinterpret_cast<std::byte *>(numbers.data()),
            .num_bytes = numbers.size() * 8};
}

bool all_are(const Numbers &numbers, std::int64_t value) {
    return std::ranges::all_of(numbers, [value](std::int64_t one) { return one == value; });
}

} // namespace

TEST(a_stream_does_all_in_order_whoever_submits) {
    Stream stream("test");
    constexpr int num_threads = 3, num_tasks = 2000;
    std::array<std::vector<int>, num_threads> done; // by the stream's thread only
    std::vector<std::thread> threads;
    for (int thread = 0; thread < num_threads; ++thread) {
        threads.emplace_back([&stream, &done, thread] {
            for (int i = 0; i < num_tasks; ++i) {
                submit(stream, [&done, thread, i] { done[static_cast<std::size_t>(thread)].push_back(i); });
                if (i % 100 == 0) CHECK(stream.record()->wait(patience));
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(synchronize(stream).empty() && stream.is_idle());
    for (const auto &of_one : done) {
        CHECK(of_one.size() == num_tasks);
        for (int i = 0; i < num_tasks; ++i) CHECK(of_one[static_cast<std::size_t>(i)] == i);
    }
}

TEST(each_event_is_written_down_once_when_the_stream_reaches_it) {
    const auto recorder = std::make_shared<Recorder>();
    Stream stream("test", [](const std::function<void()> &serve) { serve(); }, recorder);
    CHECK(recorder->start(false));
    constexpr std::uint64_t num_threads = 3, num_events = 1000;
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < num_threads; ++thread) {
        threads.emplace_back([&stream, thread] {
            for (std::uint64_t i = 1; i <= num_events; ++i) {
                if (i % 2 == 0) submit(stream, [] {}); // else it may be idle, and the event is there at once
                const auto mark = stream.record(false, thread * num_events + i);
                if (i % 50 == 0) CHECK(mark->wait(patience));
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(synchronize(stream).empty()); // of no event
    const Recorder::Taken taken = recorder->take();
    std::set<std::uint64_t> events;
    for (const Record &record : taken.records) {
        CHECK(taken.lanes[record.lane].kind == TraceLane::Kind::stream);
        if (record.what == Record::What::instant) CHECK(events.insert(record.sequence).second);
    }
    CHECK(taken.lanes.size() == 1 && events.size() == num_threads * num_events);
    CHECK(*events.begin() == 1);
}

TEST(streams_hand_each_other_a_number_by_marks) {
    constexpr int num_streams = 4, num_rounds = 500;
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < num_streams; ++i) streams.push_back(std::make_unique<Stream>("test"));
    int number = 0; // only marks order its accesses
    std::shared_ptr<Mark> last;
    for (int i = 0; i < num_streams * num_rounds; ++i) {
        Stream &stream = *streams[static_cast<std::size_t>(i % num_streams)];
        if (last) stream.wait(last);
        submit(stream, [&number, i] {
            CHECK(number == i);
            ++number;
        });
        last = stream.record();
    }
    CHECK(last->wait(patience) && !last->failure());
    CHECK(number == num_streams * num_rounds);
}

TEST(a_mark_is_awaited_by_many_and_for_a_time) {
    Mark mark;
    std::int64_t written = 0;
    std::vector<std::thread> threads;
    std::atomic<int> num_seen{0};
    CHECK(!mark.wait(std::chrono::milliseconds(1)) && !mark.is_passed());
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            if (mark.wait(patience) && written == 5) ++num_seen;
        });
    }
    written = 5;
    mark.pass();
    for (std::thread &thread : threads) thread.join();
    CHECK(num_seen == 4 && mark.is_passed() && !mark.failure());
}

TEST(a_failure_skips_what_follows_and_spreads_by_marks_until_it_is_taken) {
    Stream first("first"), second("second");
    int num_done = 0;
    submit(first, [] { throw std::runtime_error("mine"); });
    submit(first, [&num_done] { ++num_done; });
    second.wait(first.record());
    submit(second, [&num_done] { ++num_done; });
    for (Stream *stream : {&second, &first}) {
        CHECK(synchronize(*stream) == "mine" && num_done == 0);
        submit(*stream, [&num_done] { ++num_done; });
        CHECK(synchronize(*stream).empty() && num_done == 1);
        num_done = 0;
    }
}

TEST(who_has_waited_for_a_stream_finds_it_idle_and_without_the_failure_that_was_taken) {
    Stream stream("test");
    for (int i = 0; i < 2000; ++i) {
        if (i % 2 == 0) submit(stream, [] { throw std::runtime_error("mine"); });
        submit(stream, [] {});
        const auto first = stream.record(true), second = stream.record(true);
        CHECK(second->wait(patience) && first->is_passed() && first->time() <= second->time());
        CHECK(stream.is_idle() && (stream.take_failure() != nullptr) == (i % 2 == 0));
    }
}

TEST(what_a_stream_was_told_is_done_when_it_is_gone) {
    Gate gate;
    std::atomic<bool> done{false};
    std::shared_ptr<Mark> last;
    {
        Stream stream("test");
        submit(stream, [&gate] { gate.wait(); });
        submit(stream, [&done] { done = true; });
        last = stream.record();
    }
    gate.open();
    CHECK(last->wait(patience) && done);
}

TEST(a_stream_that_waits_for_itself_is_told_so) {
    Stream stream("test");
    submit(stream, [&stream] { stream.record()->wait(patience); });
    CHECK(synchronize(stream).find("told that stream to wait for itself") != std::string::npos);
}

TEST(before_a_fork_threads_that_begin_are_awaited) {
    std::atomic<bool> is_begun{false};
    Stream stream("test", [&is_begun](const std::function<void()> &serve) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // like a busy interpreter
        is_begun = true;
        serve();
    });
    submit(stream, [] {});
    Stream::await_started();
    CHECK(is_begun);
    CHECK(synchronize(stream).empty());
}

TEST(a_call_behind_one_that_comes_after_the_stream_that_makes_it_is_refused) {
    for (bool by_message : {false, true}) {
        World world(2);
        world.run([by_message](Rank &rank) {
            Communicator &communicator = rank.communicator();
            Numbers x(count);
            const Message message = message_of(rank.rank == 0, 1 - rank.rank, x);
            const auto run = [&] {
                if (by_message) communicator.messages().run({&message, 1}, patience, do_nothing);
                else communicator.run(sum_of(rank, x), do_nothing);
            };
            if (rank.rank == 1) {
                const auto failure = failure_of(run);
                CHECK(failure && failure->text.ends_with("wait after the function has returned"));
                return;
            }
            Stream stream("test");
            Gate gate;
            submit(stream, [&] {
                gate.wait();
                run();
            });
            const auto end = by_message
                                 ? communicator.messages().begin({&message, 1}, patience, stream.record()).front()->end
                                 : communicator.submit(sum_of(rank, x), stream.record())->shared_end();
            gate.open();
            CHECK(end->wait(patience) &&
                  text_of(end->failure()).find("told that stream to wait for itself") != std::string::npos);
            CHECK(synchronize(stream).find("told that stream to wait for itself") != std::string::npos);
        });
    }
}

TEST(calls_and_messages_read_what_streams_write_and_streams_what_they_write) {
    World world(2);
    world.run([](Rank &rank) {
        Stream compute("compute"), copy("copy");
        Numbers x(count), sent(count), received(count);
        Communicator &communicator = rank.communicator();
        for (int round = 0; round < 20; ++round) {
            submit(compute, [&x, round] { x.assign(count, round); });
            const auto work = communicator.submit(sum_of(rank, x), compute.record());
            copy.wait(work->shared_end());
            submit(copy, [&x, &sent] {
                for (std::size_t i = 0; i < count; ++i) sent[i] = x[i] + 1;
            });
            const std::array messages{message_of(true, 1 - rank.rank, sent),
                                      message_of(false, 1 - rank.rank, received)};
            const auto begun = communicator.messages().begin(messages, patience, copy.record());
            for (const auto &operation : begun) compute.wait(operation->end);
            submit(compute, [&received, round] { CHECK(all_are(received, 2 * round + 1)); });
        }
        CHECK(synchronize(compute).empty() && synchronize(copy).empty());
    });
}

TEST(messages_begin_in_the_order_of_their_launch) {
    World world(2);
    world.run([](Rank &rank) {
        constexpr int num_messages = 12;
        std::vector<Numbers> data(num_messages, Numbers(3));
        PointToPoint &messages = rank.communicator().messages();
        if (rank.rank == 0) {
            Stream streams[] = {Stream("a"), Stream("b")};
            Gate gate;
            submit(streams[0], [&gate] { gate.wait(); });
            Operations begun;
            for (std::size_t i = 0; i < num_messages; ++i) {
                data[i].assign(3, static_cast<std::int64_t>(i));
                const Message message = message_of(true, 1, data[i]);
                const auto after = i % 3 == 2 ? nullptr : streams[i % 3].record();
                begun.push_back(messages.begin({&message, 1}, patience, after).front());
                CHECK(!begun.back()->end->is_passed());
            }
            gate.open();
            Numbers last(3, num_messages);
            const Message message = message_of(true, 1, last);
            messages.run({&message, 1}, patience, do_nothing);
            for (const auto &operation : begun) CHECK(operation->end->wait(patience) && !operation->end->failure());
        } else {
            for (int i = 0; i <= num_messages; ++i) {
                Numbers received(3);
                const Message message = message_of(false, 0, received);
                messages.run({&message, 1}, patience, do_nothing);
                CHECK(all_are(received, i), "message", i, "was", received.front());
            }
        }
    });
}

TEST(none_of_no_messages_come_after_a_stream) {
    World world(1);
    CHECK(world[0].communicator().messages().begin({}, patience, std::make_shared<Mark>()).empty());
}

TEST(messages_that_no_stream_can_begin_any_more_fail) {
    const Processes one(1, [](Rank &rank, Board &) { // because it ends all streams of a process
        Stream::end_all(false, do_nothing);
        Numbers x(count);
        const Message message = message_of(true, 0, x);
        PointToPoint &messages = rank.communicator().messages();
        const auto sent = messages.begin({&message, 1}, patience, std::make_shared<Mark>()).front();
        CHECK(sent->end->is_passed() && sent->failure &&
              sent->failure->text == "a stream was used while the process ends");
        rank.communicator().close(do_nothing); // otherwise it would wait for them
    });
}

TEST(an_abort_ends_what_waits_for_a_stream_that_hangs) {
    World world(2);
    world.run([&world](Rank &rank) {
        Communicator &communicator = rank.communicator();
        Stream hung("hung"), waiting("waiting");
        Gate gate;
        Numbers x(count), y(count);
        if (rank.rank == 0) {
            submit(hung, [&gate] { gate.wait(); });
            const auto work = communicator.submit(sum_of(rank, x), hung.record());
            const Message message = message_of(true, 1, y);
            const auto sent = communicator.messages().begin({&message, 1}, patience, hung.record()).front();
            waiting.wait(work->shared_end());
            world.meet();
            CHECK(work->end().wait(patience) && text_of(work->end().failure()) == "enough");
            CHECK(sent->end->wait(patience) && text_of(sent->end->failure()) == "enough");
            CHECK(synchronize(waiting) == "enough" && !hung.is_idle());
            gate.open();
            CHECK(synchronize(hung).empty());
        } else {
            world.meet();
            communicator.abort("enough");
        }
        failure_of([&communicator] { communicator.close(do_nothing); });
    });
}

TEST(a_rank_whose_stream_has_failed_gives_up_and_all_hear_of_it) {
    for (bool by_message : {false, true}) {
        World world(2);
        world.run([by_message](Rank &rank) {
            Communicator &communicator = rank.communicator();
            Numbers x(count);
            const auto run = [&](bool sends) {
                const Message message = message_of(sends, 1 - rank.rank, x);
                if (by_message) communicator.messages().run({&message, 1}, patience, do_nothing);
                else communicator.run(sum_of(rank, x), do_nothing);
            };
            if (rank.rank == 0) {
                Stream stream("test");
                submit(stream, [] { throw std::runtime_error("mine"); });
                const Message message = message_of(true, 1, x);
                const auto end =
                    by_message ? communicator.messages().begin({&message, 1}, patience, stream.record()).front()->end
                               : communicator.submit(sum_of(rank, x), stream.record())->shared_end();
                CHECK(end->wait(patience) && text_of(end->failure()) == "mine");
                CHECK(synchronize(stream) == "mine");
            }
            const auto failure = failure_of([&run] { run(false); });
            CHECK(failure && failure->cause == Cause::aborted && failure->rank == 0);
            CHECK(failure->text.starts_with("an operation before its ") && failure->text.ends_with(" has failed: mine"),
                  failure->text);
        });
    }
}
