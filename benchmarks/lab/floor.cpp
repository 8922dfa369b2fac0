// Measures how fast hand-written code is on this machine: it knows its task, and has no Python, checks or schedule.
// The protocol is that of comparison/measuring.py.
//
//     floor OPERATION MEMORY RANKS BYTES SECONDS BATCHES [VARIANT...]
//
// prints the seconds of a call, touched and untouched, and the measured variants, best first. A trial finds the best
// way, piece size and kind of stores for the task at this moment, or the best of the given VARIANTs, which an earlier
// run has printed.
//
// Two ranks are processes that spin, each on its own core.
// MEMORY private: each rank has its own buffers, and data passes through shared memory or the kernel.
// MEMORY staged: the same, but no rank reads or writes another's memory through the kernel, which may be forbidden.
// MEMORY registered: all buffers are shared, and are read and written in place. The ways for private memory work here,
// too, so the floor is the shorter time of both.
//
// More ranks with private or staged memory are processes, too. Several share a core, and yield when they wait: see
// crowd.h. With registered memory, one process per core does the work of all ranks: only copies and additions, each
// once. Ranks cannot do less with any memory, so this is a bound; no code is known to reach it.
// OPERATION turns: each rank writes a line and waits for the lines of all others. The time of taking turns alone is a
// bound for every operation in which each rank waits for all.

#include "../comparison/touching.h"
#include "floor/choosing.h"
#include "floor/crowd.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <new>

namespace {

using namespace hand_written;

constexpr std::size_t table_bytes = 65 * 64;
constexpr unsigned most_seconds = 20;
constexpr int trial_batches = 3;
constexpr double hopeless = 1.3;    // a variant this many times slower than the best one is not timed again
constexpr double short_call = 1e-3; // seconds: then there is time for more variants
constexpr double long_call = 20e-3; // of many ranks: then there is time for the minimum only
constexpr std::size_t most_calls = 20'000;
constexpr const char *operations[] = {"all_reduce", "reduce_scatter", "reduce",  "broadcast", "all_gather",
                                      "all_to_all", "send_recv",      "barrier", "turns"};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The input of each rank, in whole numbers, and then their sum.
std::vector<std::vector<float>> tables_of(std::size_t num_ranks) {
    const std::size_t length = table_bytes / sizeof(float);
    std::vector<std::vector<float>> tables(num_ranks + 1, std::vector<float>(length));
    for (std::size_t i = 0; i < length; ++i) {
        for (std::size_t rank = 0; rank < num_ranks; ++rank) {
            tables[rank][i] = static_cast<float>(i * 7 % 23 + rank);
            tables[num_ranks][i] += tables[rank][i];
        }
    }
    return tables;
}

// The loops of one process, which calls `Code`.
template <class Code> class Measurement {
  public:
    Measurement(Shared &shared, const Task &task, std::size_t index, std::size_t num_workers,
                const std::vector<Buffers> &buffers, Code &code)
        : shared_(shared), task_(task), index_(index), num_workers_(num_workers), buffers_(buffers),
          tables_(tables_of(task.num_ranks)), worker_(code) {
        for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
            if (rank * num_workers / task.num_ranks == index) { mine_.push_back(rank); }
        }
    }

    // Writes to shared.loops, for each of the best variants: touched, touching alone, untouched.
    void run(const std::vector<Variant> &known) {
        for (const std::size_t rank : mine_) { // no variant pays for new pages
            for (const Bytes memory : {buffers_[rank].given, buffers_[rank].got}) {
                std::memset(memory.data(), 0, memory.size());
            }
        }
        std::vector<Variant> best = known.empty() ? choose() : known;
        best.resize(std::min(best.size(), most_finalists));
        std::size_t calls[most_finalists]{};
        for (std::size_t place = 0; place < best.size() && index_ == 0; ++place) {
            std::snprintf(shared_.ways[place], sizeof(shared_.ways[place]), "%s", in_words(best[place]).c_str());
        }
        const auto touch = [this] { this->touch(); };
        for (std::size_t batch = 0; batch < task_.batches; ++batch) {
            for (std::size_t place = 0; place < best.size(); ++place) {
                const auto call = [&] { worker_.call(best[place]); };
                const auto both = [&] {
                    touch();
                    call();
                };
                if (batch == 0) {
                    calls[place] = calls_in(task_.seconds, agreed(timed(2, both)) / 2);
                    check_results();
                }
                both(); // a batch may be one call: it must find what a call leaves; the touching alone must not
                const double touched = timed(calls[place], both);
                touch();
                const double found[] = {touched, timed(calls[place], touch), timed(calls[place], call)};
                for (std::size_t loop = 0; loop < 3; ++loop) {
                    shared_.loops[place][index_][loop][batch] = found[loop] / static_cast<double>(calls[place]);
                }
            }
        }
        asm volatile("" : : "r"(seen_)); // the compiler must not drop the reads
    }

