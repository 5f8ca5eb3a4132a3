// All steps of routing by agreement in one call: R = softmax_j <alpha_t, V_ij>, s_t = sum_i R_ij V_ij + bias,
// v_t = n / (c + n^2) s_t with n = |s_t|, and alpha_{t+1} = alpha_t + v_t from alpha_0 = 0, or v_t alone without `accumulate`.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "passes.hpp"

// Mirrored in torchcaps/ops/fused/passes.py. Fields of the parents are [B, J, H]; those not there are null.
struct TorchcapsAgreement {
  int64_t steps, accumulate;
  double constant;  // c
  const void* bias;  // [J, H]
  // Forward: s_t of all steps; alpha_t of all steps but the first and the last; alpha_t and v_t of the last. Where no backward
  // pass follows, the first two are null.
  void *sums, *alphas, *alpha, *pose;
  // Backward: upstream gradients; gradients of s_t and of the bias; and the coefficients of all steps, `room` numbers each,
  // but in the first step, where all parents share them, room / J.
  const void *grad_alpha, *grad_pose;
  void *grad_sums, *grad_bias, *coefficients;
  int64_t room;
};

namespace {

template <typename T>
struct Agreement {
  Call call;
  TorchcapsAgreement a;
  const int64_t J, H, last, numbers;

  Agreement(const Call& call, const TorchcapsAgreement& a)
      : call(call), a(a), J(call.J), H(call.M * call.D), last(a.steps - 1), numbers(call.images * call.windows * J * H) {}

  Outcome run(bool back) {
    if (back) return backward(), kDone;
    return forward();
  }

 private:
  using V = Vec<T>;
  static T* writable(void* tensor) { return static_cast<T*>(tensor); }
  static const T* readable(const void* tensor) { return static_cast<const T*>(tensor); }
  T* sums(int64_t t) const { return writable(a.sums) + t * numbers; }
  T* grad_sums(int64_t t) const { return writable(a.grad_sums) + t * numbers; }
  T* alpha(int64_t t) const { return t == last ? writable(a.alpha) : writable(a.alphas) + (t - 1) * numbers; }

  // Whether votes of few rows are kept from pass to pass, as in Kept of passes.py.
  bool keeps() const { return call.M == 1 && !call.sites && call.images < call.P && call.images <= Rows<T>::kFew; }
  int64_t vectors_of_votes() const { return (call.I * numbers + Lanes<T>::count - 1) / Lanes<T>::count; }

  // The call for the passes of one step, that is for all passes but the last, which is for all steps together.
  Call step(int64_t t) const {
    Call step = call;
    step.grad_children = step.grad_transforms = step.grad_coordinates = nullptr;
    step.similarity = t ? kInnerProduct : kUniform;
    step.parents = t ? alpha(t) : nullptr;
    return step;
  }

  Outcome forward() {
    std::unique_ptr<T[]> steps;
    std::unique_ptr<V[]> votes;
    if (!a.sums) {
      steps.reset(new T[2 * a.steps * numbers]);
      a.sums = steps.get(), a.alphas = steps.get() + a.steps * numbers;
      if (keeps()) votes.reset(new V[vectors_of_votes()]);
      call.votes = votes.get();
    }
    std::vector<T> mass(numbers / H);
    for (int64_t t = 0; t <= last; ++t) {
      Call pass = step(t);
      pass.mass = mass.data(), pass.sum = sums(t);
      if (::run<T>(pass, kMoments) == kKept) call.formed = true;
      T* const to = t == last ? writable(a.pose) : alpha(t + 1);
      const T* const before = t && t < last && a.accumulate ? alpha(t) : nullptr;
      each_pose([&](int64_t at) { squash(at % (J * H), sums(t) + at, before ? before + at : nullptr, to + at); });
    }
    return call.formed ? kKept : kDone;
  }

