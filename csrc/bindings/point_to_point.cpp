#include "point_to_point.h"

#include "arrays.h"
#include "blocking.h"
#include "cached_calls.h"
#include "works.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// (sends, peer, tag, address, elements, dtype); tag -1: any.
using Description = std::tuple<bool, int, std::int64_t, std::uintptr_t, std::size_t, int>;

constexpr long long anything = -1;

/// Attributes that are looked up: interned, for good.
struct {
    nb::handle x, dst, src, tag, filled;
} names;

/// A rank or tag: a whole number from 0 to `most`, or `any` in its place if that is said. ValueError.
long long number_of(nb::handle value, long long most, const char *any, const char *name, const char *what) {
    PyObject *const index = PyLong_CheckExact(value.ptr()) ? Py_NewRef(value.ptr()) : PyNumber_Index(value.ptr());
    if (index == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
    PyErr_Clear();
    int overflow = index == nullptr ? 1 : 0;
    const long long number = index == nullptr ? 0 : PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_XDECREF(index);
    const bool is_any = any != nullptr && number == anything;
    if (overflow == 0 && (is_any || (number >= 0 && number <= most))) return number;
    const std::string or_any = any == nullptr ? "" : std::string(" or hocket.") + any;
    PyErr_Format(PyExc_ValueError, "%s: expected %s from 0 to %lld%s, found %R", name, what, most, or_any.c_str(),
                 value.ptr());
    throw nb::python_error();
}

/// `x_name`: what the array is called there. TypeError, ValueError.
nb::tuple describe_message(bool sends, nb::handle x, nb::handle peer, nb::handle tag, int num_ranks, const char *name,
                           const char *x_name) {
    const nb::tuple array = describe(x, !sends, (std::string(name) + ": " + x_name).c_str());
    const char *const any_source = sends ? nullptr : "ANY_SOURCE", *const any_tag = sends ? nullptr : "ANY_TAG";
    const auto rank = number_of(peer, num_ranks - 1, any_source, name, sends ? "dst" : "src");
    const auto tag_number = number_of(tag, Matcher::max_user_tag, any_tag, name, "tag");
    return nb::make_tuple(sends, rank, tag_number, array[0], array[1], array[2]);
}

/// What `batch` takes: descriptions and arrays of a list of Send and Recv. TypeError, ValueError.
nb::tuple describe_batch(const nb::list &group, nb::handle send, nb::handle recv, int num_ranks) {
    nb::list descriptions, arrays;
    for (std::size_t number = 0; number < nb::len(group); ++number) { // its attributes may run Python, which may cut it
        const nb::object one = group[number];
        const std::string name = "batch: message " + std::to_string(number);
        const bool sends = nb::isinstance(one, send);
        if (!sends && !nb::isinstance(one, recv)) {
            const auto type = nb::cast<std::string>(one.type().attr("__name__"));
            throw nb::type_error((name + " is a " + type + "; expected hocket.Send or hocket.Recv").c_str());
        }
        const nb::object x = nb::getattr(one, names.x), peer = nb::getattr(one, sends ? names.dst : names.src),
                         tag = nb::getattr(one, names.tag);
        if (nb::hasattr(x.type(), names.filled)) // which runs none of the program's code
            nb::module_::import_("hocket.runtime.arguments").attr("check_unmasked")(name + ": x", x);
        descriptions.append(describe_message(sends, x, peer, tag, num_ranks, name.c_str(), "x"));
        arrays.append(x);
    }
    return nb::make_tuple(descriptions, arrays);
}

/// ValueError where what is received shares memory with anything else.
void check_apart(const char *name, const std::vector<Description> &descriptions) {
    std::vector<std::tuple<std::uintptr_t, std::uintptr_t, bool>> spans; // begin, end, received
    for (const auto &[sends, peer, tag, address, count, dtype] : descriptions) {
        if (count > 0) spans.emplace_back(address, address + count * size_of(static_cast<Dtype>(dtype)), !sends);
    }
    std::ranges::sort(spans);
    std::uintptr_t end = 0, end_received = 0;
    for (const auto &[begin, behind, is_received] : spans) {
        if (begin < (is_received ? end : end_received)) {
            const std::string text =
                std::string(name) + ": what is received overlaps other memory of the call; pass arrays that share none";
            throw nb::value_error(text.c_str());
        }
        end = std::max(end, behind);
        if (is_received) end_received = std::max(end_received, behind);
    }
}

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

} // namespace

void bind_point_to_point(nb::module_ &m, nb::class_<Communicator> &communicator) {
    const auto interned = [](const char *text) { return nb::handle(PyUnicode_InternFromString(text)); };
    names = {interned("x"), interned("dst"), interned("src"), interned("tag"), interned("filled")};
    m.def("describe_message", &describe_message, "sends"_a, "x"_a.none(), "peer"_a.none(), "tag"_a.none(),
          "num_ranks"_a, "name"_a, "x_name"_a);
    m.def("describe_batch", &describe_batch, "group"_a, "send"_a, "recv"_a, "num_ranks"_a);
    m.def("check_apart", &check_apart, "name"_a, "messages"_a);

    nb::class_<MessageWork>(m, "MessageWork")
        .def(
            "wait",
            [](const MessageWork &self, double seconds) {
                const nb::gil_scoped_release release;
                return self.communicator->messages().wait(self.operation, duration(seconds), check_signals);
            },
            "seconds"_a)
        // As of the mark of its end, which is made an object of its own where a stream asks for it.
        .def("is_passed", [](const MessageWork &self) { return self.operation->end->is_passed(); })
        .def("exception", [](const MessageWork &self) { return exception_of(self.operation->end->failure()); })
        .def("on_host", [](const MessageWork &self) { return self.operation->end; })
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
               const std::shared_ptr<Mark> &after, nb::list works) {
                const std::vector<Message> messages = messages_of(descriptions);
                if (messages.size() == 1 && !after) note_begun(self, messages.front(), duration(timeout));
                Operations operations;
                {
                    const nb::gil_scoped_release release;
                    operations = self->messages().begin(messages, duration(timeout), after);
                }
                for (auto &operation : operations) works.append(MessageWork{self, std::move(operation)});
            },
            "messages"_a, "timeout"_a, "after"_a.none(), "works"_a,
            "Adds their handles to `works`, where an interrupt that follows leaves them.")
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