  private:
    void touch() {
        for (const std::size_t rank : mine_) {
            const Buffers &each = buffers_[rank];
            if (each.gets) { seen_ += touching::sum_of_lines(each.got); }
            if (each.gives) { touching::write(each.given, std::as_bytes(std::span(tables_[rank]))); }
        }
    }

    template <class Body> double timed(std::size_t num_calls, Body body) {
        worker_.barrier();
        const double began = now();
        for (std::size_t i = 0; i < num_calls; ++i) { body(); }
        return now() - began;
    }

    // The value of the slowest process, so that all decide alike.
    double agreed(double own) {
        shared_.spent[index_] = own;
        worker_.barrier();
        const double slowest = *std::max_element(shared_.spent, shared_.spent + num_workers_);
        worker_.barrier();
        return slowest;
    }

    static std::size_t calls_in(double seconds, double of_one) {
        return std::clamp<std::size_t>(static_cast<std::size_t>(seconds / of_one), 1, most_calls);
    }

    // The fastest variant, and the fastest one of another way, because the machine may change before the measurement.
    // If ranks share cores, times vary more, so the second best is measured, too.
    std::vector<Variant> choose() {
        std::size_t bytes = 0; // that go in one direction
        for (const Buffers &each : buffers_) { bytes = std::max(bytes, std::min(each.given.size(), each.got.size())); }
        if (task_.operation == "all_to_all") { bytes /= task_.num_ranks; }
        std::vector<std::pair<double, Variant>> tried;
        const auto consider = [&](const Variant &variant) {
            const auto same = [&](const auto &each) { return each.second == variant; };
            if (std::ranges::any_of(tried, same)) { return; }
            const double least = tried.empty() ? std::numeric_limits<double>::infinity() : tried[0].first;
            tried.emplace_back(seconds_of(variant, least), variant);
            std::ranges::sort(tried, {}, [](const auto &each) { return each.first; });
        };
        for (const Variant &variant : first_variants(task_, bytes)) { consider(variant); }
        for (const auto change : changes(task_, tried[0].second, bytes)) {
            Variant other = tried[0].second;
            change(other);
            consider(other);
        }
        const auto &[seconds, best] = tried[0];
        const auto other = std::ranges::find_if(tried, [&](const auto &each) {
            return each.second.way != best.way || each.second.side != best.side ||
                   each.second.slots_past_caches != best.slots_past_caches;
        });
        std::vector<Variant> found{best};
        if (is_crowd(task_) && seconds < short_call && tried.size() > 1) { found.push_back(tried[1].second); }
        const bool has_time = !is_crowd(task_) || seconds < long_call;
        if (has_time && other != tried.end() && other->second != found.back()) { found.push_back(other->second); }
        return found;
    }

    // Seconds of a call with its touching; checks its result. known: the seconds of another variant.
    double seconds_of(const Variant &variant, double known) {
        const auto body = [&] {
            touch();
            worker_.call(variant);
        };
        double least = agreed(timed(1, body));
        std::size_t calls = calls_in(task_.seconds / 40, least);
        const bool is_out = is_crowd(task_) && least > short_call && least > hopeless * hopeless * known;
        const int batches = is_out ? 0 : is_crowd(task_) && least > long_call ? 1 : trial_batches;
        for (int batch = 0; batch < batches; ++batch) { // the minimum, because other processes disturb some
            const double spent = agreed(timed(calls, body)) / static_cast<double>(calls);
            calls = calls_in(task_.seconds / 10, spent);
            least = std::min(least, spent);
            if (least > hopeless * known && (batch > 0 || spent > short_call)) { break; }
        }
        check_results();
        return least;
    }

    void check_results() {
        for (const std::size_t rank : mine_) {
            for (const Block &block : expected(task_.operation, buffers_, rank)) { check(block); }
        }
    }

    void check(const Block &block) {
        touching::along(block.place, std::as_bytes(std::span(tables_[block.table])), block.offset,
                        [this](Bytes part, std::span<const std::byte> wanted) {
                            const bool right = std::memcmp(part.data(), wanted.data(), part.size()) == 0;
                            shared_.wrong = shared_.wrong || !right;
                            return right;
                        });
    }

    Shared &shared_;
    const Task &task_;
    std::size_t index_;
    std::size_t num_workers_;
    const std::vector<Buffers> &buffers_;
    std::vector<std::vector<float>> tables_;
    std::vector<std::size_t> mine_; // the ranks whose work this process does
    Code &worker_;
    std::uint64_t seen_ = 0;
};

std::size_t num_cores() {
    cpu_set_t allowed;
    const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
    return static_cast<std::size_t>(known ? CPU_COUNT(&allowed) : sysconf(_SC_NPROCESSORS_ONLN));
}