  // From the last step to the first. If poses accumulate, the gradient of alpha_{t+1} is a part of that of alpha_t.
  void backward() {
    const std::vector<T> none(numbers / H);  // no gradient flows into the masses
    std::vector<T> flowing(numbers), later(numbers);
    std::vector<TorchcapsTerm> terms;
    T* coefficient = writable(a.coefficients);
    const auto room = [&](int64_t count) { return coefficient ? std::exchange(coefficient, coefficient + count) : nullptr; };
    for (int64_t t = last; t >= 0; --t) {
      const T* const upstream = t == last ? readable(a.grad_pose) : later.data();
      each_pose([&](int64_t at) { squash_back(sums(t) + at, upstream ? upstream + at : nullptr, grad_sums(t) + at); });
      Call pass = step(t);
      pass.mass = const_cast<T*>(none.data()), pass.sum = grad_sums(t);
      pass.shares = room(t ? a.room : a.room / J);
      if (pass.shares) terms.push_back({pass.shares, grad_sums(t), nullptr, nullptr, nullptr, t ? J : 1});
      if (t) {
        pass.flow = room(a.room);
        if (pass.flow) terms.push_back({pass.flow, pass.parents, nullptr, nullptr, nullptr, J});
        pass.grad_parents = flowing.data();
        const T* const more = t == last ? readable(a.grad_alpha) : a.accumulate ? later.data() : nullptr;
        ::run<T>(pass, kFlow);
        for (int64_t n = 0; n < numbers && more; ++n) flowing[n] += more[n];
        std::swap(flowing, later);
      } else if (pass.shares) {
        ::run<T>(pass, kFlow);
      }
    }
    if (a.grad_bias) add_up();
    if (!a.coefficients) return;
    Call pass = call;
    pass.votes = nullptr, pass.formed = false;
    pass.terms = terms.data(), pass.count = static_cast<int64_t>(terms.size());
    ::run<T>(pass, kPassOn);
  }

  template <typename Work>
  void each_pose(const Work& work) const {
    parallel_for(call.threads, numbers / H, std::max<int64_t>(1, 16384 / H), [&](int64_t first, int64_t end) {
      for (int64_t pose = first; pose < end; ++pose) work(pose * H);
    });
  }

  void squash(int64_t parent, T* s, const T* before, T* to) const {
    if (const T* bias = readable(a.bias))
      for (int64_t h = 0; h < H; ++h) s[h] += bias[parent + h];
    const T squared = dot(s, s), factor = std::sqrt(squared) / (T(a.constant) + squared);
    for (int64_t h = 0; h < H; ++h) to[h] = (before ? before[h] : T(0)) + s[h] * factor;
  }

  // The gradient g u + g' <s, u> s / n, with g = n / (c + n^2) and the upstream gradient u.
  void squash_back(const T* s, const T* upstream, T* out) const {
    if (!upstream) return std::fill_n(out, H, T(0)), void();
    const T squared = dot(s, s), n = std::sqrt(squared), part = T(1) / (T(a.constant) + squared), factor = n * part;
    const T slope = part * (2 * T(a.constant) * part - 1);
    const T along = n == 0 ? T(0) : slope * dot(s, upstream) / n;
    for (int64_t h = 0; h < H; ++h) out[h] = factor * upstream[h] + along * s[h];
  }

  T dot(const T* x, const T* y) const {
    constexpr int kSums = 8;  // independent ones, so that no addition waits for the one before
    T sums[kSums] = {};
    int64_t h = 0;
    for (; h + kSums <= H; h += kSums)
      for (int k = 0; k < kSums; ++k) sums[k] += x[h + k] * y[h + k];
    for (; h < H; ++h) sums[h % kSums] += x[h] * y[h];
    for (int width = kSums / 2; width; width /= 2)
      for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
    return sums[0];
  }

  void add_up() const {
    T* bias = writable(a.grad_bias);
    std::fill_n(bias, J * H, T(0));
    for (int64_t n = 0; n < a.steps * numbers; ++n) bias[n % (J * H)] += grad_sums(0)[n];
  }
};

}  // namespace
