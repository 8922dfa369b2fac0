// The recorder: no record is lost or torn while threads write and traces begin and end; and the records of calls.

#include "check.h"
#include "executor/executor.h"
#include "trace/trace.h"
#include "transport/byte_stream.h"
#include "world.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

using namespace hocket;
using namespace hocket::test;

namespace {

using Piece = std::tuple<std::uint64_t, int, int, std::int32_t, std::int32_t, std::uint64_t>;

std::vector<Record> of_kind(const Recorder::Taken &taken, Record::What what) {
    std::vector<Record> found;
    for (const Record &record : taken.records) {
        if (record.what == what) found.push_back(record);
    }
    return found;
}

} // namespace

TEST(records_of_many_threads_are_all_there_and_whole) {
    constexpr int num_threads = 4, num_records = 20'000; // more than one chunk
    Recorder recorder;
    CHECK(recorder.start(false));
    std::vector<std::thread> threads;
    for (int number = 0; number < num_threads; ++number) {
        threads.emplace_back([&recorder] {
            const std::uint32_t lane = recorder.lane_of_this_thread();
            for (std::uint64_t i = 1; i <= num_records; ++i)
                recorder.add({.lane = lane, .sequence = i, .input = i * lane, .step = static_cast<int>(i)});
        });
    }
    for (std::thread &thread : threads) thread.join();
    const auto taken = recorder.take();
    CHECK(taken.records.size() == num_threads * num_records && !taken.overflowed);
    CHECK(taken.lanes.size() == num_threads);
    std::map<std::uint32_t, std::uint64_t> last;
    for (const Record &record : taken.records) {
        CHECK(record.sequence == ++last[record.lane]);
        CHECK(record.input == record.sequence * record.lane);
        CHECK(record.step == static_cast<int>(record.sequence));
    }
}

TEST(traces_begin_and_end_while_threads_write) {
    Recorder recorder;
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 1; !done.load(); ++i) {
                if (recorder.is_on()) recorder.add({.sequence = i, .input = i});
            }
        });
    }
    std::size_t num_records = 0;
    for (int round = 0; round < 60 || num_records == 0; ++round) {
        CHECK(recorder.start(round % 2 == 0) && !recorder.start(false));
        std::this_thread::sleep_for(std::chrono::microseconds(200)); // for some records to come, none of which matters
        const auto taken = recorder.take();
        num_records += taken.records.size();
        for (const Record &record : taken.records) CHECK(record.sequence != 0 && record.input == record.sequence);
    }
    done = true;
    for (std::thread &thread : threads) thread.join();
}

TEST(a_trace_ends_where_there_is_no_more_room) {
    constexpr std::size_t capacity = 100;
    Recorder recorder(capacity);
    for (int round = 0; round < 2; ++round) {
        CHECK(recorder.start(false));
        for (std::uint64_t i = 0; i < capacity; ++i) recorder.add({.sequence = i});
        CHECK(recorder.is_on());
        recorder.add({});
        CHECK(!recorder.is_on());
        const auto taken = recorder.take();
        CHECK(taken.records.size() == capacity && taken.overflowed);
    }
    CHECK(recorder.start(false));
    CHECK(!recorder.take().overflowed);
}

TEST(times_are_those_of_the_systems_clock) {
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return std::uint64_t(time.tv_sec) * 1'000'000'000 + std::uint64_t(time.tv_nsec);
    };
    Recorder recorder;
    recorder.start(false);
    std::vector<std::uint64_t> before, after;
    for (int i = 0; i < 100; ++i) {
        before.push_back(now());
        const std::uint64_t begin = ticks();
        recorder.span(0, 0, begin, ticks());
        after.push_back(now());
    }
    const auto taken = recorder.take();
    constexpr std::uint64_t error = 1'000; // nanoseconds
    for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK(taken.records[i].begin + error >= before[i] && taken.records[i].end <= after[i] + error);
        CHECK(taken.records[i].begin <= taken.records[i].end);
    }
}

TEST(what_one_rank_sends_in_a_step_another_receives) {
    const Fixture &plans = fixture("all_reduce", "ring", 3);
    World world(3);
    std::vector<Recorder::Taken> taken(3);
    world.run([&](Rank &rank) {
        Recorder &recorder = *rank.context->recorder();
        recorder.start(true);
        for (int i = 0; i < 4; ++i) {
            std::vector<std::int64_t> input(100'000, 1), output(100'000);
            rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, input.size(),
                                            reinterpret_cast<const std::byte *>(input.data()),
                                            reinterpret_cast<std::byte *>(output.data())),
                                    do_nothing);
        }
        taken[static_cast<std::size_t>(rank.rank)] = recorder.take();
    });
    std::multiset<Piece> sent, received;
    for (int rank = 0; rank < 3; ++rank) {
        const auto &own = taken[static_cast<std::size_t>(rank)];
        const auto calls = of_kind(own, Record::What::collective);
        CHECK(calls.size() == 4);
        for (std::size_t i = 0; i < calls.size(); ++i) {
            CHECK(calls[i].sequence == i + 1 && calls[i].input == 100'000 && calls[i].dtype == Dtype::int64);
            CHECK(own.names[calls[i].name] == plans.plans[static_cast<std::size_t>(rank)]->label());
            CHECK(own.lanes[calls[i].lane].ranks == std::vector<int>({0, 1, 2}));
            CHECK(own.lanes[calls[i].lane].id ==
                  taken[0].lanes[of_kind(taken[0], Record::What::collective)[0].lane].id);
        }
        for (const Record &move : of_kind(own, Record::What::move)) {
            const Record &call = calls[move.sequence - 1];
            CHECK(move.begin >= call.begin && move.end <= call.end && move.begin <= move.end);
            if (move.peer < 0 || !(move.flags & Record::completes)) continue;
            const bool sends = (move.flags & Record::sends) != 0;
            const int from = sends ? rank : move.peer, to = sends ? move.peer : rank;
            (sends ? sent : received).emplace(move.sequence, from, to, move.step, move.order, move.output);
        }
    }
    CHECK(!sent.empty() && sent == received);
    CHECK(std::set<Piece>(sent.begin(), sent.end()).size() == sent.size()); // so each arrow has one start and one end
}

