// Chooses the kernel for a call.
#pragma once

#include "any_pose.hpp"
#include "few_rows.hpp"
#include "many_rows.hpp"
#include "outcome.hpp"

namespace {

enum Pass { kMoments, kScores, kFlow, kPassOn };

template <typename Kernel>
void run_kernel(const Call& call, Pass pass) {
  const Kernel kernel(call);
  if (pass == kMoments) return kernel.moments();
  if (pass == kFlow) return kernel.flow();
  if (pass == kPassOn) return kernel.pass_on();
  if constexpr (requires { kernel.scores(); }) kernel.scores();
}

template <typename T, int P, int D>
Outcome run_vectors(const Call& call, Pass pass) {
  if (!FewRows<T, P, D>::suits(call)) return run_kernel<ManyRows<T, P, D>>(call, pass), kDone;
  run_kernel<FewRows<T, P, D>>(call, pass);
  return call.votes && pass == kMoments ? kKept : kDone;
}

template <typename T>
Outcome run(const Call& call, Pass pass) {
  const bool scores = pass == kScores || call.grad_scores;
  constexpr bool single = std::is_same_v<T, float>;
  if (!scores && VectorCall<T, 0, 0>::suits(call)) {
    if constexpr (single) {
      if (call.P == 8 && call.D == 16) return run_vectors<T, 8, 16>(call, pass);
      if (call.P == 16 && call.D == 16) return run_vectors<T, 16, 16>(call, pass);
    }
    return run_vectors<T, 0, 0>(call, pass);
  }
  if constexpr (single) {
    if (call.M == 4 && call.P == 4 && call.D == 4) return run_kernel<AnyPose<float, 4, 4, 4>>(call, pass), kDone;
  }
  return run_kernel<AnyPose<T, 0, 0, 0>>(call, pass), kDone;
}

}  // namespace
