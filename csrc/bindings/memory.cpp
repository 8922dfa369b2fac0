#include "bindings/memory.h"

#include "streams/stream.h"
#include "transport/shm/arena.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <stdexcept>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// Of an arena; frees itself.
struct Range {
    Range(std::shared_ptr<Arena> its_arena, std::size_t num_bytes)
        : arena(std::move(its_arena)), offset(arena->allocate(num_bytes)) {}
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
    ~Range() { arena->free(offset); }

    std::shared_ptr<Arena> arena;
    std::size_t offset;
};

/// Keeps memory until a stream has come here.
class Keep final : public Task {
  public:
    explicit Keep(std::shared_ptr<Range> range) : range_(std::move(range)) {}
    void run() override {}

  private:
    std::shared_ptr<Range> range_;
};

/// What an array of hocket.empty() shows. When the last one is gone its memory may be used again, once the streams that
/// were recorded on it have passed.
class Block;
std::map<std::uintptr_t, Block *> blocks; // by address; guarded by the interpreter lock, as they are

class Block {
  public:
    Block(const std::shared_ptr<Arena> &arena, std::size_t num_bytes)
        : range_(std::make_shared<Range>(arena, num_bytes)), num_bytes_(num_bytes) {
        blocks[address()] = this;
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    ~Block() {
        blocks.erase(address());
        for (const nb::object &object : streams_) {
            auto &stream = nb::cast<Stream &>(object);
            try {
                if (!stream.is_idle()) stream.submit(std::make_unique<Keep>(range_));
            } catch (const std::exception &) { // in a forked child; or the process ends, and with it all streams
            }
        }
    }

    std::byte *data() const { return range_->arena->mapping()->base() + range_->offset; }
    bool contains(std::uintptr_t at) const { return at - address() < std::max<std::size_t>(num_bytes_, 1); }
    void record(nb::object stream) {
        if (std::ranges::none_of(streams_, [&stream](const nb::object &one) { return one.is(stream); }))
            streams_.push_back(std::move(stream));
    }

  private:
    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data()); }

    std::shared_ptr<Range> range_;
    std::size_t num_bytes_;
    std::vector<nb::object> streams_;
};

nb::object allocate(const std::shared_ptr<Arena> &arena, std::size_t num_bytes) {
    auto block = std::make_unique<Block>(arena, num_bytes);
    std::byte *const data = block->data();
    const nb::capsule owner(block.release(), [](void *pointer) noexcept { delete static_cast<Block *>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {num_bytes}, owner));
}

} // namespace

void bind_memory(nb::module_ &m) {
    nb::class_<Arena>(m, "Arena")
        .def(
            "__init__", [](Arena *self, std::size_t capacity) { new (self) Arena(capacity); }, "capacity"_a)
        .def_prop_ro("descriptor", &Arena::descriptor)
        .def_prop_ro("num_bytes", [](const Arena &self) { return self.mapping()->num_bytes(); })
        .def("allocate", &allocate, "num_bytes"_a);
    m.def(
        "record_stream",
        [](std::uintptr_t address, nb::object stream) {
            auto at = blocks.upper_bound(address);
            if (at == blocks.begin() || !(--at)->second->contains(address)) return false;
            at->second->record(std::move(stream));
            return true;
        },
        "address"_a, "stream"_a, "Returns False for memory that is in no arena.");
}
