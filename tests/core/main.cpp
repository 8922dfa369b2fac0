// core_tests PLANS [PART]: runs the tests whose names contain PART, on the plans that export_plans.py wrote.

#include "check.h"
#include "executor/executor.h"
#include "fixtures.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <string_view>

namespace hocket::test {

std::vector<Test> &tests() {
    static std::vector<Test> all; // filled before main(), from all files
    return all;
}

} // namespace hocket::test

using namespace hocket::test;

#if defined(__SANITIZE_THREAD__)
/// ThreadSanitizer does not see how libstdc++ counts references to an exception. If one thread reads it, and another
/// one releases it last and deletes it, that looks like a race.
extern "C" const char *__tsan_default_suppressions() {
    return "race:std::runtime_error::~runtime_error\n"
           "race:std::logic_error::~logic_error\n";
}
#endif

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        std::fprintf(stderr, "usage: %s PLANS [PART], where PLANS comes from tests/core/export_plans.py\n", argv[0]);
        return 2;
    }
    const std::string_view part = argc == 3 ? argv[2] : "";
    try {
        load_fixtures(argv[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
    int passed = 0, failed = 0;
    for (const Test &test : tests()) {
        if (std::string_view(test.name).find(part) == std::string_view::npos) continue;
        const auto start = std::chrono::steady_clock::now();
        const char *verdict = "ok";
        std::string reason;
        try {
            test.body();
            ++passed;
        } catch (const Skipped &skipped) {
            verdict = "skipped";
            reason = skipped.what();
        } catch (const std::exception &error) {
            verdict = "FAILED";
            reason = error.what();
            ++failed;
        } catch (const hocket::ForeignMessage &message) {
            verdict = "FAILED";
            reason = "foreign message of rank " + std::to_string(message.peer);
            ++failed;
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::printf("%-8s %-60s %6.2f s%s%s\n", verdict, test.name, seconds.count(), reason.empty() ? "" : "  ",
                    reason.c_str());
        std::fflush(stdout);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
