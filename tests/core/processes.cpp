#include "processes.h"

#include "check.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <numeric>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hocket::test {
namespace {

constexpr std::size_t arena_bytes = std::size_t{128} << 20;

} // namespace

void Board::meet(int num_ranks) {
    for (const int goal = (num_met.fetch_add(1) / num_ranks + 1) * num_ranks; num_met.load() < goal;) sched_yield();
}

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

Processes::Processes(int num_ranks, const Body &body, const WorldOptions &options)
    : num_ranks_(num_ranks), options_(options) {
    if (thread_sanitizer) throw Skipped("ranks are processes here, and ThreadSanitizer sees only one");
    void *shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    board_ = new (shared) Board{};
    std::vector<pid_t> children;
    for (int rank = 0; rank < num_ranks; ++rank) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) live(rank, body);
        children.push_back(child);
    }
    std::string trouble;
    for (int rank = 0; rank < num_ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        int status = 0;
        CHECK(waitpid(children[at], &status, 0) > 0);
        const bool was_to_die = board_->killed_at[at].load() != 0;
        const bool as_expected = was_to_die ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                            : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!as_expected && trouble.empty()) {
            trouble = "rank " + std::to_string(rank) + ", status " + std::to_string(status) + ": " +
                      board_->complaint[at].data();
        }
    }
    CHECK(trouble.empty(), trouble);
}

Processes::~Processes() { munmap(board_, sizeof(Board)); }

void Processes::live(int rank, const Body &body) {
    alarm(60); // a process that hangs ends
    std::string complaint;
    try {
        Rank own;
        own.rank = rank;
        join(own);
        body(own, *board_);
    } catch (const Failure &failure) {
        complaint = "cause " + std::to_string(static_cast<int>(failure.cause)) + ", " + failure.text;
    } catch (const std::exception &error) { complaint = error.what(); }
    std::strncpy(board_->complaint[static_cast<std::size_t>(rank)].data(), complaint.c_str(), 399);
    _exit(complaint.empty() ? 0 : 1);
}

void Processes::join(Rank &own) {
    const auto at = static_cast<std::size_t>(own.rank), size = static_cast<std::size_t>(num_ranks_);
    own.arena = std::make_shared<Arena>(arena_bytes);
    own.context = std::make_shared<Context>(own.arena, options_.max_slots, options_.may_attach);
    board_->process[at].store(getpid());
    board_->descriptor[at].store(own.arena->descriptor());
    board_->presence[at].store(own.context->presence_offset());
    board_->meet(num_ranks_);
    std::vector<int> descriptors, members(size);
    std::iota(members.begin(), members.end(), 0);
    std::vector<std::size_t> presences;
    for (std::size_t peer = 0; peer < size; ++peer) {
        presences.push_back(board_->presence[peer].load());
        const std::string path = "/proc/" + std::to_string(board_->process[peer].load()) + "/fd/" +
                                 std::to_string(board_->descriptor[peer].load());
        descriptors.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
        CHECK(descriptors.back() >= 0, "cannot open", path);
    }
    const int other = own.rank ^ 1; // as in World
    const std::span neighbours(&other, other < num_ranks_ && !options_.spin ? 1 : 0);
    own.context->join(own.rank, descriptors, presences, options_.profile.value_or(measured(!options_.spin)), neighbours,
                      neighbours, {});
    for (int descriptor : descriptors) close(descriptor);
    for (int i = 0; i < options_.num_communicators; ++i) {
        board_->endpoint[at].store(
            own.context->add_endpoint(Endpoint::committed_bytes(num_ranks_), Endpoint::reserved_bytes(num_ranks_)));
        board_->meet(num_ranks_);
        std::vector<std::size_t> endpoints;
        for (std::size_t peer = 0; peer < size; ++peer) endpoints.push_back(board_->endpoint[peer].load());
        own.communicators.push_back(
            std::make_unique<Communicator>(own.context, members, own.rank, endpoints, options_.spin));
        board_->meet(num_ranks_);
    }
}

void die(const Rank &rank, Board &board) {
    board.killed_at[static_cast<std::size_t>(rank.rank)].store(now());
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

} // namespace hocket::test
