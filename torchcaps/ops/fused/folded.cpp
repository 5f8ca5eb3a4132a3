// Routing by inner products where places share their transforms: no vote is formed, see torchcaps/ops/folded.py. Apart from
// native.cpp, so that both are compiled at once.

#include "kernels/folded_routing.hpp"
#include "kernels/outcome.hpp"

extern "C" int64_t torchcaps_folded(const TorchcapsFolded* call, int64_t back, int64_t is_double) {
  return guarded([&] {
    // Poses in registers are never standardised: those that are take the pass for any number.
    const int64_t numbers = call->epsilon < 0 ? call->Q : 0;
    const auto run = [&](auto number) {
      for_pose<decltype(number)>(numbers, [&](auto Q) { run_folded<decltype(number), Q>(*call, back); });
    };
    is_double ? run(double{}) : run(float{});
    return kDone;
  });
}

// The numbers that a routing keeps for its pass back.
extern "C" int64_t torchcaps_folded_kept(const TorchcapsFoldedRouting* call, int64_t is_double) {
  const auto kept = [&](auto number) {
    return for_pose<decltype(number)>(call->M * call->P, [&](auto Q) { return FoldedRouting<decltype(number), Q>(*call).kept(); });
  };
  return is_double ? kept(double{}) : kept(float{});
}

extern "C" int64_t torchcaps_folded_routing(const TorchcapsFoldedRouting* call, int64_t back, int64_t is_double) {
  return guarded([&] {
    const auto run = [&](auto number) {
      for_pose<decltype(number)>(call->M * call->P, [&](auto Q) {
        const FoldedRouting<decltype(number), Q> routing(*call);
        back ? routing.backward() : routing.forward();
      });
    };
    is_double ? run(double{}) : run(float{});
    return kDone;
  });
}
