// The contract of transports, for the suite that checks it and for tests that drive an executor step by step.
#include "bindings/transports.h"

#include "transport/byte_stream.h"
#include "transport/carrier.h"
#include "transport/shm/paced.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/tcp.h"

#include <algorithm>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

using Given = nb::ndarray<const std::uint8_t, nb::c_contig>;
using Memory = nb::ndarray<std::uint8_t, nb::c_contig>;

Bytes bytes_of(const Given &array) { return {reinterpret_cast<const std::byte *>(array.data()), array.size()}; }

Way way_of(std::string_view name) {
    const auto *const found = std::ranges::find(way_names, name);
    if (found == way_names.end()) throw nb::value_error("no way has this name");
    return static_cast<Way>(found - way_names.begin());
}

nb::tuple post(Transport &self, const std::vector<int> &peers, const Given &data, std::uint32_t tag,
               std::string_view way, std::optional<Given> head, bool may_wait) {
    if (data.size() == 0) throw nb::value_error("there is nothing to post");
    if (head && head->size() > self.reach(peers).head_bytes) throw nb::value_error("the head is too long");
    const Taken taken = self.post(peers, bytes_of(data), tag,
                                  {.way = way_of(way), .head = head ? bytes_of(*head) : Bytes(), .may_wait = may_wait});
    return nb::make_tuple(taken.num_bytes, taken.lent);
}

/// What the view shows, copied as the transport copies it, and its tag.
nb::tuple view(Transport &self, int peer) {
    const View shown = self.view(peer);
    std::vector<std::byte> copy(shown.bytes.size());
    if (shown.attached && !self.copy(peer, copy.data(), copy.size())) copy.clear();
    if (!shown.attached) std::ranges::copy(shown.bytes, copy.begin());
    return nb::make_tuple(nb::bytes(copy.data(), copy.size()), shown.tag);
}

nb::bytes copy(Transport &self, int peer, std::size_t num_bytes) {
    if (num_bytes > self.view(peer).bytes.size()) throw nb::value_error("more than the view shows");
    std::vector<std::byte> found(num_bytes);
    if (!self.copy(peer, found.data(), num_bytes)) found.clear();
    return nb::bytes(found.data(), found.size());
}

/// Python knows one base of a transport, so its windows are an object of their own.
struct Side {
    Windows *windows;
};

/// One window for each array, in order.
void grant(Side &self, int peer, std::uint32_t tag, const std::vector<Memory> &arrays) {
    std::vector<Window> windows;
    for (const Memory &array : arrays) {
        windows.push_back({.order = static_cast<std::int32_t>(windows.size()),
                           .place = reinterpret_cast<std::byte *>(array.data()),
                           .num_bytes = array.size()});
    }
    self.windows->grant(peer, tag, windows);
}

} // namespace

