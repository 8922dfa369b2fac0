#include "executor/remote.h"

#include "base/error.h"

#include <algorithm>

namespace hocket {

void Remote::clear() {
    carry_.clear();
    used_ = 0;
}

View Remote::gather(Transport &transport, std::uint32_t tag, std::size_t element, bool may_be_attached,
                    bool &progress) {
    const auto whole = [element](std::size_t num_bytes) { return num_bytes & ~(element - 1); };
    for (;;) {
        const std::size_t held = carry_.size() - used_;
        if (held >= element) return {.bytes = Bytes(carry_).subspan(used_, whole(held))};
        View view = transport.view(peer_);
        if (view.bytes.empty()) return {};
        if (view.tag != tag) throw ForeignMessage{peer_, view.tag};
        if (view.attached && !may_be_attached) {
            throw Failure::internal("member " + std::to_string(peer_) +
                                    " lends to a fold memory that only a copy can read");
        }
        if (held == 0 && view.bytes.size() >= element) {
            view.bytes = view.bytes.first(whole(view.bytes.size()));
            return view;
        }
        if (!carry_over(transport, std::min(element - held, view.bytes.size()))) return {};
        progress = true;
    }
}

bool Remote::make_room(Transport &transport, std::uint32_t tag, std::size_t num_left) {
    const View view = transport.view(peer_);
    const std::size_t held = carry_.size() - used_, missing = num_left - held;
    if (view.bytes.empty() || missing == 0) return false; // with nothing missing, the peer may show its next call
    if (view.tag != tag) throw ForeignMessage{peer_, view.tag};
    if (held == 0 && view.bytes.size() + view.num_coming >= missing) return false;
    return carry_over(transport, std::min(missing, view.bytes.size()));
}

void Remote::release(Transport &transport, std::size_t num_bytes) {
    if (carry_.empty()) transport.release(peer_, num_bytes);
    else if ((used_ += num_bytes) == carry_.size()) clear();
}

bool Remote::carry_over(Transport &transport, std::size_t num_bytes) {
    const std::size_t held = carry_.size();
    carry_.resize(held + num_bytes);
    if (!transport.copy(peer_, carry_.data() + held, num_bytes)) {
        carry_.resize(held);
        return false;
    }
    transport.release(peer_, num_bytes);
    return true;
}

} // namespace hocket
