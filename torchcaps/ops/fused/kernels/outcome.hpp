// What a call of the library returns.
#pragma once

#include <cstdint>
#include <new>

namespace {

// Nothing done, a site lies outside the children; done; done, and the votes are kept; no memory.
enum Outcome : int64_t { kOutside, kDone, kKept, kNoMemory };

template <typename Work>
Outcome guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

}  // namespace
