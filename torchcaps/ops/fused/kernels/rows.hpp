// What all kernels share: the call, how work is divided among threads, and rows of the batch in the lanes of vectors.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <vector>

#include "lanes.hpp"

namespace {

enum Similarity : int64_t { kUniform = 0, kInnerProduct = 1, kGaussian = 2 };

}  // namespace

// Mirrored in torchcaps/ops/fused/passes.py. Tensors are contiguous; a null pointer stands for one that is not there.

// What one step of routing adds to the gradients of the votes:
// dV_ij += coefficient_ij (constant_j + slope_j (V_ij - centre_j - rest_j)).
struct TorchcapsTerm {
  const void *coefficient, *constant, *slope, *centre, *rest;
  int64_t parents;  // of the coefficients: J, or 1 if all parents share them
};

struct TorchcapsCall {
  int64_t images, grid, windows, I, J, M, P, D, shared, similarity, leaky, hard, parts, threads;
  const void *children, *transforms, *coordinates, *weights, *log_partition, *parents, *precision, *log_weight;
  const int32_t* sites;
  // Results in the forward passes, upstream gradients in the flow, which reads the mean sum / mass. The rest, beside a
  // scatter, is what the mean of the votes is more than that: what rounding has taken.
  void *mass, *sum, *scatter, *mean, *rest, *scores;
  int64_t reduced;
  void *grad_children, *grad_transforms, *grad_coordinates, *grad_weights, *grad_log_partition, *grad_parents,
      *grad_precision, *grad_log_weight, *grad_scores;
  // Coefficients [blocks, I / 8, parents, 8, width]: the logits, which the scores write and other passes read; a_i R_ij; and the
  // gradients of the logits, with `adds` added to what is there.
  void *logits, *shares, *flow;
  int64_t adds;
  // The votes of few rows, [I, B, J, D], and whether they are formed already: if not, the moments write them.
  void* votes;
  int64_t formed;
  const TorchcapsTerm* terms;
  int64_t count;
};

namespace {

using Call = TorchcapsCall;

// Divides [0, count) among threads, at least `grain` for each; inside another parallel region, one thread does all.
template <typename Work>
void parallel_for(int64_t threads, int64_t count, int64_t grain, const Work& work) {
  const int64_t parts = omp_in_parallel() ? 1 : std::min(threads, (count + grain - 1) / grain);
  if (parts <= 1) {
    [[maybe_unused]] const WithoutSubnormals here{};
    work(int64_t{0}, count);
    return streams_end();
  }
  std::exception_ptr failed;  // no exception may leave the parallel region
#pragma omp parallel num_threads(static_cast<int>(parts))
  {
    [[maybe_unused]] const WithoutSubnormals here{};
    const int64_t part = omp_get_thread_num(), all = omp_get_num_threads();  // may be fewer than asked for
    try {
      work(count * part / all, count * (part + 1) / all);
    } catch (...) {
#pragma omp critical
      failed = std::current_exception();
    }
    streams_end();
  }
  if (failed) std::rethrow_exception(failed);
}

// A size known at compile time, or (0) only at run time.
template <int known>
struct Size {
  explicit Size(int64_t) {}
  constexpr operator int() const { return known; }
};
template <>
struct Size<0> {
  explicit Size(int64_t value) : value(static_cast<int>(value)) {}
  operator int() const { return value; }
  int value;
};

// The rows of the batch (images x windows) in blocks: a vector with a row in each lane.
template <typename T>
struct Rows {
  using V = Vec<T>;
  static constexpr int kLanes = Lanes<T>::count;
  static constexpr int kHalf = kLanes / 2;
  static constexpr int kTogether = 8;  // most children whose logits are held at once
  static constexpr int kFew = kLanes / 4;  // at most so many rows leave most lanes empty; mirrored in passes.py

  explicit Rows(const Call& call) : call(call), I(call.I), J(call.J), rows(call.images * call.windows), follows(followers(call)) {}

  const Call& call;
  const int I, J;
  const int64_t rows;
  const std::vector<bool> follows;  // whether a child is stored right after the one before in all windows; empty without

  static int64_t blocks(int64_t count) { return (count + kLanes - 1) / kLanes; }
  static T* writable(void* tensor) { return static_cast<T*>(tensor); }
  static const T* readable(const void* tensor) { return static_cast<const T*>(tensor); }