// Moves this process to the index-th core that it may use: two spinning processes must not share one.
void stay_on_core(std::size_t index) {
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) { return; }
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed) && index-- == 0) {
            CPU_SET(core, &one);
            sched_setaffinity(0, sizeof(one), &one); // if refused, the scheduler places it
            return;
        }
    }
}

double median_of(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// The slowest process of each batch.
std::vector<double> slowest_of(const Shared &shared, const Task &task, std::size_t num_workers, std::size_t place,
                               std::size_t loop) {
    std::vector<double> slowest(task.batches);
    for (std::size_t batch = 0; batch < task.batches; ++batch) {
        for (std::size_t index = 0; index < num_workers; ++index) {
            slowest[batch] = std::max(slowest[batch], shared.loops[place][index][loop][batch]);
        }
    }
    return slowest;
}

// Prints the variant whose touched loop was fastest: differences of loops are too uncertain to choose by.
void print(const Shared &shared, const Task &task, std::size_t num_workers) {
    std::vector<std::pair<double, std::size_t>> found;
    for (std::size_t place = 0; place == 0 || (place < most_finalists && *shared.ways[place] != 0); ++place) {
        found.emplace_back(median_of(slowest_of(shared, task, num_workers, place, 0)), place);
    }
    std::ranges::sort(found);
    const auto [loop, best] = found[0];
    const std::vector<double> both = slowest_of(shared, task, num_workers, best, 0);
    const std::vector<double> touching = slowest_of(shared, task, num_workers, best, 1);
    std::vector<double> calls;
    for (std::size_t batch = 0; batch < task.batches; ++batch) { calls.push_back(both[batch] - touching[batch]); }
    std::printf("%.9g %.9g", std::max(median_of(calls), loop / 100),
                median_of(slowest_of(shared, task, num_workers, best, 2)));
    for (const auto &[seconds, place] : found) { std::printf(" %s", shared.ways[place]); }
    std::printf("\n");
}

bool is_possible(const Task &task) {
    const bool without_data = task.operation == "turns" || task.operation == "barrier";
    const bool more = is_crowd(task) || (task.memory == "registered" && task.operation != "barrier");
    const bool in_pairs = task.operation == "send_recv";
    return std::ranges::find(operations, task.operation) != std::end(operations) && task.num_ranks >= 2 &&
           task.num_ranks <= most_ranks && (more || task.num_ranks == 2) && (!in_pairs || task.num_ranks % 2 == 0) &&
           task.batches >= 1 && task.batches <= most_batches && task.bytes % sizeof(float) == 0 &&
           (without_data || task.bytes > 0);
}

} // namespace

int main(int count, char **words) {
    if (count < 7) {
        std::fprintf(
            stderr,
            "usage: floor OPERATION|turns private|staged|registered RANKS BYTES SECONDS BATCHES [VARIANT...]\n");
        return 2;
    }
    std::vector<Variant> variants;
    for (int place = 7; place < count; ++place) { variants.push_back(variant_of(words[place])); }
    const Task task{
        words[1], words[2], std::stoul(words[3]), std::stoul(words[4]), std::atof(words[5]), std::stoul(words[6])};
    const std::size_t cores = num_cores();
    const bool crowd = is_crowd(task);
    const std::size_t num_workers = crowd ? task.num_ranks : std::min(task.num_ranks, cores);
    if (!is_possible(task) || cores < 2) {
        std::fprintf(stderr, "floor: cannot do this with %zu cores\n", cores);
        return 2;
    }
    Shared &shared = *new (shared_memory(sizeof(Shared))) Shared;
    std::vector<Buffers> buffers;
    if (task.operation != "turns") { buffers = buffers_of(task); }
    auto *const desks = reinterpret_cast<Desk *>(crowd ? shared_memory(task.num_ranks * sizeof(Desk)) : nullptr);
    std::vector<pid_t> children;
    for (std::size_t index = 0; index < num_workers; ++index) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(most_seconds); // a process alone must not spin forever
            shared.processes[index] = getpid();
            stay_on_core(crowd ? index * cores / task.num_ranks : index); // neighbours share one, as in Hocket
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);           // so that others may attach
            if (crowd) {
                Crowd code(shared, task, buffers, desks, index, cores);
                Measurement(shared, task, index, num_workers, buffers, code).run(variants);
            } else {
                Worker code(shared, task, buffers, index, num_workers);
                Measurement(shared, task, index, num_workers, buffers, code).run(variants);
            }
            _exit(0);
        }
        children.push_back(child);
    }
    bool well = true;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        well = well && status == 0;
    }
    if (!well || shared.wrong) {
        std::fprintf(stderr, "floor: %s\n", well ? "a wrong result" : "a process failed");
        return 1;
    }
    print(shared, task, num_workers);
}
