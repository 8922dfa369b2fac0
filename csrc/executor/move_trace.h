// Writes down each move of a run in pieces.
#pragma once

#include "executor/turns.h"
#include "trace/trace.h"

namespace hocket {

struct MoveTrace {
    Recorder *recorder = nullptr; // without one nothing is written,
    std::uint32_t lane = 0;       // and with one, here
    std::uint64_t sequence = 0;   // of the call

    /// Tries to send or to fold, and writes down what has moved.
    template <class Try> bool tried(const Launch &launch, Progress &task, const Try &try_it) const {
        if (recorder == nullptr) [[likely]]
            return try_it(task);
        const std::size_t piece = task.done, before = task.within, size = task.piece_size();
        const std::uint64_t begin = ticks();
        const bool progress = try_it(task);
        const bool is_complete = task.done > piece; // else a part of the piece has moved, or nothing
        const std::size_t after = is_complete ? size : task.within;
        if (after > before) add(launch, task, begin, piece, after - before, is_complete);
        return progress;
    }

    /// Writes down that bytes of a piece have moved since `begin`, once for each peer.
    void add(const Launch &launch, const Progress &task, std::uint64_t begin, std::size_t piece, std::size_t num_bytes,
             bool is_complete) const;
};

} // namespace hocket
