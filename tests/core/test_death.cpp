// Ranks as processes, some of which are killed. ThreadSanitizer sees one process only, and refuses threads after a
// fork.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr int max_ranks = 8;
constexpr std::size_t arena_bytes = std::size_t{128} << 20;

/// What the processes tell each other and the test.
struct Board {
    std::array<std::atomic<int>, max_ranks> process, descriptor; // of each rank's arena
    std::array<std::atomic<std::uint64_t>, max_ranks> presence,
        endpoint;                                               // offsets; `endpoint` is 0 until all are there
    std::array<std::atomic<std::int64_t>, max_ranks> killed_at; // steady clock; 0: not killed
    std::array<std::atomic<int>, max_ranks> reported;           // the rank that a survivor was told of, + 1
    std::atomic<int> num_ready;
    std::array<std::array<char, 400>, max_ranks> complaint;
};

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

class Processes {
  public:
    using Body = std::function<void(Rank &, Board &)>;

    /// Runs `body` in one process for each rank and waits for all; throws what the first rank complains of.
    Processes(int num_ranks, const Body &body) {
        if (thread_sanitizer) throw Skipped("ranks are processes here, and ThreadSanitizer sees only one");
        void *shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(shared != MAP_FAILED);
        board_ = new (shared) Board{};
        std::vector<pid_t> children;
        for (int rank = 0; rank < num_ranks; ++rank) {
            const pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) live(rank, num_ranks, body);
            children.push_back(child);
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
            int status = 0;
            CHECK(waitpid(children[static_cast<std::size_t>(rank)], &status, 0) > 0);
            const bool was_to_die = board_->killed_at[static_cast<std::size_t>(rank)].load() != 0;
            const bool as_expected = was_to_die ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                                : WIFEXITED(status) && WEXITSTATUS(status) == 0;
            if (!as_expected && trouble_.empty()) {
                trouble_ = "rank " + std::to_string(rank) + ", status " + std::to_string(status) + ": " +
                           board_->complaint[static_cast<std::size_t>(rank)].data();
            }
        }
        CHECK(trouble_.empty(), trouble_);
    }
    Processes(const Processes &) = delete;
    Processes &operator=(const Processes &) = delete;
    ~Processes() { munmap(board_, sizeof(Board)); }

    Board &board() { return *board_; }

  private:
    [[noreturn]] void live(int rank, int num_ranks, const Body &body) {
        alarm(60); // whatever hangs ends
        std::string complaint;
        try {
            Rank own;
            own.rank = rank;
            join(own, num_ranks);
            body(own, *board_);
        } catch (const Failure &failure) {
            complaint = "cause " + std::to_string(static_cast<int>(failure.cause)) + ", " + failure.text;
        } catch (const std::exception &error) { complaint = error.what(); }
        std::strncpy(board_->complaint[static_cast<std::size_t>(rank)].data(), complaint.c_str(), 399);
        _exit(complaint.empty() ? 0 : 1);
    }

    void join(Rank &own, int num_ranks) {
        const auto at = static_cast<std::size_t>(own.rank), size = static_cast<std::size_t>(num_ranks);
        own.arena = std::make_shared<Arena>(arena_bytes);
        own.context = std::make_shared<Context>(own.arena);
        board_->process[at].store(getpid());
        board_->descriptor[at].store(own.arena->descriptor());
        board_->presence[at].store(own.context->presence_offset());
        board_->endpoint[at].store(
            own.context->add_endpoint(Endpoint::committed_bytes(num_ranks), Endpoint::reserved_bytes(num_ranks)));
        std::vector<int> descriptors, members;
        std::vector<std::size_t> presences, endpoints;
        for (std::size_t peer = 0; peer < size; ++peer) {
            while (board_->endpoint[peer].load() == 0) sched_yield();
            presences.push_back(board_->presence[peer].load());
            endpoints.push_back(board_->endpoint[peer].load());
            const std::string path = "/proc/" + std::to_string(board_->process[peer].load()) + "/fd/" +
                                     std::to_string(board_->descriptor[peer].load());
            descriptors.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
            CHECK(descriptors.back() >= 0, "cannot open", path);
            members.push_back(static_cast<int>(peer));
        }
        own.context->join(own.rank, descriptors, presences);
        for (int descriptor : descriptors) close(descriptor);
        own.communicators.push_back(
            std::make_unique<Communicator>(own.context, members, own.rank, endpoints, size <= 2));
        board_->num_ready.fetch_add(1);
        while (board_->num_ready.load() < static_cast<int>(size)) sched_yield();
    }

    Board *board_ = nullptr;
    std::string trouble_;
};

