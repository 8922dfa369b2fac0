// The raw exchange that benchmarks/hosts.py puts beside calls over TCP: two processes of this machine, a core each,
// joined by one connection in each direction. Both send so many bytes and receive as many; long ones go in pieces, one
// sent and one received in turn. Nothing is added, copied or checked.
//
//     exchange BYTES BATCH_SECONDS BATCHES [NETWORK ADDRESS NETWORK ADDRESS]
//
// NETWORK is the file of a network namespace, and ADDRESS is there: of each end, without them the loopback interface.
// It prints the median seconds of an exchange. For how the connections are set up see runtime/network/doorkeeper.py.

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::size_t piece = std::size_t{128} << 10;

[[noreturn]] void fail(const char *what) {
    std::perror(what);
    std::exit(1);
}

void prepare(int descriptor) {
    const int one = 1, none = 0;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(descriptor, IPPROTO_TCP, TCP_QUICKACK, &none, sizeof none);
    setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

struct Place {
    const char *network; // nullptr: where this process is
    const char *address;

    /// Sockets made from now on are there.
    void enter() const {
        if (network == nullptr) return;
        const int file = open(network, O_RDONLY | O_CLOEXEC);
        if (file < 0 || setns(file, CLONE_NEWNET) != 0) fail(network);
        close(file);
    }
};

/// A connection that one end opens to the other.
std::array<int, 2> connected(const Place &from, const Place &to) {
    to.enter();
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (inet_pton(AF_INET, to.address, &address.sin_addr) != 1) fail(to.address);
    socklen_t length = sizeof address;
    auto *const place = reinterpret_cast<sockaddr *>(&address);
    if (bind(listener, place, length) != 0 || listen(listener, 1) != 0) fail("listen");
    getsockname(listener, place, &length);
    from.enter();
    const int opened = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(opened, place, length) != 0) fail("connect");
    const int accepted = accept(listener, nullptr, nullptr);
    if (accepted < 0) fail("accept");
    close(listener);
    prepare(opened);
    prepare(accepted);
    return {opened, accepted};
}

struct End {
    int to, from;
    std::vector<char> out, in;

    void exchange() {
        std::size_t sent = 0, received = 0;
        while (sent < out.size() || received < in.size()) {
            const std::size_t next = std::min(piece, out.size() - sent);
            if (next > 0) {
                const ssize_t taken = send(to, out.data() + sent, next, MSG_DONTWAIT | MSG_NOSIGNAL);
                if (taken > 0) sent += static_cast<std::size_t>(taken);
            }
            const std::size_t wanted = std::min(in.size(), sent == out.size() ? in.size() : received + piece);
            while (received < wanted) {
                const ssize_t come = recv(from, in.data() + received, wanted - received, MSG_DONTWAIT);
                if (come == 0) std::exit(0);
                if (come > 0) received += static_cast<std::size_t>(come);
                else if (sent < out.size()) break;
            }
        }
    }
};

void bind_to(unsigned core) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (unsigned number = 0, seen = 0; number < CPU_SETSIZE; ++number) {
        if (CPU_ISSET(number, &all) && seen++ == core % static_cast<unsigned>(CPU_COUNT(&all))) CPU_SET(number, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

} // namespace

int main(int argc, char **argv) {
    if (argc != 4 && argc != 8) {
        std::fprintf(stderr, "usage: exchange BYTES BATCH_SECONDS BATCHES [NETWORK ADDRESS NETWORK ADDRESS]\n");
        return 2;
    }
    const auto num_bytes = std::strtoull(argv[1], nullptr, 10);
    const double batch_seconds = std::strtod(argv[2], nullptr);
    const auto num_batches = std::strtoul(argv[3], nullptr, 10);
    const Place first = argc == 8 ? Place{argv[4], argv[5]} : Place{nullptr, "127.0.0.1"};
    const Place second = argc == 8 ? Place{argv[6], argv[7]} : first;
    const auto there = connected(first, second), back = connected(second, first);
    const pid_t child = fork();
    if (child < 0) fail("fork");
    const bool is_first = child > 0;
    End end{is_first ? there[0] : back[0], is_first ? back[1] : there[1], std::vector<char>(num_bytes, 1),
            std::vector<char>(num_bytes)};
    for (const int other : {is_first ? there[1] : there[0], is_first ? back[0] : back[1]}) close(other);
    bind_to(is_first ? 0 : 1);
    if (!is_first) {
        for (;;) end.exchange(); // until the other one ends
    }
    double begin = now();
    std::size_t num_calls = 0;
    // Pairs: over a slow link, what the end that started first waits longer in one call, it waits less in the next.
    while (num_calls < 4 || now() - begin < batch_seconds) {
        for (int i = 0; i < 2; ++i) end.exchange();
        num_calls += 2;
    }
    std::vector<double> seconds;
    for (unsigned long batch = 0; batch < num_batches; ++batch) {
        begin = now();
        for (std::size_t i = 0; i < num_calls; ++i) end.exchange();
        seconds.push_back((now() - begin) / static_cast<double>(num_calls));
    }
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    std::printf("%.9g\n", seconds[seconds.size() / 2]);
    close(end.to);
    close(end.from);
    waitpid(child, nullptr, 0);
    return 0;
}
