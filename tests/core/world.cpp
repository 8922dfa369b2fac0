#include "world.h"

#include "check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace hocket::test {
namespace {

constexpr std::size_t arena_bytes = std::size_t{256} << 20; // of addresses
constexpr std::byte canary{0xa5};
constexpr std::size_t canary_bytes = 64;

} // namespace

// Memory --------------------------------------------------------------------------------------------------------------

Buffer::Buffer(const std::shared_ptr<Arena> &arena, Memory memory, std::size_t num_bytes) : num_bytes_(num_bytes) {
    if (memory == Memory::registered) {
        arena_ = arena;
        offset_ = arena_->allocate(num_bytes + canary_bytes);
        data_ = arena_->mapping()->base() + offset_;
    } else if (memory != Memory::owned) { // not from the heap, where pages may have been used
        const std::size_t all = round_up(num_bytes + canary_bytes, huge_page_bytes) + huge_page_bytes;
        void *mapped = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped != MAP_FAILED);
        mapped_ = {mapped, [all](void *begin) { munmap(begin, all); }};
        madvise(mapped, all, memory == Memory::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); // only a hint
        data_ = reinterpret_cast<std::byte *>(round_up(reinterpret_cast<std::uintptr_t>(mapped), huge_page_bytes));
        std::memset(data_, 0, num_bytes);
    } else {
        owned_ = std::make_unique<std::byte[]>(num_bytes + canary_bytes);
        data_ = owned_.get();
    }
    std::fill_n(data_ + num_bytes, canary_bytes, canary);
}

Buffer::~Buffer() {
    std::memset(data_, 0x5a, num_bytes_); // also in registered memory, a late reader must find wrong data
    if (arena_) arena_->free(offset_);
}

bool Buffer::is_intact() const {
    return std::all_of(data_ + num_bytes_, data_ + num_bytes_ + canary_bytes,
                       [](std::byte byte) { return byte == canary; });
}

void need(Pages pages, const Buffer &memory) {
    if (PageMap().of(memory.bytes()) == pages) return;
    throw Skipped(pages == Pages::huge ? "there are no huge pages" : "there are no small pages");
}

// Ranks ---------------------------------------------------------------------------------------------------------------

Profile measured(bool shares_cores, std::string_view name) {
    Profile found = *profile_of(name, shares_cores);
    found.own_cache = std::size_t{1} << 20;
    return found;
}

World::World(int num_ranks, WorldOptions options) : ranks_(static_cast<std::size_t>(num_ranks)) {
    std::vector<int> descriptors, members;
    std::vector<std::size_t> presences;
    std::vector<std::vector<std::size_t>> endpoints(static_cast<std::size_t>(options.num_communicators));
    for (Rank &rank : ranks_) {
        rank.rank = static_cast<int>(members.size());
        rank.arena = std::make_shared<Arena>(arena_bytes);
        auto link = options.bytes_per_second > 0 ? std::make_unique<Link>(options.bytes_per_second, options.latency)
                                                 : std::unique_ptr<Link>();
        rank.context = std::make_shared<Context>(rank.arena, options.max_slots, options.may_attach,
                                                 std::make_shared<Recorder>(), std::move(link));
        members.push_back(rank.rank);
        descriptors.push_back(rank.arena->descriptor());
        presences.push_back(rank.context->presence_offset());
        for (auto &offsets : endpoints) {
            offsets.push_back(
                rank.context->add_endpoint(Endpoint::committed_bytes(num_ranks), Endpoint::reserved_bytes(num_ranks)));
        }
        if (options.as_processes) {
            auto *presence = reinterpret_cast<Presence *>(rank.arena->mapping()->base() + presences.back());
            const auto token = static_cast<std::uint64_t>(rank.rank) + 1;
            presence->process.store(token);
            if (options.may_attach) *reinterpret_cast<std::uint64_t *>(presence->token_address.load()) = token;
        }
    }
    if (!options.hosts.empty()) hosts_ = std::make_unique<Hosts>(options.hosts, arena_bytes);
    std::vector<std::shared_ptr<Context>> contexts;
    for (Rank &rank : ranks_) {
        const auto elsewhere = hosts_ ? hosts_->elsewhere(rank.rank) : std::vector<int>();
        std::vector<int> seen = descriptors;
        for (const int other : elsewhere) seen[static_cast<std::size_t>(other)] = hosts_->mirror(other, rank.rank);
        const int other = rank.rank ^ 1; // this rank counts as sharing the core, unless each has one
        const bool is_neighbour = other < num_ranks && !options.spin && std::ranges::count(elsewhere, other) == 0;
        const std::span neighbours(&other, is_neighbour ? 1 : 0);
        rank.context->join(rank.rank, seen, presences, options.profile.value_or(measured(!options.spin)), neighbours,
                           neighbours, options.is_far ? std::span<const int>(members) : std::span<const int>(),
                           elsewhere, hosts_ ? hosts_->bell(rank.rank) : -1,
                           hosts_ ? hosts_->names() : std::vector<std::string>());
        contexts.push_back(rank.context);
    }
    if (hosts_) hosts_->open(std::move(contexts));
    if (hosts_ || options.over_connections)
        switchboard_ = std::make_unique<Switchboard>(num_ranks, options.over_connections, options.num_rails);
    const std::vector<std::uint32_t> generations(members.size());
    for (Rank &rank : ranks_) {
        for (const auto &offsets : endpoints) {
            rank.communicators.push_back(std::make_unique<Communicator>(
                rank.context, members, rank.rank, offsets, options.spin, connections(rank.rank), generations));
        }
    }
}