[[noreturn]] void die(const Rank &rank, Board &board) {
    board.killed_at[static_cast<std::size_t>(rank.rank)].store(now());
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

Failure all_reduce_until_failure(Rank &rank, const char *algorithm, int num_ranks, std::size_t count) {
    const Fixture &plans = fixture("all_reduce", algorithm, num_ranks);
    const Buffer input(rank.arena, Memory::owned, count * 8), output(rank.arena, Memory::registered, count * 8);
    for (;;) {
        auto failure = failure_of([&] {
            rank.communicator().run(
                call_of(plans, rank.rank, Dtype::int64, Op::sum, count, input.data(), output.data()), do_nothing);
        });
        if (failure) return *failure;
    }
}

/// A survivor: calls until it is told of a death, in time.
void survive(Rank &rank, Board &board, const char *algorithm, int num_ranks, std::size_t count) {
    const Failure failure = all_reduce_until_failure(rank, algorithm, num_ranks, count);
    const std::int64_t noticed = now();
    CHECK(failure.cause == Cause::died, "cause", static_cast<int>(failure.cause), failure.text);
    const auto victim = static_cast<std::size_t>(failure.rank);
    const std::int64_t killed_at = board.killed_at[victim].load();
    CHECK(killed_at != 0, "names rank", failure.rank, "which lives");
    CHECK(noticed - killed_at < 1'000'000'000, "noticed after ns:", noticed - killed_at);
    board.reported[static_cast<std::size_t>(rank.rank)].store(failure.rank + 1);
    rank.communicator().close(do_nothing);
}

} // namespace

TEST(fixtures_among_processes) {
    for (int num_ranks : {2, 5}) {
        const Processes run(num_ranks, [num_ranks](Rank &rank, Board &) {
            std::size_t number = 0;
            for (const Fixture &one : fixtures()) {
                if (one.num_ranks != num_ranks) continue;
                for (const Case &run : one.cases) {
                    const auto bits = number++ + static_cast<std::size_t>(rank.rank);
                    const Operands operands(one, run, rank, bits % 2 == 0 ? Memory::owned : Memory::registered,
                                            bits % 4 < 2 ? Memory::owned : Memory::registered);
                    rank.communicator().run(operands.call(), do_nothing);
                    operands.check("processes");
                }
            }
            rank.communicator().close(do_nothing);
        });
    }
}

TEST(death_inside_a_call_is_named_by_all_survivors) {
    const char *algorithms[] = {"ring", "direct", "halving_doubling", "direct_two_shot"};
    int round = 0;
    for (int num_ranks : {2, 3, 5, 8}) {
        for (int i = 0; i < 8; ++i, ++round) {
            const int victim = round % num_ranks;
            const char *algorithm = algorithms[round / 2 % 4];
            const std::size_t count = i % 2 == 0 ? 100'000 : 20;
            const Processes run(num_ranks, [=](Rank &rank, Board &board) {
                if (rank.rank != victim) return survive(rank, board, algorithm, num_ranks, count);
                std::thread killer([&rank, &board, i] {
                    for (int turn = 0; turn < i * 40; ++turn) sched_yield();
                    die(rank, board);
                });
                all_reduce_until_failure(rank, algorithm, num_ranks, count);
                killer.join();
            });
        }
    }
}

TEST(death_before_the_first_call) {
    const Processes run(4, [](Rank &rank, Board &board) {
        if (rank.rank == 2) die(rank, board);
        survive(rank, board, "ring", 4, 10);
    });
}

TEST(deaths_of_neighbours_are_all_found) {
    // Rank 0 watches 1, and 1 watches 2: when both die, somebody has to take over. All name the same one.
    for (int round = 0; round < 8; ++round) {
        Processes run(5, [round](Rank &rank, Board &board) {
            if (rank.rank == 1 || rank.rank == 2) {
                if (rank.rank == round % 2 + 1) {
                    while (!rank.context->is_dead(2 - round % 2) && round % 4 < 2) sched_yield();
                }
                die(rank, board);
            }
            survive(rank, board, "direct", 5, 1000);
            while (!rank.context->is_dead(1) || !rank.context->is_dead(2)) sched_yield(); // ended by alarm()
        });
        for (std::size_t rank : {3U, 4U}) CHECK(run.board().reported[rank].load() == run.board().reported[0].load());
    }
}

TEST(leaving_after_close_is_no_death) {
    // The root sends from staging, closes and is gone at once, without a word to its guard. The others have all they
    // need.
    for (int round = 0; round < 20; ++round) {
        const Processes run(8, [](Rank &rank, Board &) {
            const Fixture &broadcast = fixture("broadcast", "binomial", 8);
            constexpr std::size_t count = 60'000;
            std::vector<std::int64_t> data(count, rank.rank == 0 ? 42 : 0), output(count);
            rank.communicator().run(call_of(broadcast, rank.rank, Dtype::int64, Op::sum, count,
                                            reinterpret_cast<const std::byte *>(data.data()),
                                            reinterpret_cast<std::byte *>(output.data())),
                                    do_nothing);
            rank.communicator().close(do_nothing);
            CHECK(std::ranges::count(output, 42) == count);
            _exit(0);
        });
    }
}

TEST(a_forked_child_is_told_so) {
    if (thread_sanitizer) throw Skipped("ThreadSanitizer refuses threads after a fork");
    World world(2);
    world.run([](Rank &rank) {
        std::int64_t memory[2] = {};
        rank.communicator().run(call_of(fixture("all_reduce", "ring", 2), rank.rank, Dtype::int64, Op::sum, 1,
                                        reinterpret_cast<std::byte *>(memory),
                                        reinterpret_cast<std::byte *>(memory + 1)),
                                do_nothing);
    });
    const pid_t child = fork();
    if (child == 0) {
        std::int64_t memory[2] = {};
        const Call call = call_of(fixture("all_reduce", "ring", 2), 0, Dtype::int64, Op::sum, 1,
                                  reinterpret_cast<std::byte *>(memory), reinterpret_cast<std::byte *>(memory + 1));
        const auto run = failure_of([&] { world[0].communicator().run(call, do_nothing); });
        const auto submit = failure_of([&] { world[0].communicator().submit(call); });
        const auto close = failure_of([&] { world[0].communicator().close(do_nothing); });
        world[0].communicators.clear();
        world[0].context.reset();
        const bool told = run && run->cause == Cause::forked && submit && submit->cause == Cause::forked && !close;
        _exit(told ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status", status);
    world.run([](Rank &rank) { // the parent is none the worse for it
        CHECK(!failure_of([&] { rank.communicator().close(do_nothing); }));
    });
}
