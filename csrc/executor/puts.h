// Puts: a copy of a message may be done by its sender, which writes the piece while it is hot in its cache.
//
// Law 3 orders the copy behind what conflicts with it on the rank that receives, by dependencies alone; granted is only
// what has none, or one: its own send of what lies there, to the very peer that shall write. That peer writes piece k
// when it has folded piece k of that message, so the only access that had to come before the copy has come. Whatever
// has to come after it waits for the copy as ever, which the receiver counts as done when the message is there.
#pragma once

#include "executor/turns.h"

#include <optional>
#include <span>
#include <vector>

namespace hocket {

class Puts {
  public:
    Puts(const BoundPlan &bound, Transport &transport, const Turns &turns)
        : bound_(bound), transport_(transport), turns_(turns) {}

    /// At the beginning and at the end of a run.
    void grant();
    void revoke();

    /// Whether all peers let this rank write what is left of the piece at hand. `folding`: may be folding this piece
    /// just now, element by element before it is written.
    bool find_places(Progress &task, const Progress *folding = nullptr);
    /// Where, as found last.
    std::span<std::byte *const> places() const { return places_; }

  private:
    std::optional<Progress::Place> find_place(const Progress &task, std::size_t index) const;

    const BoundPlan &bound_;
    Transport &transport_;
    const Turns &turns_;
    std::vector<std::byte *> places_;
    std::vector<Window> granting_; // the windows at hand
    bool has_granted_ = false;
};

} // namespace hocket