  const T* transform(int i, int j) const {
    return readable(call.transforms) + (static_cast<int64_t>(call.shared ? 0 : i) * J + j) * call.P * call.D;
  }

  const T* offset(int i) const {
    return call.coordinates ? readable(call.coordinates) + int64_t{i} * call.M * call.D : nullptr;
  }

  // The index of child i of a row among all children.
  int64_t site(int64_t row, int i) const {
    if (!call.sites) return row * I + i;
    return row / call.windows * call.grid + call.sites[row % call.windows * I + i];
  }

  // The rows of a task, and where their blocks begin in the coefficients. Windows of one image share children and add to
  // their gradients: so with windows a task has whole images, and all steps have the same number of tasks.
  struct Range {
    int64_t row, end, block;
  };

  int64_t row_parts() const { return call.sites ? call.parts : std::min(call.threads, blocks(rows)); }

  Range row_range(int64_t part, int64_t parts) const {
    if (call.sites) {
      const int64_t row = call.images * part / parts * call.windows;
      return {row, call.images * (part + 1) / parts * call.windows, row / kLanes + part};
    }
    const int64_t block = blocks(rows) * part / parts;
    return {block * kLanes, std::min(rows, blocks(rows) * (part + 1) / parts * kLanes), block};
  }

  // Runs a task for each range of rows: where logits are written down, the ranges that they are laid out by.
  template <typename Work>
  void each_range(const Work& work) const {
    if (call.logits) return each_part(row_parts(), [&](int64_t part) { work(row_range(part, row_parts())); });
    parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
      work(Range{first * kLanes, std::min(rows, last * kLanes), first});
    });
  }

  template <typename Work>
  void each_part(int64_t parts, const Work& work) const {
    parallel_for(call.threads, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) work(part);
    });
  }

  // Numbers that a coefficient has in a block: one for each lane, or if rows are few, one for each row.
  int width() const { return rows > kFew ? kLanes : static_cast<int>(rows); }

  // Where the coefficient of a pair lies, for a block of rows: those of a group of kTogether children side by side, for one
  // parent after the other.
  int64_t coefficient(int64_t block, int i, int j, int64_t parents) const {
    return ((block * groups() + i / kTogether) * parents + j) * next_parent() + i % kTogether * width();
  }

  int64_t groups() const { return (I + kTogether - 1) / kTogether; }
  int64_t next_parent() const { return kTogether * width(); }

  __attribute__((always_inline)) V load_coefficient(const T* from) const {
    return rows > kFew ? load_vector(from) : load_few(from);
  }

  __attribute__((noinline)) V load_few(const T* from) const {
    V value{};
    std::memcpy(&value, from, rows * sizeof(T));
    return value;
  }

  void store_coefficient(V value, T* to) const {
    if (width() == kLanes) return stream_vector<T>(value, to);
    std::memcpy(to, &value, width() * sizeof(T));
  }

  // Stores the coefficients [count, J] of some children of one group.
  void put_coefficients(const V* from, int64_t block, int start, int count, int64_t parents, void* tensor) const {
    if (!tensor) return;
    T* to = writable(tensor) + coefficient(block, start, 0, parents);
    for (int j = 0; j < parents; ++j, to += next_parent())
      for (int i = 0; i < count; ++i) store_coefficient(from[i * J + j], to + i * width());
  }

  // The coefficient of child i of a group for parent j of J; that of the next group is prefetched.
  __attribute__((always_inline)) V coefficient_of(const T* first, int i, int j) const {
    const T* from = first + j * next_parent() + i * width();
    __builtin_prefetch(from + J * next_parent());
    return load_coefficient(from);
  }

  __attribute__((always_inline)) void put_coefficient(V value, T* first, int i, int j) const {
    if (first) store_coefficient(value, first + j * next_parent() + i * width());
  }

  // Whether shares do not depend on the parent.
  bool even() const { return call.similarity == kUniform && !call.hard; }

  V even_share(V log_partition) const {
    return call.log_partition ? exponential(-log_partition) : splat(T(1) / (J + call.leaky));
  }

  // Stores the coefficients of a step's terms: shares and gradients of the logits, [count, J].
  void put_flow(const V* share, const V* gradient, int64_t block, int start, int count) const {
    put_coefficients(share, block, start, count, even() ? 1 : J, call.shares);
    put_coefficients(gradient, block, start, count, J, call.flow);
  }

  static void clear(void* tensor, int64_t count) {
    if (tensor) std::memset(tensor, 0, count * sizeof(T));
  }

  int64_t transforms() const { return (call.shared ? 1 : call.I) * call.J * call.P * call.D; }
  int64_t coordinates() const { return call.coordinates ? call.I * call.M * call.D : 0; }

  // Clears what the flow adds to, as windows share children.
  void clear_flow() const {
    clear(call.grad_weights, call.images * call.grid);
    clear(call.grad_log_partition, call.images * call.grid);
  }

  // Runs `work(part, grad_transforms, grad_coordinates)` for each task. All tasks but the first add to sums of their own,
  // which are added to the gradients at the end.
  template <typename Work>
  void sum_over_parts(int64_t parts, const Work& work) const {
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T *sums = writable(call.grad_transforms), *offsets = writable(call.grad_coordinates);
      if (part > 0) {
        others[part - 1].resize(transforms() + coordinates());
        if (sums) sums = others[part - 1].data();
        if (offsets) offsets = others[part - 1].data() + transforms();
      }
      work(part, sums, offsets);
    });
    const auto add = [&](void* tensor, int64_t from, int64_t count) {
      if (!tensor) return;
      parallel_for(call.threads, count, 4096, [&](int64_t first, int64_t last) {
        for (const auto& other : others)
          for (int64_t k = first; k < last; ++k) writable(tensor)[k] += other[from + k];
      });
    };
    add(call.grad_transforms, 0, transforms());
    add(call.grad_coordinates, transforms(), coordinates());
  }

  static std::vector<bool> followers(const Call& call) {
    std::vector<bool> follows(call.sites ? call.I : 0, true);
    for (int64_t window = 0; window < call.windows && call.sites; ++window)
      for (int64_t i = 1; i < call.I; ++i)
        if (call.sites[window * call.I + i] != call.sites[window * call.I + i - 1] + 1) follows[i] = false;
    return follows;
  }

  // Whether these children of a row are stored one after the other.
  bool adjacent(int start, int count) const {
    if (!call.sites) return true;
    return std::all_of(follows.begin() + start + 1, follows.begin() + start + count, [](bool next) { return next; });
  }

  // Loads `count` adjacent numbers of each row from `row` on, as `count` vectors with a row in each lane; lanes past `end`
  // get 0. `place(row)` is where the numbers of a row begin.
  template <typename Place>
  void gather(const void* tensor, int64_t row, int64_t end, int64_t count, V* out, Place place) const {
    const int lanes = static_cast<int>(std::clamp<int64_t>(end - row, 0, kLanes));
    const T* from[kLanes];
    for (int lane = 0; lane < lanes; ++lane) from[lane] = readable(tensor) + place(row + lane);
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) out[at + lane] = lane < lanes ? load_vector(from[lane] + at) : V{};
      transpose<T>(out + at);
    }
    if (lanes == kLanes && at + kHalf <= count) {
      for (int k = 0; k < kHalf; ++k)
        out[at + k] = joined<T>(load_half(from[k] + at), load_half(from[k + kHalf] + at), std::make_index_sequence<kLanes>{});
      transpose<T, kHalf>(out + at);
      at += kHalf;
    }
    for (; at < count; ++at) {
      out[at] = V{};
      for (int lane = 0; lane < lanes; ++lane) reinterpret_cast<T*>(out + at)[lane] = from[lane][at];
    }
  }

  // The reverse: stores or adds the vectors. Lanes past `end` are dropped.
  template <bool add, typename Place>
  void scatter(const V* in, int64_t row, int64_t end, int64_t count, void* tensor, Place place) const {
    const int lanes = static_cast<int>(std::clamp<int64_t>(end - row, 0, kLanes));
    T* to[kLanes];
    for (int lane = 0; lane < lanes; ++lane) to[lane] = writable(tensor) + place(row + lane);
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
      V square[kLanes];
      for (int k = 0; k < kLanes; ++k) square[k] = in[at + k];
      transpose<T>(square);
      for (int lane = 0; lane < lanes; ++lane)
        store_vector<T>(add ? load_vector(to[lane] + at) + square[lane] : square[lane], to[lane] + at);
    }
    if (lanes == kLanes && at + kHalf <= count) {
      V square[kHalf];
      for (int k = 0; k < kHalf; ++k) square[k] = in[at + k];
      transpose<T, kHalf>(square);
      for (int lane = 0; lane < kLanes; ++lane) {
        Half<T> value = load_half(reinterpret_cast<const T*>(square + lane % kHalf) + lane / kHalf * kHalf);
        if (add) value += load_half(to[lane] + at);
        std::memcpy(to[lane] + at, &value, sizeof value);
      }
      at += kHalf;
    }
    for (; at < count; ++at)
      for (int lane = 0; lane < lanes; ++lane) {
        const T value = reinterpret_cast<const T*>(in + at)[lane];
        to[lane][at] = add ? to[lane][at] + value : value;
      }
  }

  // A field with `count` numbers for each row.
  void load(const void* tensor, int64_t row, int64_t end, int64_t count, V* out) const {
    gather(tensor, row, end, count, out, [=](int64_t r) { return r * count; });
  }

  void store(const V* in, int64_t row, int64_t end, int64_t count, void* tensor) const {
    scatter<false>(in, row, end, count, tensor, [=](int64_t r) { return r * count; });
  }

  // A field with `size` numbers for a child, or for several that are stored one after the other.
  void load_child(const void* tensor, int64_t row, int64_t end, int i, int size, V* out, int children = 1) const {
    gather(tensor, row, end, children * size, out, [=, this](int64_t r) { return site(r, i) * size; });
  }

  template <bool add = true>
  void add_child(const V* in, int64_t row, int64_t end, int i, int size, void* tensor, int children = 1) const {
    scatter<add>(in, row, end, children * size, tensor, [=, this](int64_t r) { return site(r, i) * size; });
  }

  // log sum_j exp l_j of some children, over the leak too, from their logits [count, J].
  void partitions(const V* logits, int count, V* out) const {
    int i = 0;
    for (; i + 4 <= count; i += 4) partition_together<4>(logits + i * J, out + i);
    for (; i < count; ++i) partition_together<1>(logits + i * J, out + i);
  }

  template <int count>
  void partition_together(const V* logits, V* out) const {
    V peak[count], total[count];
    peaks(logits, peak);
    for (int i = 0; i < count; ++i) total[i] = call.leaky ? exponential_below(-peak[i]) : V{};
    for (int j = 0; j < J; ++j)
      for (int i = 0; i < count; ++i) total[i] += exponential_below(logits[i * J + j] - peak[i]);
    for (int i = 0; i < count; ++i) out[i] = peak[i] + logarithm(total[i]);
  }

  // The largest logit of each of some children, that of the leak included.
  template <int count>
  void peaks(const V* logits, V (&peak)[count]) const {
    for (int i = 0; i < count; ++i) peak[i] = logits[i * J];
    for (int j = 1; j < J; ++j)
      for (int i = 0; i < count; ++i) peak[i] = larger<T>(logits[i * J + j], peak[i]);
    for (int i = 0; i < count && call.leaky; ++i) peak[i] = larger<T>(peak[i], V{});
  }

  // The fields of some children: activations, and normalisers if these are given.
  struct Own {
    V weight[kTogether], log_partition[kTogether];
  };

  void load_own(int64_t row, int64_t end, int start, int count, Own& own) const {
    if (call.weights) load_each(call.weights, row, end, start, count, own.weight);
    if (!call.weights) std::fill_n(own.weight, kTogether, splat(T(1)));
    if (call.log_partition) load_each(call.log_partition, row, end, start, count, own.log_partition);
  }

  // Logits [count, J] of some children to assignment probabilities, in place.
  void assign(V* logits, int count, const V* log_partition) const {
    int i = 0;
    for (; i + 4 <= count; i += 4) assign_together<4>(logits + i * J, log_partition + i);
    for (; i + 2 <= count; i += 2) assign_together<2>(logits + i * J, log_partition + i);
    for (; i < count; ++i) assign_together<1>(logits + i * J, log_partition + i);
  }

  // For several children at once, so that no sum waits for the one before.
  template <int count>
  void assign_together(V* logits, const V* log_partition) const {
    if (call.hard) {
      for (int i = 0; i < count; ++i) assign_hard(logits + i * J);
      return;
    }
    if (even()) {
      for (int i = 0; i < count; ++i) std::fill_n(logits + i * J, J, even_share(log_partition[i]));
      return;
    }
    if (call.log_partition) {
      for (int j = 0; j < J; ++j)
        for (int i = 0; i < count; ++i) logits[i * J + j] = exponential(logits[i * J + j] - log_partition[i]);
      return;
    }
    V peak[count], total[count];
    peaks(logits, peak);
    for (int i = 0; i < count; ++i) total[i] = call.leaky ? exponential_below(-peak[i]) : V{};
    for (int j = 0; j < J; ++j)
      for (int i = 0; i < count; ++i) total[i] += logits[i * J + j] = exponential_below(logits[i * J + j] - peak[i]);
    for (int i = 0; i < count; ++i) total[i] = T(1) / total[i];
    for (int j = 0; j < J; ++j)
      for (int i = 0; i < count; ++i) logits[i * J + j] *= total[i];
  }

  // a_i R_ij of some children, from their logits [count, J], in place; they begin with child `first` of `own`.
  void share_out(V* logits, const Own& own, int first, int count) const {
    assign(logits, count, own.log_partition + first);
    if (!call.weights) return;
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < J; ++j) logits[i * J + j] *= own.weight[first + i];
  }

  // A field with one number for each of some children.
  void load_each(const void* tensor, int64_t row, int64_t end, int start, int count, V* out) const {
    if (adjacent(start, count)) return load_child(tensor, row, end, start, 1, out, count);
    for (int i = 0; i < count; ++i) load_child(tensor, row, end, start + i, 1, out + i);
  }

  void add_each(const V* in, int64_t row, int64_t end, int start, int count, void* tensor) const {
    if (adjacent(start, count)) return add_child(in, row, end, start, 1, tensor, count);
    for (int i = 0; i < count; ++i) add_child(in + i, row, end, start + i, 1, tensor);
  }

  // From the logits, in R [count, J], and the gradients g of the shares a_i R_ij: in place, the shares in R and the gradients
  // of the logits in g; and sum_j R_ij g_ij in `mean_grad`.
  void flow_of_moments(V* R, V* g, const Own& own, int first, int count, V* mean_grad) const {
    assign(R, count, own.log_partition + first);
    int i = 0;
    for (; i + 2 <= count; i += 2) flow_together<2>(R + i * J, g + i * J, own.weight + first + i, mean_grad + i);
    for (; i < count; ++i) flow_together<1>(R + i * J, g + i * J, own.weight + first + i, mean_grad + i);
  }

  template <int count>
  void flow_together(V* R, V* g, const V* weights, V* mean_grad) const {
    V weight[count], total[count] = {};
    for (int i = 0; i < count; ++i) weight[i] = weights[i];
    for (int j = 0; j < J; ++j)
      for (int i = 0; i < count; ++i) total[i] += R[i * J + j] * g[i * J + j];
    for (int i = 0; i < count; ++i) mean_grad[i] = total[i], total[i] *= weight[i];
    for (int j = 0; j < J; ++j)
      for (int i = 0; i < count; ++i) {
        V &share = R[i * J + j], &flow = g[i * J + j];
        const V gradient = share * (weight[i] * flow);
        flow = call.log_partition ? gradient : gradient - share * total[i];
        share *= weight[i];
      }
  }

  // Adds the gradients of the fields of some children, from sum_j R_ij g_ij.
  void add_own(const V* mean_grad, const Own& own, int64_t row, int64_t end, int start, int count) const {
    if (call.grad_weights) add_each(mean_grad, row, end, start, count, call.grad_weights);
    if (!call.grad_log_partition) return;
    V outflow[kTogether];
    for (int i = 0; i < count; ++i) outflow[i] = -mean_grad[i] * own.weight[i];
    add_each(outflow, row, end, start, count, call.grad_log_partition);
  }

  void assign_hard(V* logits) const {
    for (int j = 0; j < J; ++j)  // NaN is the largest, as it is for torch.argmax
      logits[j] = logits[j] == logits[j] ? logits[j] : splat(std::numeric_limits<T>::infinity());
    V peak = logits[0];
    for (int j = 1; j < J; ++j) peak = larger<T>(logits[j], peak);
    V left = splat(T(1));
    for (int j = 0; j < J; ++j) {
      const V taken = logits[j] == peak ? left : V{};
      left -= taken;
      logits[j] = taken;
    }
  }
};

}  // namespace
