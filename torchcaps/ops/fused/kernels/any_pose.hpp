// Poses of any shape, all similarities, with or without scatter: each vote is formed in registers whenever it is used.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.hpp"

namespace {

template <typename T, int M_, int P_, int D_>
class AnyPose : Rows<T> {
  using Base = Rows<T>;
  using typename Base::V;
  using Base::blocks, Base::call, Base::I, Base::J, Base::kLanes, Base::readable, Base::rows, Base::writable;
  static constexpr bool kKnown = M_ > 0;
  static constexpr int kPose = kKnown ? M_ * D_ : 1;
  static constexpr int kForwardChildren = Base::kTogether;
  static constexpr int kBackwardChildren = 8;
  static constexpr int kBackwardBlocks = 2;  // vectors of rows over which a transform's gradient is added up

 public:
  explicit AnyPose(const Call& call) : Base(call), M(call.M), P(call.P), D(call.D), H(M * D) {}

  void moments() const {
    parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
      Forward work(*this);
      for (int64_t block = first; block < last; ++block) work.moments(block * kLanes);
    });
  }

  void scores() const {
    parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
      Forward work(*this);
      for (int64_t block = first; block < last; ++block) work.scores(block * kLanes);
    });
  }

  // Windows of one image share children: a task has whole images. Sums over all rows are kept by each task for itself.
  void backward() const {
    this->clear_gradients(true, true);
    const int64_t tasks = std::min<int64_t>(call.images, call.threads);
    const int64_t transforms = (call.shared ? 1 : call.I) * call.J * P * D;
    const int64_t coordinates = call.coordinates ? call.I * H : 0;
    std::vector<std::vector<T>> partial(tasks > 1 ? tasks - 1 : 0);
    parallel_for(call.threads, tasks, 1, [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; ++task) {
        T* sums[2] = {static_cast<T*>(call.grad_transforms), static_cast<T*>(call.grad_coordinates)};
        if (task > 0) {
          partial[task - 1].resize(transforms + coordinates);
          sums[0] = partial[task - 1].data();
          if (coordinates) sums[1] = sums[0] + transforms;
        }
        Backward work(*this, sums[0], sums[1]);
        const int64_t begin = call.images * task / tasks * call.windows;
        const int64_t end = call.images * (task + 1) / tasks * call.windows;
        for (int64_t row = begin; row < end; row += kBackwardBlocks * kLanes) work.group(row, end);
      }
    });
    parallel_for(call.threads, transforms, 4096, [&](int64_t first, int64_t last) {
      for (const auto& sums : partial)
        for (int64_t k = first; k < last; ++k) static_cast<T*>(call.grad_transforms)[k] += sums[k];
    });
    for (const auto& sums : partial)
      for (int64_t k = 0; k < coordinates; ++k) static_cast<T*>(call.grad_coordinates)[k] += sums[transforms + k];
  }

 private:
  const Size<M_> M;
  const Size<P_> P;
  const Size<D_> D;
  const int H;

  int pose() const {
    if constexpr (kKnown) return kPose;
    return H;
  }

  // V_ij = u_i W_ij + c_i
  inline void vote(const V* u, const T* w, const T* c, V* v) const {
    for (int h = 0; h < pose(); ++h) v[h] = c ? splat(c[h]) : V{};
    for (int p = 0; p < P; ++p)
      for (int m = 0; m < M; ++m)
        for (int d = 0; d < D; ++d) v[m * D + d] += u[m * P + p] * w[p * D + d];
  }

  // What the vote passes on to the pose of its child: du_i += W_ij dV_ij.
  inline void vote_backward(const V* g, const T* w, V* du) const {
    for (int m = 0; m < M; ++m)
      for (int p = 0; p < P; ++p) {
        V total = du[m * P + p];
        for (int d = 0; d < D; ++d) total += g[m * D + d] * w[p * D + d];
        du[m * P + p] = total;
      }
  }

  // The similarity of votes and parents, with the tensors of one block of rows.
  struct Parents {
    const V *centre, *precision, *log_weight;  // [J, H], [J, H], [J]
  };

  inline V logit(const V* v, const Parents& parents, int j) const {
    const V* centre = parents.centre + int64_t{j} * pose();
    V even{}, odd{};  // two sums, so that no addition waits for the one before
    if (call.similarity == kInnerProduct) {
      for (int h = 0; h < pose(); ++h) (h & 1 ? odd : even) += v[h] * centre[h];
      return even + odd;
    }
    const V* precision = parents.precision + int64_t{j} * pose();
    for (int h = 0; h < pose(); ++h) {
      const V deviation = v[h] - centre[h];
      (h & 1 ? odd : even) += deviation * deviation * precision[h];
    }
    return parents.log_weight[j] - (even + odd) * T(0.5);
  }

  // One block of rows, forward.
  struct Forward {
    const AnyPose& k;
    std::vector<V> centre, precision, log_weight, u, logits, votes, mass, shift, first, second, scratch;

    explicit Forward(const AnyPose& k) : k(k) {
      const size_t parents = size_t(k.J) * k.H, children = kForwardChildren;
      if (k.call.similarity != kUniform) centre.resize(parents);
      if (k.call.similarity == kGaussian) precision.resize(parents), log_weight.resize(k.J);
      u.resize(children * k.M * k.P);
      logits.resize(children * k.J);
      votes.resize(children * k.H);
      mass.resize(k.J), shift.resize(parents), first.resize(parents), second.resize(parents);
      scratch.resize(k.H);
    }

    Parents parents() const { return {centre.data(), precision.data(), log_weight.data()}; }

    void load_parents(int64_t row) {
      if (!centre.empty()) k.load(k.call.parents, row, k.rows, int64_t{k.J} * k.H, centre.data());
      if (precision.empty()) return;
      k.load(k.call.precision, row, k.rows, int64_t{k.J} * k.H, precision.data());
      k.load(k.call.log_weight, row, k.rows, k.J, log_weight.data());
    }

    void load_children(int64_t row, int start, int count) {
      for (int i = 0; i < count; ++i)
        k.load_child(k.call.children, row, k.rows, start + i, k.M * k.P, u.data() + i * k.M * k.P);
    }

    // Logits [count, J] of some children.
    __attribute__((noinline)) void compare(int start, int count) {
      if (centre.empty()) {
        std::fill(logits.begin(), logits.begin() + count * k.J, V{});
        return;
      }
      V local[kPose];
      V* v = kKnown ? local : scratch.data();
      for (int j = 0; j < k.J; ++j)
        for (int i = 0; i < count; ++i) {
          k.vote(u.data() + i * k.M * k.P, k.transform(start + i, j), k.offset(start + i), v);
          logits[i * k.J + j] = k.logit(v, parents(), j);
        }
    }

    void scores(int64_t row) {
      load_parents(row);
      const int lanes = static_cast<int>(std::min<int64_t>(k.rows - row, kLanes));
      T* out = writable(k.call.scores);
      for (int start = 0; start < k.I; start += kForwardChildren) {
        const int count = std::min(kForwardChildren, k.I - start);
        load_children(row, start, count);
        compare(start, count);
        for (int i = 0; i < count; ++i) {
          const int64_t numbers = k.call.reduced ? 1 : k.J;
          V* values = logits.data() + i * k.J;
          if (k.call.reduced) values[0] = k.partition(values);
          for (int lane = 0; lane < lanes; ++lane)
            for (int64_t n = 0; n < numbers; ++n)
              out[((row + lane) * k.I + start + i) * numbers + n] = values[n][lane];
        }
      }
    }

    void moments(int64_t row) {
      load_parents(row);
      std::fill(mass.begin(), mass.end(), V{});
      std::fill(first.begin(), first.end(), V{});
      std::fill(second.begin(), second.end(), V{});
      for (int start = 0; start < k.I; start += kForwardChildren) {
        const int count = std::min(kForwardChildren, k.I - start);
        load_children(row, start, count);
        if (start == 0 && k.call.scatter) place_shift();
        compare(start, count);
        k.share_out(logits.data(), row, k.rows, start, count);
        add(start, count);
      }
      if (k.call.scatter) {  // first is the mean, less the shift
        for (int j = 0; j < k.J; ++j)
          for (int h = 0; h < k.H; ++h) {
            const int at = j * k.H + h;
            first[at] = (first[at] + shift[at]) * mass[j];
          }
        k.store(second.data(), row, k.rows, int64_t{k.J} * k.H, k.call.scatter);
      }
      k.store(mass.data(), row, k.rows, k.J, k.call.mass);
      k.store(first.data(), row, k.rows, int64_t{k.J} * k.H, k.call.sum);
    }

    // Votes are taken from a point near them: float32 has the digits for a small deviation, not for a large mean.
    void place_shift() {
      for (int j = 0; j < k.J; ++j) k.vote(u.data(), k.transform(0, j), k.offset(0), shift.data() + j * k.H);
    }

    void add(int start, int count) {
      for (int j = 0; j < k.J; ++j) {
        for (int i = 0; i < count; ++i) form(start + i, j, u.data() + i * k.M * k.P, votes.data() + i * k.H);
        for (int i = count; i < kForwardChildren; ++i) std::fill_n(votes.data() + i * k.H, k.H, V{});
        V r[kForwardChildren], total{};
        for (int i = 0; i < kForwardChildren; ++i) {
          r[i] = i < count ? logits[i * k.J + j] : V{};
          total += r[i];
        }
        k.call.scatter ? add_moments(j, r, total) : add_sum(j, r);
        mass[j] += total;
      }
    }

    void form(int i, int j, const V* pose, V* out) {
      if constexpr (!kKnown) return k.vote(pose, k.transform(i, j), k.offset(i), out);
      V v[kPose];  // in registers until it is whole
      k.vote(pose, k.transform(i, j), k.offset(i), v);
      for (int h = 0; h < kPose; ++h) out[h] = v[h];
    }

    __attribute__((noinline)) void add_sum(int j, const V* r) {
      V* sum = first.data() + int64_t{j} * k.H;
      for (int h = 0; h < k.pose(); ++h) {
        V total = sum[h];
#pragma GCC unroll 8
        for (int i = 0; i < kForwardChildren; ++i) total += r[i] * votes[i * k.H + h];
        sum[h] = total;
      }
    }

    // Mean and scatter of some votes, r of each and `total` together, joined with those of the votes before (Chan, Golub &
    // LeVeque 1979).
    __attribute__((noinline)) void add_moments(int j, const V* r, V total) {
      V *mean = first.data() + int64_t{j} * k.H, *scatter = second.data() + int64_t{j} * k.H;
      const V* from = shift.data() + int64_t{j} * k.H;
      const V tiny = splat(std::sqrt(std::numeric_limits<T>::min()));
      const V one = T(1) / larger<T>(total, tiny), ratio = total / larger<T>(mass[j] + total, tiny), part = mass[j] * ratio;
      const int size = k.pose();
      for (int h = 0; h < size; ++h) {
        V v[kForwardChildren], sum{}, square{};
#pragma GCC unroll 8
        for (int i = 0; i < kForwardChildren; ++i) {
          v[i] = votes[i * size + h] - from[h];
          sum += r[i] * v[i];
        }
        const V middle = sum * one;
#pragma GCC unroll 8
        for (int i = 0; i < kForwardChildren; ++i) {
          const V deviation = v[i] - middle;
          square += r[i] * deviation * deviation;
        }
        const V apart = middle - mean[h];
        mean[h] += ratio * apart;
        scatter[h] += square + part * apart * apart;
      }
    }
  };

  // Some blocks of rows, backward.
  struct Backward {
    const AnyPose& k;
    T *grad_transforms, *grad_coordinates;
    const bool moments;  // or scores
    // Per block: fields of the parents, [blocks, J, H] or [blocks, J].
    std::vector<V> centre, precision, log_weight, mean, up_mass, up_sum, up_scatter;
    std::vector<V> d_centre, d_precision, d_log_weight;
    // Per child and block: [children, blocks, ...].
    std::vector<V> u, du, flow, share, d_votes, d_offset, scratch;
    int64_t row = 0, end = 0;
    int count = 0;  // of blocks

    Backward(const AnyPose& k, T* grad_transforms, T* grad_coordinates)
        : k(k), grad_transforms(grad_transforms), grad_coordinates(grad_coordinates), moments(k.call.grad_scores == nullptr) {
      const size_t field = size_t(kBackwardBlocks) * k.J * k.H, pairs = kBackwardBlocks * kBackwardChildren;
      if (k.call.similarity != kUniform) centre.resize(field), d_centre.resize(field);
      if (k.call.similarity == kGaussian) {
        precision.resize(field), d_precision.resize(field);
        log_weight.resize(kBackwardBlocks * k.J), d_log_weight.resize(kBackwardBlocks * k.J);
      }
      if (moments) up_mass.resize(kBackwardBlocks * k.J), up_sum.resize(field);
      if (k.call.scatter) mean.resize(field), up_scatter.resize(field);
      u.resize(pairs * k.M * k.P), du.resize(pairs * k.M * k.P);
      flow.resize(pairs * k.J), share.resize(pairs * k.J);
      d_votes.resize(pairs * k.H);
      d_offset.resize(kBackwardChildren * k.H);
      scratch.resize(k.H);
    }

    Parents parents(int b) const {
      const int64_t at = int64_t{b} * k.J * k.H;
      return {centre.data() + at, precision.data() + at, log_weight.data() + int64_t{b} * k.J};
    }

    void load(const void* tensor, int64_t numbers, std::vector<V>& out) {
      if (out.empty()) return;
      for (int b = 0; b < count; ++b) k.load(tensor, row + b * kLanes, end, numbers, out.data() + b * numbers);
    }

    void store(std::vector<V>& in, int64_t numbers, void* tensor) {
      if (in.empty()) return;
      for (int b = 0; b < count; ++b) k.store(in.data() + b * numbers, row + b * kLanes, end, numbers, tensor);
    }

    void group(int64_t first, int64_t last) {
      row = first, end = last;
      count = static_cast<int>(std::min<int64_t>(kBackwardBlocks, blocks(end - row)));
      const int64_t field = int64_t{k.J} * k.H;
      load(k.call.parents, field, centre);
      load(k.call.precision, field, precision);
      load(k.call.log_weight, k.J, log_weight);
      load(k.call.mean, field, mean);
      load(k.call.mass, k.J, up_mass);
      load(k.call.sum, field, up_sum);
      load(k.call.scatter, field, up_scatter);
      for (auto* grad : {&d_centre, &d_precision, &d_log_weight}) std::fill(grad->begin(), grad->end(), V{});
      for (int start = 0; start < k.I; start += kBackwardChildren)
        children(start, std::min(kBackwardChildren, k.I - start));
      store(d_centre, field, k.call.grad_parents);
      store(d_precision, field, k.call.grad_precision);
      store(d_log_weight, k.J, k.call.grad_log_weight);
    }

    void children(int start, int n) {
      const int size = k.M * k.P;
      for (int i = 0; i < n; ++i)
        for (int b = 0; b < count; ++b)
          k.load_child(k.call.children, row + b * kLanes, end, start + i, size, u.data() + pair(i, b) * size);
      std::fill(du.begin(), du.end(), V{});
      std::fill(d_offset.begin(), d_offset.end(), V{});
      compare(start, n);
      for (int i = 0; i < n; ++i)
        for (int b = 0; b < count; ++b) moments ? flow_of_moments(start + i, i, b) : flow_of_scores(start + i, i, b);
      for (int j = 0; j < k.J; ++j) {
        for (int b = 0; b < count; ++b) votes_of(j, b, start, n);
        for (int i = 0; i < n; ++i) add_transform(j, i, start + i);
      }
      for (int i = 0; i < n; ++i) {
        for (int b = 0; b < count; ++b)
          k.add_child(du.data() + pair(i, b) * size, row + b * kLanes, end, start + i, size, k.call.grad_children);
        if (!grad_coordinates) continue;
        for (int h = 0; h < k.H; ++h) grad_coordinates[int64_t{start + i} * k.H + h] += lane_sum<T>(d_offset[i * k.H + h]);
      }
    }

    static int64_t pair(int i, int b) { return i * kBackwardBlocks + b; }

    // Logits into `share`, and what a share is worth to the loss into `flow`.
    __attribute__((noinline)) void compare(int start, int n) {
      V local[kPose];
      V* v = kKnown ? local : scratch.data();
      for (int j = 0; j < k.J; ++j)
        for (int b = 0; b < count; ++b)
          for (int i = 0; i < n; ++i) {
            k.vote(u.data() + pair(i, b) * k.M * k.P, k.transform(start + i, j), k.offset(start + i), v);
            const int64_t at = pair(i, b) * k.J + j;
            share[at] = centre.empty() ? V{} : k.logit(v, parents(b), j);
            if (moments) flow[at] = worth(v, j, b);
          }
    }

    inline V worth(const V* v, int j, int b) const {
      const int64_t at = (int64_t{b} * k.J + j) * k.H;
      V even = up_mass[b * k.J + j], odd{};  // two sums, so that no addition waits for the one before
      for (int h = 0; h < k.pose(); ++h) (h & 1 ? odd : even) += v[h] * up_sum[at + h];
      if (up_scatter.empty()) return even + odd;
      V even_scatter{}, odd_scatter{};
      for (int h = 0; h < k.pose(); ++h) {
        const V deviation = v[h] - mean[at + h];
        (h & 1 ? odd_scatter : even_scatter) += deviation * deviation * up_scatter[at + h];
      }
      return (even + odd) + (even_scatter + odd_scatter);
    }

    // Logits and worth to a_i R_ij and the gradient of the logits.
    void flow_of_moments(int child, int i, int b) {
      const int64_t at = pair(i, b) * k.J;
      k.flow_of_moments(share.data() + at, flow.data() + at, row + b * kLanes, end, child);
    }

    // The gradient of the logits, from that of the logits or of their normaliser.
    void flow_of_scores(int child, int i, int b) {
      V *logits = share.data() + pair(i, b) * k.J, *g = flow.data() + pair(i, b) * k.J;
      const int64_t first = row + b * kLanes, numbers = k.call.reduced ? 1 : k.J;
      const int lanes = static_cast<int>(std::clamp<int64_t>(end - first, 0, kLanes));
      std::fill(g, g + k.J, V{});
      for (int lane = 0; lane < lanes; ++lane)
        for (int64_t n = 0; n < numbers; ++n)
          g[n][lane] = readable(k.call.grad_scores)[((first + lane) * k.I + child) * numbers + n];
      if (k.call.reduced) {
        const V grad = g[0], log_partition = k.partition(logits);
        for (int j = 0; j < k.J; ++j) g[j] = grad * exponential(logits[j] - log_partition);
      }
      std::fill(logits, logits + k.J, V{});  // nothing was shared out
    }

    // The gradients of the votes for parent j, into `d_votes`, and what they pass on to the similarity and the poses.
    __attribute__((noinline)) void votes_of(int j, int b, int start, int n) {
      V local[kPose];
      V* v = kKnown ? local : scratch.data();
      for (int i = 0; i < n; ++i) {
        const T* w = k.transform(start + i, j);
        const V* pose = u.data() + pair(i, b) * k.M * k.P;
        V* g = d_votes.data() + pair(i, b) * k.H;
        const V r = share[pair(i, b) * k.J + j], f = flow[pair(i, b) * k.J + j];
        k.vote(pose, w, k.offset(start + i), v);
        if (!moments)
          vote_gradient<kNothing>(v, r, f, j, b, g);
        else if (up_scatter.empty())
          vote_gradient<kSum>(v, r, f, j, b, g);
        else
          vote_gradient<kScatter>(v, r, f, j, b, g);
        k.vote_backward(g, w, du.data() + pair(i, b) * k.M * k.P);
        if (grad_coordinates)
          for (int h = 0; h < k.pose(); ++h) d_offset[i * k.H + h] += g[h];
      }
    }

    enum Upstream { kNothing, kSum, kScatter };

    template <Upstream upstream>
    inline void vote_gradient(const V* v, V r, V f, int j, int b, V* g) {
      const int64_t at = (int64_t{b} * k.J + j) * k.H;
      const Field field = {up_sum.data() + at, up_scatter.data() + at, mean.data() + at,     centre.data() + at,
                           precision.data() + at, d_centre.data() + at, d_precision.data() + at};
      if (k.call.hard || k.call.similarity == kUniform) return field.template gradient<upstream, kUniform>(k.H, v, r, f, g);
      if (k.call.similarity == kInnerProduct) return field.template gradient<upstream, kInnerProduct>(k.H, v, r, f, g);
      d_log_weight[b * k.J + j] += f;
      field.template gradient<upstream, kGaussian>(k.H, v, r, f, g);
    }

    // What belongs to one parent.
    struct Field {
      const V *up_sum, *up_scatter, *mean, *centre, *precision;
      V *d_centre, *d_precision;

      // One loop over the elements of a vote with nothing to decide in it, in a function of its own, where the compiler
      // has registers for all pointers: loads and stores are what takes time here.
      template <Upstream upstream, Similarity similarity>
      __attribute__((noinline)) void gradient(int size, const V* __restrict v, V r, V f, V* __restrict g) const {
        const int H = kKnown ? kPose : size;
        const V half = f * T(-0.5), twice = r * T(2);
        const V *__restrict s = up_sum, *__restrict q = up_scatter, *__restrict m = mean;
        const V *__restrict c = centre, *__restrict beta = precision;
        V *__restrict d_c = d_centre, *__restrict d_beta = d_precision;
#pragma GCC unroll 16
        for (int h = 0; h < H; ++h) {
          V total = upstream == kNothing ? V{} : r * s[h];
          if (upstream == kScatter) total += twice * (v[h] - m[h]) * q[h];
          if (similarity == kInnerProduct) {
            d_c[h] += f * v[h];
            total += f * c[h];
          } else if (similarity == kGaussian) {
            const V deviation = v[h] - c[h];
            const V slope = f * deviation * beta[h];
            d_beta[h] += half * deviation * deviation;
            d_c[h] += slope;
            total -= slope;
          }
          g[h] = total;
        }
      }
    };

    // dW_ij += sum over rows of u_i^T dV_ij, for as many elements at a time as a vector has lanes.
    __attribute__((noinline)) void add_transform(int j, int i, int child) {
      const int numbers = k.P * k.D;
      T* out = grad_transforms + (int64_t{k.call.shared ? 0 : child} * k.J + j) * numbers;
      for (int start = 0; start < numbers; start += kLanes) {
        V sums[kLanes];
        for (int l = 0; l < kLanes; ++l) sums[l] = V{};
        for (int b = 0; b < count; ++b)
          for (int m = 0; m < k.M; ++m)
            outer(u.data() + (pair(i, b) * k.M + m) * k.P, d_votes.data() + pair(i, b) * k.H + m * k.D, start, sums);
        fold_all<T, kLanes / 2>(sums);
        const int live = std::min(kLanes, numbers - start);
        if (live == kLanes) {
          store_vector<T>(load_vector(out + start) + sums[0], out + start);
        } else {
          for (int l = 0; l < live; ++l) out[start + l] += sums[0][l];
        }
      }
    }

    inline void outer(const V* pose, const V* g, int start, V* sums) const {
      if constexpr (kKnown && kLanes % D_ == 0) {
        for (int p = 0; p < kLanes / D_; ++p)
          for (int d = 0; d < D_; ++d) sums[p * D_ + d] += pose[start / D_ + p] * g[d];
      } else {
        for (int at = start; at < std::min<int>(start + kLanes, k.P * k.D); ++at)
          sums[at - start] += pose[at / k.D] * g[at % k.D];
      }
    }
  };
};

}  // namespace
