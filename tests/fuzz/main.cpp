// fuzz TARGET CORPUS RUNS SEED: handles every input of the corpus, and then so many mutations of them. What reaches
// code that no input has reached before is mutated on. A finding ends it: standard error has the input.

#include "script.h"

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using hocket::Bytes;
using Input = std::vector<std::byte>;

struct Target {
    std::string_view name;
    void (*handle)(Bytes input);
};
constexpr std::array targets{Target{"frames", hocket::fuzz::fuzz_frames}, Target{"numbers", hocket::fuzz::fuzz_numbers},
                             Target{"messages", hocket::fuzz::fuzz_messages}, Target{"news", hocket::fuzz::fuzz_news}};
constexpr std::size_t most_bytes = 512; // of an input
constexpr unsigned most_seconds = 20;   // of some thousand inputs, on a busy machine, too

// Coverage: the compiler calls this in each block of the core ---------------------------------------------------------

std::array<std::uint8_t, 1 << 16> reached; // by a hash of the block before and this one
std::uintptr_t last_block = 0;
bool is_new = false;

} // namespace

extern "C" void __sanitizer_cov_trace_pc() {
    const auto block = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
    std::uint8_t &one = reached[(block ^ last_block << 1) % reached.size()];
    last_block = block;
    if (one == 0) one = is_new = true;
}

/// Whatever a sanitizer finds is an abort, and so comes to stop().
extern "C" const char *__asan_default_options() {
    return "abort_on_error=1:max_allocation_size_mb=64:quarantine_size_mb=4:malloc_context_size=4";
}
extern "C" const char *__ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

namespace {

// Findings ------------------------------------------------------------------------------------------------------------

const Input *at_hand = nullptr;
std::uint64_t num_done = 0; // mutations

void stop(int signal) {
    if (signal == SIGALRM) std::fprintf(stderr, "an input takes more than %u seconds\n", most_seconds);
    if (at_hand != nullptr) {
        std::fprintf(stderr, "after %llu runs\ninput ", static_cast<unsigned long long>(num_done));
        for (const std::byte one : *at_hand) std::fprintf(stderr, "%02x", static_cast<unsigned>(one));
        std::fprintf(stderr, "\n");
    }
    _exit(1);
}

// Inputs --------------------------------------------------------------------------------------------------------------

/// Of a line, the hexadecimal digits it begins with.
Input bytes_of(std::string_view line) {
    Input bytes;
    const auto digit = [&](std::size_t at) {
        return at < line.size() ? std::string_view("0123456789abcdef").find(line[at]) : std::string_view::npos;
    };
    for (std::size_t i = 0; digit(i) < 16 && digit(i + 1) < 16; i += 2)
        bytes.push_back(static_cast<std::byte>(digit(i) << 4 | digit(i + 1)));
    return bytes;
}

class Mutator {
  public:
    explicit Mutator(std::uint64_t seed) : choose_(seed) {}

    /// Some changes, one after the other.
    Input mutate(const std::vector<Input> &pool) {
        Input made = pool[below(pool.size())];
        const std::size_t num_changes = std::size_t{1} << below(5);
        for (std::size_t i = 0; i < num_changes; ++i) change(made, pool);
        if (made.size() > most_bytes) made.resize(most_bytes);
        return made;
    }

  private:
    std::size_t below(std::size_t limit) { return choose_() % limit; }
    std::ptrdiff_t place(const Input &in) { return static_cast<std::ptrdiff_t>(below(in.size() + 1)); }

    void change(Input &made, const std::vector<Input> &pool) {
        const std::size_t kind = made.empty() ? 3 : below(7);
        const std::size_t at = made.empty() ? 0 : below(made.size());
        switch (kind) {
        case 0: made[at] ^= static_cast<std::byte>(1U << below(8)); break;
        case 1: made[at] = static_cast<std::byte>(below(256)); break;
        case 2: { // a number at which something may change, in up to eight bytes
            constexpr std::array<std::uint64_t, 8> numbers{0, 1, 64, 255, 131'136, 131'137, 0x7fffffff, ~0ULL};
            const std::uint64_t number = numbers[below(numbers.size())];
            std::memcpy(made.data() + at, &number, std::min(std::size_t{1} << below(4), made.size() - at));
            break;
        }
        case 3: { // some bytes more
            const std::size_t more = 1 + below(8);
            const auto to = made.insert(made.begin() + place(made), more, std::byte{});
            for (std::size_t i = 0; i < more; ++i)
                to[static_cast<std::ptrdiff_t>(i)] = static_cast<std::byte>(below(256));
            break;
        }
        case 4: // fewer
            made.erase(made.begin() + static_cast<std::ptrdiff_t>(at),
                       made.begin() +
                           static_cast<std::ptrdiff_t>(at + 1 + below(std::min<std::size_t>(made.size() - at, 16))));
            break;
        case 5: made.resize(at); break; // cut
        case 6: {                       // a part of another one
            const Input &other = pool[below(pool.size())];
            if (other.empty()) break;
            const std::size_t from = below(other.size()),
                              length = 1 + below(std::min<std::size_t>(other.size() - from, 64));
            const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
            made.insert(made.begin() + place(made), first, first + static_cast<std::ptrdiff_t>(length));
            break;
        }
        }
    }

    std::mt19937_64 choose_;
};

} // namespace

int main(int argc, char **argv) {
    const std::string_view name = argc == 5 ? argv[1] : "";
    const auto *const target = std::ranges::find(targets, name, &Target::name);
    if (target == targets.end()) {
        std::fprintf(stderr, "usage: %s frames|numbers|messages CORPUS RUNS SEED\n", argv[0]);
        return 2;
    }
    for (const int signal : {SIGALRM, SIGABRT}) std::signal(signal, stop);
    std::vector<Input> pool{{}};
    std::ifstream corpus(argv[2]);
    for (std::string line; std::getline(corpus, line);) pool.push_back(bytes_of(line));
    const std::uint64_t num_runs = std::stoull(argv[3]);
    Mutator mutator(std::stoull(argv[4]));
    const auto run = [&](const Input &input) {
        at_hand = &input;
        is_new = false;
        last_block = 0;
        target->handle(input);
    };
    for (const Input &input : pool) run(input);
    const std::size_t num_in_corpus = pool.size() - 1;
    for (; num_done < num_runs; ++num_done) {
        if (num_done % 4096 == 0) alarm(most_seconds);
        const Input input = mutator.mutate(pool);
        run(input);
        if (is_new) pool.push_back(input);
    }
    alarm(0);
    at_hand = nullptr;
    std::printf("%zu inputs of the corpus, %llu mutations, of which %zu reached something new\n", num_in_corpus,
                static_cast<unsigned long long>(num_runs), pool.size() - 1 - num_in_corpus);
}