/// Byte by byte, so that each piece moves in many parts, and only the last one completes it.
TEST(parts_of_a_piece_add_up_to_it_and_it_ends_once) {
    constexpr std::size_t count = 6; // of int64: chunks of 24 bytes
    const Fixture &plans = fixture("all_reduce", "ring", 2);
    const auto streams = std::make_shared<ByteStreams>(2);
    std::array<Recorder, 2> recorders;
    std::array<std::vector<std::int64_t>, 2> inputs, outputs;
    std::array<std::optional<ByteStreamTransport>, 2> transports;
    std::array<std::optional<Executor>, 2> executors;
    for (std::size_t rank = 0; rank < 2; ++rank) {
        inputs[rank].assign(count, 1);
        outputs[rank].resize(count);
        transports[rank].emplace(streams, static_cast<int>(rank));
        executors[rank].emplace(*plans.plans[rank], *transports[rank]);
        recorders[rank].start(true);
        executors[rank]->record(&recorders[rank]);
        executors[rank]->start({.dtype = Dtype::int64,
                                .block = count,
                                .input = reinterpret_cast<const std::byte *>(inputs[rank].data()),
                                .output = reinterpret_cast<std::byte *>(outputs[rank].data()),
                                .tag = 1});
    }
    for (bool first = false, second = false; !first || !second;) {
        first = first || executors[0]->advance();
        second = second || executors[1]->advance();
    }
    for (Recorder &recorder : recorders) {
        std::map<std::int32_t, std::size_t> num_bytes, num_ends, num_parts; // of each instruction
        for (const Record &move : of_kind(recorder.take(), Record::What::move)) {
            CHECK(move.output == 0, "all in one piece");
            num_bytes[move.instruction] += move.input;
            num_ends[move.instruction] += (move.flags & Record::completes) != 0;
            if (move.peer >= 0) ++num_parts[move.instruction];
        }
        CHECK(num_parts.size() == 4, num_parts.size());
        for (const auto &[instruction, bytes] : num_bytes) {
            CHECK(bytes == count / 2 * sizeof(std::int64_t) && num_ends[instruction] == 1, instruction, bytes);
        }
        for (const auto &[instruction, parts] : num_parts) CHECK(parts > 1, instruction);
    }
}

TEST(messages_have_the_same_number_at_both_ends) {
    World world(2);
    std::vector<Recorder::Taken> taken(2);
    world.run([&](Rank &rank) {
        Recorder &recorder = *rank.context->recorder();
        PointToPoint &messages = rank.communicator().messages();
        constexpr std::size_t announced = eager_bytes + 1;
        std::vector<std::byte> data(announced);
        const auto exchange = [&](std::uint64_t tag, std::size_t num_bytes) {
            const Message message{.sends = rank.rank == 0,
                                  .peer = 1 - rank.rank,
                                  .tag = tag,
                                  .data = data.data(),
                                  .num_bytes = num_bytes};
            messages.run({&message, 1}, patience, do_nothing);
        };
        exchange(1, 8); // before the trace: it counts
        recorder.start(false);
        if (rank.rank == 0) {
            for (std::uint64_t tag : {5U, 7U, 6U}) exchange(tag, tag == 6 ? announced : 8);
        } else {
            for (std::uint64_t tag : {7U, 5U, 6U}) exchange(tag, tag == 6 ? announced : 8);
        }
        taken[static_cast<std::size_t>(rank.rank)] = recorder.take();
    });
    std::vector<std::map<std::uint64_t, std::uint64_t>> numbers(2); // by tag
    for (std::size_t rank = 0; rank < 2; ++rank) {
        for (const Record &record : of_kind(taken[rank], Record::What::message)) {
            CHECK(((record.flags & Record::sends) != 0) == (rank == 0) && record.peer == 1 - static_cast<int>(rank));
            numbers[rank][record.output] = record.sequence;
        }
    }
    CHECK((numbers[0] == std::map<std::uint64_t, std::uint64_t>{{5, 2}, {7, 3}, {6, 4}}));
    CHECK(numbers[0] == numbers[1]);
}
