#include "base/system.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <pthread.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

namespace hocket {

unsigned fork_generation() {
    // Asking the kernel for the process id would cost more than a whole small collective.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
    static_cast<void>(registered);
    return generation.load(std::memory_order_relaxed);
}

std::size_t page_bytes() {
    static const auto found = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return found;
}

std::uint64_t process_namespace() {
    struct stat found{};
    return stat("/proc/self/ns/pid", &found) == 0 ? static_cast<std::uint64_t>(found.st_ino) : 0;
}

bool is_stopped(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto state = text.rfind(") "); // the name before it may hold anything
    return state != std::string::npos && state + 2 < text.size() && (text[state + 2] == 'T' || text[state + 2] == 't');
}

std::thread start_thread(const std::string &name, std::function<void()> run) {
    try {
        return std::thread([run = std::move(run)] {
            enter_own_thread();
            run();
        });
    } catch (const std::system_error &error) {
        errno = error.code().value();
        throw Failure::resource("starting " + name);
    }
}

} // namespace hocket