void bind_transports(nb::module_ &module) {
    nb::class_<Window>(module, "Window").def_ro("order", &Window::order).def_ro("num_bytes", &Window::num_bytes);
    nb::class_<Side>(module, "Windows")
        .def("grant", grant, "peer"_a, "tag"_a, "arrays"_a)
        .def(
            "granted",
            [](Side &self, int peer, std::uint32_t tag, std::uint64_t num_posted) {
                const auto found = self.windows->granted(peer, tag, num_posted);
                return std::vector<Window>(found.begin(), found.end());
            },
            "peer"_a, "tag"_a, "num_posted"_a)
        .def(
            "put",
            [](Side &self, int peer, const Window &window, const Given &data, std::uint32_t tag, bool past_caches) {
                if (data.size() > window.num_bytes) throw nb::value_error("more than the window takes");
                const std::span to(&peer, 1);
                return self.windows->put(to, std::span(&window.place, 1), bytes_of(data), tag, past_caches);
            },
            "peer"_a, "window"_a, "data"_a, "tag"_a, "past_caches"_a = false)
        .def("revoke", [](Side &self) { self.windows->revoke(); })
        .def("may_be_written_by", [](Side &self, int peer) { return self.windows->may_be_written_by(peer); }, "peer"_a);

    nb::class_<Transport>(module, "Transport")
        .def(
            "reach", [](const Transport &self, const std::vector<int> &peers) { return self.reach(peers); }, "peers"_a)
        .def(
            "memory_of",
            [](Transport &self, const Given &data, const std::vector<int> &peers, bool asks_for_pages) {
                return self.memory_of(bytes_of(data), peers, asks_for_pages);
            },
            "data"_a, "peers"_a, "asks_for_pages"_a)
        .def("prepare", &Transport::prepare, "peer"_a, "num_bytes"_a)
        .def("post", post, "peers"_a, "data"_a, "tag"_a, "way"_a = "stage", "head"_a = nb::none(), "may_wait"_a = false)
        .def("posted", &Transport::posted, "peer"_a)
        .def("released", &Transport::released, "peer"_a)
        .def("view", view, "peer"_a)
        .def("copy", copy, "peer"_a, "num_bytes"_a)
        .def("release", &Transport::release, "peer"_a, "num_bytes"_a)
        .def("tell", &Transport::tell, "peer"_a, "number"_a)
        .def("told", &Transport::told, "peer"_a)
        .def("flush", &Transport::flush)
        .def(
            "until_arrival",
            [](const Transport &self) -> std::optional<double> {
                const auto left = self.until_arrival(Clock::now());
                if (left == std::chrono::nanoseconds::max()) return std::nullopt;
                return std::chrono::duration<double>(left).count();
            },
            "Seconds until something arrives that is on its way; None where nothing is.")
        .def("is_coming", &Transport::is_coming, "peer"_a)
        .def("withdraw", &Transport::withdraw)
        .def_prop_ro(
            "windows",
            [](Transport &self) -> std::optional<Side> {
                if (self.windows() == nullptr) return std::nullopt;
                return Side{self.windows()};
            },
            nb::keep_alive<0, 1>());
    nb::class_<ShmTransport, Transport>(module, "ShmTransport");
    nb::class_<PacedTransport, Transport>(module, "PacedTransport");
    nb::class_<ByteStreamTransport, Transport>(module, "ByteStreamTransport");
    nb::class_<ByteStreams>(module, "ByteStreams")
        .def(
            "__init__", [](ByteStreams *self, int num_ranks) { new (self) ByteStreams(num_ranks); }, "num_ranks"_a)
        .def(
            "endpoint",
            [](std::shared_ptr<ByteStreams> self, int rank) {
                return std::make_unique<ByteStreamTransport>(std::move(self), rank).release();
            },
            nb::rv_policy::take_ownership, "rank"_a);
    nb::class_<Connections>(module, "Connections")
        .def(
            "__init__",
            [](Connections *self, int rank, bool carry_all, int num_rails) {
                new (self) Connections(rank, carry_all, num_rails);
            },
            "rank"_a, "carry_all"_a = true, "num_rails"_a = 1)
        .def_prop_ro("descriptor", &Connections::descriptor, "Readable while connections are wanted.")
        .def(
            "take_wanted",
            [](Connections &self) {
                std::vector<std::tuple<std::uint64_t, int, int, int, int>> found;
                for (const auto &[communicator, from, to, rail] : self.take_wanted())
                    found.emplace_back(communicator, from, to, rail.number, rail.num_rails);
                return found;
            },
            "Those that are wanted, each once: communicator, from, to, rail, number of rails.")
        .def("has", &Connections::has, "communicator"_a)
        .def(
            "give",
            [](Connections &self, std::uint64_t communicator, int from, int to, int rail, int num_rails, int descriptor,
               const nb::bytes &greeting) {
                const auto *const first = static_cast<const std::byte *>(greeting.data());
                self.give({.communicator = communicator, .from = from, .to = to, .rail = {rail, num_rails}}, descriptor,
                          Bytes(first, greeting.size()));
            },
            "communicator"_a, "from_"_a, "to"_a, "rail"_a, "num_rails"_a, "descriptor"_a,
            "greeting"_a = nb::bytes("", 0), "A connection that was opened or admitted, for the core to close.");
    nb::class_<TcpTransport, Transport>(module, "TcpTransport")
        .def(
            "__init__",
            [](TcpTransport *self, Connections &connections, int num_ranks) {
                new (self) TcpTransport(connections.thread(), static_cast<std::size_t>(num_ranks), [](int) {}, [] {});
            },
            "connections"_a, "num_ranks"_a, nb::keep_alive<1, 2>())
        .def(
            "connect_to", [](TcpTransport &self, int peer, int descriptor) { self.connect_to(peer, descriptor); },
            "peer"_a, "descriptor"_a)
        .def(
            "connect_from", [](TcpTransport &self, int peer, int descriptor) { self.connect_from(peer, descriptor); },
            "peer"_a, "descriptor"_a)
        .def("end", &TcpTransport::end);
    nb::class_<Carrier, Transport>(module, "Carrier")
        .def(
            "__init__",
            [](Carrier *self, const nb::tuple &transports, std::vector<int> via) {
                std::vector<Transport *> all;
                for (const nb::handle transport : transports) all.push_back(nb::cast<Transport *>(transport));
                new (self) Carrier(std::move(all), std::move(via));
            },
            "transports"_a, "via"_a, nb::keep_alive<1, 2>(), "`via`: by rank, the place of its transport.");
}
