#include "bindings/calls/point_to_point.h"

#include "bindings/calls/cached_calls.h"
#include "bindings/calls/works.h"
#include "bindings/python/arrays.h"
#include "bindings/python/blocking.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

constexpr long long anything = -1; // a rank or a tag

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

/// Messages that begin together, as a call of Python gives them.
class MessageGroup {
  public:
    /// `resizable`: a set of types whose memory moves when they grow, unless a view holds it.
    MessageGroup(int num_ranks, nb::object resizable) : num_ranks_(num_ranks), resizable_(std::move(resizable)) {}

    /// `x_name`: what the array is called there. TypeError, ValueError.
    void add(bool sends, nb::object x, nb::handle peer, nb::handle tag, const char *name, const char *x_name) {
        const std::string what = std::string(name) + ": " + x_name;
        if (is_masked(x)) nb::module_::import_("hocket.runtime").attr("check_unmasked")(what, x);
        const char *const any_source = sends ? nullptr : "ANY_SOURCE", *const any_tag = sends ? nullptr : "ANY_TAG";
        const auto rank = number_of(peer, num_ranks_ - 1, any_source, name, sends ? "dst" : "src");
        const auto tag_number = number_of(tag, Matcher::max_user_tag, any_tag, name, "tag");
        const Array array = array_of(x, !sends, what.c_str()); // at last: numbers may be objects of the program
        Message message{.sends = sends, .peer = static_cast<int>(rank), .dtype = array.dtype};
        if (tag_number != anything) message.tag = static_cast<std::uint64_t>(tag_number);
        message.data = reinterpret_cast<std::byte *>(array.address);
        message.num_bytes = array.count * size_of(array.dtype);
        messages_.push_back(message);
        arrays_.push_back(std::move(x));
    }

    /// A part of an object. No array of the program matches it. ValueError for a bad peer, TypeError.
    void add_object(bool sends, nb::object x, nb::handle peer, std::uint64_t tag, const char *name) {
        const auto rank = number_of(peer, num_ranks_ - 1, sends ? nullptr : "ANY_SOURCE", name, sends ? "dst" : "src");
        const Array array = array_of(x, !sends, name);
        messages_.push_back({.sends = sends,
                             .peer = static_cast<int>(rank),
                             .tag = tag,
                             .scope = Scope::objects,
                             .dtype = array.dtype,
                             .data = reinterpret_cast<std::byte *>(array.address),
                             .num_bytes = array.count * size_of(array.dtype)});
        arrays_.push_back(std::move(x));
    }

    /// What `batch` takes: a list of Send and Recv. TypeError, ValueError.
    void add_all(const nb::list &given, nb::handle send, nb::handle recv) {
        for (std::size_t number = 0; number < nb::len(given); ++number) { // looking may run Python, which may cut it
            const nb::object one = given[number];
            const std::string name = "batch: message " + std::to_string(number);
            const bool sends = nb::isinstance(one, send);
            if (!sends && !nb::isinstance(one, recv)) {
                const auto type = nb::cast<std::string>(one.type().attr("__name__"));
                throw nb::type_error((name + " is a " + type + "; expected hocket.Send or hocket.Recv").c_str());
            }
            const nb::object x = nb::getattr(one, names.x), peer = nb::getattr(one, sends ? names.dst : names.src),
                             tag = nb::getattr(one, names.tag);
            add(sends, x, peer, tag, name.c_str(), "x");
        }
    }

    /// ValueError where what is received shares memory with anything else.
    void check_apart(const char *name) const {
        std::vector<std::tuple<const std::byte *, const std::byte *, bool>> spans; // begin, end, received
        for (const Message &one : messages_) {
            if (one.num_bytes > 0) spans.emplace_back(one.data, one.data + one.num_bytes, !one.sends);
        }
        std::ranges::sort(spans);
        const std::byte *end = nullptr, *end_received = nullptr;
        for (const auto &[begin, behind, is_received] : spans) {
            if (begin < (is_received ? end : end_received)) {
                const std::string text =
                    std::string(name) +
                    ": a receive buffer overlaps other memory of the call; pass arrays that share none";
                throw nb::value_error(text.c_str());
            }
            end = std::max(end, behind);
            if (is_received) end_received = std::max(end_received, behind);
        }
    }

    const std::vector<Message> &messages() const { return messages_; }
    /// Of each the array and what holds its memory, or None; and whether it is received.
    nb::list arrays() const {
        nb::list found;
        for (std::size_t at = 0; at < messages_.size(); ++at)
            found.append(nb::make_tuple(nb::make_tuple(arrays_[at], view_of(arrays_[at])), !messages_[at].sends));
        return found;
    }
    /// What holds the memory of all.
    std::vector<nb::object> views() const {
        std::vector<nb::object> found;
        for (const nb::object &x : arrays_) found.push_back(view_of(x));
        return found;
    }

    /// None of each send, (x, source, tag) of each receive: `found(at)` has the latter two.
    template <typename Found> nb::list results(const Found &found) const {
        nb::list results;
        for (std::size_t at = 0; at < messages_.size(); ++at) {
            if (messages_[at].sends) results.append(nb::none());
            else results.append(std::apply([&](auto... is) { return nb::make_tuple(arrays_[at], is...); }, found(at)));
        }
        return results;
    }

