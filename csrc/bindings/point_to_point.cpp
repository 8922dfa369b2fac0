#include "point_to_point.h"

#include "blocking.h"
#include "cached_calls.h"

#include <array>
#include <cstring>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// (sends, peer, tag, address, elements, dtype); tag -1: any.
using Description = std::tuple<bool, int, std::int64_t, std::uintptr_t, std::size_t, int>;

Message message_of(const Description &description) {
    const auto &[sends, peer, tag, address, count, dtype] = description;
    Message message{.sends = sends, .peer = peer, .dtype = static_cast<Dtype>(dtype)};
    if (tag >= 0) message.tag = static_cast<std::uint64_t>(tag);
    message.data = reinterpret_cast<std::byte *>(address);
    message.num_bytes = count * size_of(message.dtype);
    return message;
}

std::vector<Message> messages_of(const std::vector<Description> &descriptions) {
    std::vector<Message> messages;
    for (const Description &description : descriptions) messages.push_back(message_of(description));
    return messages;
}

/// Hocket's own: bytes with a tag of 64 bits.
Message internal_message(bool sends, int peer, std::uint64_t tag, std::vector<std::byte> &bytes) {
    return {.sends = sends,
            .peer = peer,
            .tag = tag,
            .scope = Scope::internal,
            .dtype = Dtype::uint8,
            .data = bytes.data(),
            .num_bytes = bytes.size()};
}

using Envelope = std::pair<int, std::uint64_t>;

/// A send or receive under way, with what runs it.
struct MessageWork {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Operation> operation;
};

} // namespace

void bind_point_to_point(nb::module_ &m, nb::class_<Communicator> &communicator) {
    m.def("item_bytes", [](int dtype) { return size_of(static_cast<Dtype>(dtype)); }, "dtype"_a);

    nb::class_<MessageWork>(m, "MessageWork")
        .def(
            "wait",
            [](const MessageWork &self, double seconds) {
                const nb::gil_scoped_release release;
                return self.communicator->messages().wait(self.operation, duration(seconds), check_signals);
            },
            "seconds"_a)
        .def_prop_ro("end", [](const MessageWork &self) { return self.operation->end; })
        .def("missing",
             [](const MessageWork &self) {
                 const nb::gil_scoped_release release;
                 return self.communicator->messages().missing(*self.operation);
             })
        // Of a receive that is completed.
        .def_prop_ro("source", [](const MessageWork &self) { return self.operation->source; })
        .def_prop_ro("tag", [](const MessageWork &self) { return self.operation->found_tag; });

    communicator
        .def(
            "exchange",
            [](Communicator &self, const std::vector<Description> &descriptions, double timeout) {
                const std::vector<Message> messages = messages_of(descriptions);
                note_messages(self, messages, duration(timeout));
                std::vector<Operation> operations;
                for (const Message &message : messages) operations.emplace_back(message, duration(timeout));
                {
                    const nb::gil_scoped_release release;
                    self.messages().run(operations, check_signals);
                }
                std::vector<Envelope> envelopes;
                for (const Operation &operation : operations)
                    envelopes.emplace_back(operation.source, operation.found_tag);
                return envelopes;
            },
            "messages"_a, "timeout"_a)
        .def(
            "begin_exchange",
            [](const std::shared_ptr<Communicator> &self, const std::vector<Description> &descriptions, double timeout,
               const std::shared_ptr<Mark> &after) {
                const std::vector<Message> messages = messages_of(descriptions);
                Operations operations;
                {
                    const nb::gil_scoped_release release;
                    operations = self->messages().begin(messages, duration(timeout), after);
                }
                nb::list works;
                for (auto &operation : operations) works.append(MessageWork{self, std::move(operation)});
                return works;
            },
            "messages"_a, "timeout"_a, "after"_a.none())
        .def(
            "send_internal",
            [](Communicator &self, const nb::bytes &data, int peer, std::uint64_t tag, double timeout) {
                std::vector<std::byte> bytes(data.size());
                std::memcpy(bytes.data(), data.c_str(), data.size());
                const std::array messages{internal_message(true, peer, tag, bytes)};
                const nb::gil_scoped_release release;
                self.messages().run(messages, duration(timeout), check_signals);
            },
            "data"_a, "peer"_a, "tag"_a, "timeout"_a)
        .def(
            "receive_internal",
            [](Communicator &self, std::size_t num_bytes, int peer, std::uint64_t tag, double timeout) {
                std::vector<std::byte> bytes(num_bytes);
                const std::array messages{internal_message(false, peer, tag, bytes)};
                {
                    const nb::gil_scoped_release release;
                    self.messages().run(messages, duration(timeout), check_signals);
                }
                return nb::bytes(bytes.data(), bytes.size());
            },
            "num_bytes"_a, "peer"_a, "tag"_a, "timeout"_a);
}
