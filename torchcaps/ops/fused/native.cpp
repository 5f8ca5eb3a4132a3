// The routing primitive on a CPU: forward and backward without storing a vote.
//
// The formulas are those of torchcaps/ops/chunked/moments.py. Symbols: rows B (images x windows), children I, parents J, pose
// rows M, child dimension P, parent dimension D, H = M * D.

#include "kernels/agreement.hpp"

namespace {

bool within(const Call& call) {
  const auto outside = [&](int32_t site) { return site < 0 || site >= call.grid; };
  return !call.sites || std::none_of(call.sites, call.sites + call.windows * call.I, outside);
}

bool empty(const Call& call) { return call.J == 0 || call.images == 0 || call.windows == 0; }

// If a site is not the index of a child, nothing is done.
template <typename Work>
Outcome checked(const Call& call, const Work& work) {
  if (!within(call)) return kOutside;
  if (empty(call)) return kDone;
  return guarded(work);
}

}  // namespace

extern "C" int64_t torchcaps_run(const TorchcapsCall* call, int64_t pass_number, int64_t is_double) {
  const Pass pass = static_cast<Pass>(pass_number);
  return checked(*call, [&] { return is_double ? run<double>(*call, pass) : run<float>(*call, pass); });
}

extern "C" int64_t torchcaps_agree(const TorchcapsCall* call, const TorchcapsAgreement* agreement, int64_t back, int64_t is_double) {
  return checked(*call, [&] {
    return is_double ? Agreement<double>(*call, *agreement).run(back) : Agreement<float>(*call, *agreement).run(back);
  });
}

extern "C" int64_t torchcaps_vector_bytes() { return kVectorBytes; }