  private:
    /// What is not there takes an exception to find, so of objects that have no attributes but their type's one is
    /// asked.
    bool is_masked(nb::handle x) {
        if (x.type().is(unmasked_)) return false;
        if (nb::hasattr(x, names.filled)) return true;
        const PyTypeObject *const type = Py_TYPE(x.ptr());
        if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset == 0) unmasked_ = nb::borrow(x.type());
        return false;
    }

    /// None of memory that does not move as it grows.
    nb::object view_of(const nb::object &x) const {
        const int is_resizable = PySet_Contains(resizable_.ptr(), x.type().ptr());
        if (is_resizable < 0) throw nb::python_error();
        return is_resizable == 0 ? nb::none() : nb::steal(PyMemoryView_FromObject(x.ptr()));
    }

    int num_ranks_;
    nb::object resizable_, unmasked_; // the latter a type of arrays
    std::vector<Message> messages_;
    std::vector<nb::object> arrays_;
};

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

} // namespace

void bind_point_to_point(nb::module_ &m, nb::class_<Communicator> &communicator) {
    const auto interned = [](const char *text) { return nb::handle(PyUnicode_InternFromString(text)); };
    names = {interned("x"), interned("dst"), interned("src"), interned("tag"), interned("filled")};
    nb::class_<MessageGroup>(m, "MessageGroup")
        .def(nb::init<int, nb::object>(), "num_ranks"_a, "resizable"_a)
        .def("add", &MessageGroup::add, "sends"_a, "x"_a.none(), "peer"_a.none(), "tag"_a.none(), "name"_a, "x_name"_a)
        .def("add_object", &MessageGroup::add_object, "sends"_a, "x"_a, "peer"_a.none(), "tag"_a, "name"_a)
        .def("add_all", &MessageGroup::add_all, "messages"_a, "send"_a, "recv"_a)
        .def("check_apart", &MessageGroup::check_apart, "name"_a)
        .def("arrays", &MessageGroup::arrays)
        .def(
            "results_as_asked",
            [](const MessageGroup &self) {
                return self.results([&](std::size_t at) {
                    const Message &asked = self.messages()[at];
                    return std::pair(asked.peer, asked.tag ? static_cast<long long>(*asked.tag) : anything);
                });
            },
            "Returns the results of receives that have not begun.");

    nb::class_<MessageWork>(m, "MessageWork")
        .def(
            "wait",
            [](const MessageWork &self, double seconds) {
                const WithoutLock release;
                return self.communicator->messages().wait(self.operation, duration(seconds), check_signals);
            },
            "seconds"_a)
        // As of the mark of its end, which is made an object of its own where a stream asks for it.
        .def("is_passed", [](const MessageWork &self) { return self.operation->end->is_passed(); })
        .def("exception", [](const MessageWork &self) { return exception_of(self.operation->end->failure()); })
        .def("on_host", [](const MessageWork &self) { return self.operation->end; })
        .def("missing",
             [](const MessageWork &self) {
                 const WithoutLock release;
                 return self.communicator->messages().missing(*self.operation);
             })
        .def("found_instead",
             [](const MessageWork &self) {
                 const WithoutLock release;
                 return self.communicator->messages().found_instead(*self.operation);
             })
        // Of a receive that is completed.
        .def_prop_ro("source", [](const MessageWork &self) { return self.operation->source; })
        .def_prop_ro("tag", [](const MessageWork &self) { return self.operation->found_tag; });

    communicator
        .def(
            "exchange",
            [](Communicator &self, const MessageGroup &group, double timeout) {
                note_messages(self, group.messages(), duration(timeout));
                std::vector<Operation> operations;
                operations.reserve(group.messages().size());
                for (const Message &message : group.messages()) operations.emplace_back(message, duration(timeout));
                const std::vector<nb::object> held = group.views();
                {
                    const WithoutLock release;
                    self.messages().run(operations, check_signals);
                }
                return group.results(
                    [&](std::size_t at) { return std::pair(operations[at].source, operations[at].found_tag); });
            },
            "group"_a, "timeout"_a)
        .def(
            "begin_exchange",
            [](const std::shared_ptr<Communicator> &self, const MessageGroup &group, double timeout,
               const std::shared_ptr<Mark> &after, nb::list works) {
                const std::vector<Message> &messages = group.messages();
                if (messages.size() == 1 && !after) note_begun(self, messages.front(), duration(timeout));
                Operations operations;
                {
                    const WithoutLock release;
                    operations = self->messages().begin(messages, duration(timeout), after);
                }
                for (auto &operation : operations) works.append(MessageWork{self, std::move(operation)});
            },
            "group"_a, "timeout"_a, "after"_a.none(), "works"_a,
            "Adds their handles to `works`; a later interrupt leaves them there.")
        .def(
            "send_internal",
            [](Communicator &self, const nb::bytes &data, int peer, std::uint64_t tag, double timeout) {
                std::vector<std::byte> bytes(data.size());
                std::memcpy(bytes.data(), data.c_str(), data.size());
                const std::array messages{internal_message(true, peer, tag, bytes)};
                const WithoutLock release;
                self.messages().run(messages, duration(timeout), check_signals);
            },
            "data"_a, "peer"_a, "tag"_a, "timeout"_a)
        .def(
            "receive_internal",
            [](Communicator &self, std::size_t num_bytes, int peer, std::uint64_t tag, double timeout) {
                std::vector<std::byte> bytes(num_bytes);
                const std::array messages{internal_message(false, peer, tag, bytes)};
                {
                    const WithoutLock release;
                    self.messages().run(messages, duration(timeout), check_signals);
                }
                return nb::bytes(bytes.data(), bytes.size());
            },
            "num_bytes"_a, "peer"_a, "tag"_a, "timeout"_a);
}