Switchboard::Switchboard(int num_ranks, bool carry_all, int num_rails) : stop_(eventfd(0, EFD_CLOEXEC)) {
    CHECK(stop_ >= 0);
    for (int rank = 0; rank < num_ranks; ++rank)
        ends_.push_back(std::make_shared<Connections>(rank, carry_all, num_rails));
    thread_ = std::thread([this] { run(); });
}

Switchboard::~Switchboard() {
    const std::uint64_t one = 1;
    CHECK(write(stop_, &one, sizeof one) == sizeof one);
    thread_.join();
    close(stop_);
}

void Switchboard::run() {
    std::vector<pollfd> all;
    for (const auto &end : ends_) all.push_back({.fd = end->descriptor(), .events = POLLIN, .revents = 0});
    all.push_back({.fd = stop_, .events = POLLIN, .revents = 0});
    constexpr std::array<std::byte, 32> greeting{};
    while (poll(all.data(), all.size(), -1) > 0 && all.back().revents == 0) {
        for (const auto &end : ends_) {
            for (const ConnectionName &name : end->take_wanted()) {
                std::array<int, 2> pair{};
                CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
                ends_[static_cast<std::size_t>(name.to)]->give(name, pair[1], greeting);
                // The other rank greets once it has the communicator. One of them may have left it, after a failure.
                pollfd greeted{.fd = pair[0], .events = POLLIN, .revents = 0};
                while (poll(&greeted, 1, 1) == 0 && end->has(name.communicator)) continue;
                std::array<std::byte, 32> found{};
                const bool is_greeted = recv(pair[0], found.data(), found.size(), MSG_DONTWAIT) == std::ssize(found);
                if (is_greeted) end->give(name, pair[0]);
                else close(pair[0]);
            }
        }
    }
}

void World::run(const std::function<void(Rank &)> &body) {
    std::mutex mutex; // guards `first`
    std::exception_ptr first;
    std::vector<std::thread> threads;
    for (Rank &rank : ranks_) {
        threads.emplace_back([this, &rank, &body, &mutex, &first] {
            try {
                body(rank);
            } catch (...) {
                {
                    const std::scoped_lock lock(mutex);
                    if (!first) first = std::current_exception();
                }
                failed_.store(true);
                for (auto &communicator : rank.communicators) communicator->abort("its test failed");
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
}

void World::meet() {
    const int size = static_cast<int>(ranks_.size());
    for (const int goal = (num_met_.fetch_add(1) / size + 1) * size; num_met_.load() < goal;
         std::this_thread::yield()) {
        CHECK(!has_failed(), "another rank failed");
    }
}

// Calls ---------------------------------------------------------------------------------------------------------------

void do_nothing() {}

Call call_of(const Fixture &fixture, int rank, Dtype dtype, Op op, std::size_t block, const std::byte *input,
             std::byte *output) {
    Call call;
    call.plan = fixture.plans[static_cast<std::size_t>(rank)];
    call.fingerprint.count = block;
    call.fingerprint.schedule = fixture.id;
    call.fingerprint.kind = static_cast<std::int32_t>(fixture.collective.size());
    call.fingerprint.dtype = static_cast<std::int32_t>(dtype);
    call.fingerprint.op = static_cast<std::int32_t>(op);
    call.fingerprint.root = fixture.root;
    call.launch = {.dtype = dtype, .op = op, .block = block, .input = input, .output = output};
    call.timeout = patience;
    return call;
}

Operands::Operands(const Fixture &fixture, const Case &run, Rank &rank, Memory input, Memory output)
    : fixture_(fixture), run_(run), rank_(rank.rank) {
    const auto at = static_cast<std::size_t>(rank_);
    const PlanShape &shape = fixture.plans[at]->shape();
    const Layout &layout = fixture.layouts[at];
    input_counts_ = run.counts_of(shape.input_blocks);
    output_counts_ = run.counts_of(shape.output_blocks);
    const auto bytes_of = [&run](std::span<const std::uint64_t> counts) {
        return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * size_of(run.dtype);
    };
    input_bytes_ = bytes_of(input_counts_);
    output_bytes_ = bytes_of(output_counts_);
    if (fixture.in_place) {
        const auto &counts = input_counts_.size() < output_counts_.size() ? output_counts_ : input_counts_;
        CHECK(counts.size() == static_cast<std::size_t>(layout.num_blocks), fixture.name());
        first_ = std::make_unique<Buffer>(rank.arena, input, bytes_of(counts));
        const auto place = [&](int block) {
            return block < 0 ? nullptr
                             : first_->data() + bytes_of(std::span(counts).first(static_cast<std::size_t>(block)));
        };
        input_ = place(layout.input_block);
        output_ = place(layout.output_block);
    } else {
        first_ = std::make_unique<Buffer>(rank.arena, input, input_bytes_);
        second_ = std::make_unique<Buffer>(rank.arena, output, output_bytes_);
        input_ = first_->data();
        output_ = second_->data();
    }
    if (input_bytes_ > 0) fill_input(rank_, run.dtype, input_, input_bytes_ / size_of(run.dtype));
    if (!fixture.in_place || layout.output_block < 0) input_digest_ = digest({input_, input_bytes_});
}

Call Operands::call() const {
    Call call = call_of(fixture_, rank_, run_.dtype, run_.op, run_.block, input_, output_);
    call.launch.factor = run_.factor;
    if (fixture_.uneven) {
        call.launch.input_counts = input_counts_;
        call.launch.output_counts = output_counts_;
    }
    return call;
}

void Operands::check(const char *where) const {
    const auto description = [&] {
        return fixture_.name() + ", rank " + std::to_string(rank_) + ", dtype " + name_of(run_.dtype) + ", op " +
               name_of(run_.op) + ", block " + std::to_string(run_.block) + ", " + where;
    };
    const std::uint64_t expected = run_.digests[static_cast<std::size_t>(rank_)];
    CHECK(expected == 0 || digest({output_, output_bytes_}) == expected, "wrong output:", description());
    CHECK(input_digest_ == 0 || digest({input_, input_bytes_}) == input_digest_, "input changed:", description());
    CHECK(first_->is_intact() && (!second_ || second_->is_intact()), "wrote behind the end:", description());
}

ShmTransport &transport_of(World &world, int rank) { return world[rank].communicator().transport(); }

std::vector<std::byte> counted(std::size_t num_bytes, std::size_t first) {
    std::vector<std::byte> bytes(num_bytes);
    for (std::size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>((first + i) % 251);
    return bytes;
}

std::optional<Failure> failure_of(const std::function<void()> &action) {
    try {
        action();
    } catch (const Failure &failure) { return failure; }
    return std::nullopt;
}

std::optional<Failure> failure_of(const Work &work) {
    return failure_of([&work] {
        if (work.end().failure()) std::rethrow_exception(work.end().failure());
    });
}

void run_fixtures(Rank &rank) {
    std::size_t number = 0;
    for (const Fixture &one : fixtures()) {
        if (one.num_ranks != rank.communicator().size()) continue;
        for (const Case &run : one.cases) {
            const Memory memory = number++ % 2 == 0 ? Memory::owned : Memory::registered;
            const Operands operands(one, run, rank, memory, memory);
            rank.communicator().run(operands.call(), [] {});
            operands.check(one.name().c_str());
        }
    }
}

} // namespace hocket::test
