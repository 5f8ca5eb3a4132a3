// All steps of a routing by inner products, of children whose transforms are shared by places, in one call; all steps back in
// another. Between two passes over the children (folded.hpp) there are only parents, one by one:
//
//   s_j = sum_t S_tj W_tj + bias_j,  the parent's rule: s_j to v_j and alpha_j,  A_tj = W_tj alpha_j + w_tj
//
// w_tj is evidence, what a child of type t knows by itself. The first step shares each child out evenly, or by the evidence alone.
//
// A thread takes a few examples through all steps, so that no thread waits for another:
//
//   for each chunk of examples
//     for each step
//       for each example and type: a pass over its places
//       for each parent:           its sums, its rule, its queries for all types
//
// and back from the last step to the first. The gradients of transforms and evidence are sums over the examples, found at the end
// from what the steps kept: A_tj, S_tj, s_j and alpha_j, and two numbers for each child.
#pragma once

#include "folded.hpp"

enum TorchcapsRule : int64_t { kAgreement = 0, kDirections = 1, kNormalised = 2 };

// Mirrored in torchcaps/ops/fused/folded.py.
struct TorchcapsFoldedRouting {
  int64_t B, N, T, M, P, J, D, E, steps, leaky, threads;
  int64_t rule, accumulate;
  double constant;  // c of the squash n^2 / (c + n^2); negative for no squash
  double scale;     // of alpha: K of directions s / |s|; 1 / sqrt(H) of normalised sums
  double epsilon;   // of the normalisation
  const void *children, *places, *weights;         // [B, N, T, M, P], [E, N], [B, N, T]
  const void *transforms, *place_transforms;       // [T, J, P, D], [T, J, E, M * D]
  const void *evidence, *place_evidence;           // [T, J, M * P], [T, J, E]
  const void *bias, *gain, *shift;                 // [J, M * D]; of the normalisation, [M * D]
  void *pose, *alpha, *length;                     // [B, J, M * D]: v of the last step, and alpha that it compared with; |v|, [B, J]
  void* kept;                                      // for the pass back, or null
  const void *grad_pose, *grad_alpha, *grad_length;
  void *grad_children, *grad_weights, *grad_transforms, *grad_place_transforms, *grad_evidence, *grad_place_evidence;
  void *grad_bias, *grad_gain, *grad_shift;
};

namespace {

using RoutingCall = TorchcapsFoldedRouting;

// What one parent does between two passes.
template <typename T>
struct ParentRule {
  const RoutingCall& f;
  const int H = static_cast<int>(f.M * f.D);

  // v from s, and what the next step compares with: `before` is alpha of this step, or null.
  void forward(const T* __restrict s, const T* before, T* __restrict v, T* __restrict next) const {
    if (f.rule == kAgreement) {
      const T factor = squash(dot(s, s));
      const bool adds = before && f.accumulate;
      for (int h = 0; v && h < H; ++h) v[h] = s[h] * factor;
      for (int h = 0; next && h < H; ++h) next[h] = s[h] * factor;
      for (int h = 0; next && adds && h < H; ++h) next[h] += before[h];
    } else if (f.rule == kDirections) {
      const T squared = dot(s, s), factor = squash(squared), direction = T(f.scale) * inverse(squared);
      for (int h = 0; h < H; ++h) {
        if (v) v[h] = s[h] * factor;
        if (next) next[h] = s[h] * direction;
      }
    } else {
      const auto [mean, inverse] = standard(s);
      for (int h = 0; h < H; ++h) {
        const T pose = (s[h] - mean) * inverse * number(f.gain, h, 1) + number(f.shift, h, 0);
        if (v) v[h] = pose;
        if (next) next[h] = pose * T(f.scale);
      }
    }
  }

  // ds from dv and the gradient of what the next step compares with; either may be null. Adds to those of gain and shift.
  void backward(const T* s, const T* dv, const T* dnext, T* __restrict ds, T* dgain, T* dshift) const {
    std::fill_n(ds, H, T(0));
    if (f.rule == kNormalised) {
      if (dv) normalised_back(s, dv, T(1), ds, dgain, dshift);
      if (dnext) normalised_back(s, dnext, T(f.scale), ds, dgain, dshift);
      return;
    }
    if (dv) squash_back(s, dv, ds);
    if (!dnext) return;
    if (f.rule == kAgreement) return squash_back(s, dnext, ds);
    const T shrink = inverse(dot(s, s)), along = dot(s, dnext) * shrink * shrink;
    for (int h = 0; h < H; ++h) ds[h] += T(f.scale) * shrink * (dnext[h] - along * s[h]);
  }

  T norm(const T* v) const { return std::sqrt(dot(v, v)); }

 private:
  // As numerics.negligible: the root of the smallest normal number.
  static constexpr T kLeast = sizeof(T) == 4 ? T(1.0842021724855044e-19) : T(1.4916681462400413e-154);

  static T number(const void* field, int h, T otherwise) { return field ? static_cast<const T*>(field)[h] : otherwise; }
  static T inverse(T squared) {
    const T n = std::sqrt(squared);
    return n > kLeast ? T(1) / n : T(0);
  }
  T squash(T squared) const { return f.constant < 0 ? T(1) : std::sqrt(squared) / (T(f.constant) + squared); }

  // g u + g' <s, u> s / n, with g = n / (c + n^2) and the gradient u.
  void squash_back(const T* s, const T* u, T* __restrict ds) const {
    const T squared = dot(s, s), factor = squash(squared), n = std::sqrt(squared);
    T along = 0;
    if (f.constant >= 0 && n != 0) {
      const T part = T(1) / (T(f.constant) + squared);
      along = part * (2 * T(f.constant) * part - 1) * dot(s, u) / n;
    }
    for (int h = 0; h < H; ++h) ds[h] += factor * u[h] + along * s[h];
  }

  struct Standard {
    T mean, inverse;
  };

  Standard standard(const T* s) const {
    T mean = 0, square = 0;
    for (int h = 0; h < H; ++h) mean += s[h] / H;
    for (int h = 0; h < H; ++h) square += (s[h] - mean) * (s[h] - mean) / H;
    return {mean, T(1) / std::sqrt(square + T(f.epsilon))};
  }

  void normalised_back(const T* s, const T* u, T scale, T* ds, T* dgain, T* dshift) const {
    const auto [mean, inverse] = standard(s);
    T level = 0, along = 0;
    for (int h = 0; h < H; ++h) {
      const T x = (s[h] - mean) * inverse, slope = scale * u[h] * number(f.gain, h, 1);
      level += slope / H, along += slope * x / H;
      if (dgain) dgain[h] += scale * u[h] * x;
      if (dshift) dshift[h] += scale * u[h];
    }
    for (int h = 0; h < H; ++h)
      ds[h] += inverse * (scale * u[h] * number(f.gain, h, 1) - level - (s[h] - mean) * inverse * along);
  }

  T dot(const T* x, const T* y) const {
    constexpr int kSums = 8;  // independent ones, so that no addition waits for the one before
    T sums[kSums] = {};
    int h = 0;
    for (; h + kSums <= H; h += kSums)
      for (int k = 0; k < kSums; ++k) sums[k] += x[h + k] * y[h + k];
    for (; h < H; ++h) sums[h % kSums] += x[h] * y[h];
    for (int width = kSums / 2; width; width /= 2)
      for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
    return sums[0];
  }
};

template <typename T, int Q_>
class FoldedRouting {
  using V = Vec<T>;
  using Pass = FoldedPass<T, Q_>;
  static constexpr int L = Lanes<T>::count;
  static constexpr int64_t kFew = 2;  // examples for which transforms are not transposed
  // The examples of a chunk, for which the transforms are read once: as many as have room in the second cache.
  static constexpr int64_t kExamples = 8, kMostExamples = 32, kNumbers = 1 << 16;
  static constexpr int64_t kTile = 8;

 public:
  explicit FoldedRouting(const RoutingCall& f)
      : f(f), rule{f}, Q(f.M * f.P), H(f.M * f.D), routed(f.steps - !evident()), chunk(chunk_of(f)),
        chunks((f.B + chunk - 1) / chunk), share(T(1) / T(f.J + f.leaky)) {}

  // How many numbers the pass back needs.
  int64_t kept() const { return Fields(*this, f.B, true, nullptr).total; }

  void forward() const {
    share_out(f.threads, chunks, [&](const auto& next) {
      Pass pass = new_pass();
      const std::unique_ptr<V[]> turned(new V[f.D]);
      std::unique_ptr<T[]> own;
      if (!f.kept) own.reset(new T[Fields(*this, chunk, false, nullptr).total]);
      for (int64_t task; (task = next()) < chunks;) {
        const int64_t first = task * chunk, count = std::min(chunk, f.B - first);
        if (f.kept)
          forward_of(pass, first, count, Fields(*this, f.B, true, writable(f.kept)), first, turned.get());
        else
          forward_of(pass, first, count, Fields(*this, chunk, false, own.get()), 0, turned.get());
      }
    });
  }

  void backward() const {
    const Fields fields = Fields(*this, f.B, true, writable(f.kept));
    const int64_t parents = f.B * f.J * H;
    std::unique_ptr<T[]> memory(new T[f.steps * parents + routed * f.B * f.T * f.J * (Q + f.E)]);
    T *ds = memory.get(), *dA = ds + f.steps * parents, *dAe = dA + routed * f.B * f.T * f.J * Q;
    std::atomic_flag adding = ATOMIC_FLAG_INIT;
    share_out(f.threads, chunks, [&](const auto& next) {
      Pass pass = new_pass();
      const std::unique_ptr<V[]> turned(new V[f.D]);
      const int64_t numbers = chunk * f.T * f.J * (Q + f.E) + 2 * chunk * f.J * H;
      std::unique_ptr<T[]> own(new T[numbers + 2 * H]);
      T *dgain = own.get() + numbers, *dshift = dgain + H;
      std::fill_n(dgain, 2 * H, T(0));
      for (int64_t task; (task = next()) < chunks;) {
        const int64_t first = task * chunk;
        backward_of(pass, first, std::min(chunk, f.B - first), fields, ds, dA, dAe, own.get(), dgain, dshift, turned.get());
      }
      while (adding.test_and_set(std::memory_order_acquire)) {
      }
      for (int h = 0; h < H; ++h) {
        if (f.grad_gain) writable(f.grad_gain)[h] += dgain[h];
        if (f.grad_shift) writable(f.grad_shift)[h] += dshift[h];
      }
      adding.clear(std::memory_order_release);
    });
    share_out(f.threads, f.J, [&](const auto& next) {
      for (int64_t j; (j = next()) < f.J;) gradients_of(static_cast<int>(j), fields, ds, dA, dAe);
    });
  }

 private:
  static int64_t chunk_of(const RoutingCall& f) {
    const int64_t most = std::clamp(kNumbers / std::max<int64_t>(f.T * f.J * f.M * f.P, 1), kExamples, kMostExamples);
    // All of nearly the same size, and of whole tiles of examples.
    const int64_t chunks = std::max<int64_t>((f.B + most - 1) / most, std::min(f.threads, f.B));
    const int64_t size = (f.B + chunks - 1) / std::max<int64_t>(chunks, 1), whole = (size + kTile - 1) / kTile * kTile;
    return std::max<int64_t>(whole <= most && chunks > f.threads ? whole : size, 1);
  }

  static T* writable(const void* tensor) { return static_cast<T*>(const_cast<void*>(tensor)); }
  bool evident() const { return f.evidence || f.place_evidence; }
  int64_t size(int64_t examples) const { return examples * f.T * f.J * Q; }

  // The fields of the steps in one piece of memory, each for so many examples: s and alpha of all steps, the even sums of a first
  // step without evidence, and of the steps that compare their queries, sums and partitions.
  struct Fields {
    T *s, *alpha, *even, *even_places, *A, *Ae, *S, *Se, *partition;
    int64_t total, parents, queries, place_queries, partitions;
    bool all;  // whether each step has its own

    Fields(const FoldedRouting& r, int64_t examples, bool all, T* memory) : total(0), all(all) {
      const auto& f = r.f;
      parents = examples * f.J * r.H, queries = r.size(examples), place_queries = examples * f.T * f.J * f.E;
      partitions = all ? examples * f.T * Pass::partition_size(f.N) : 0;
      const int64_t copies = all ? r.routed : std::min<int64_t>(r.routed, 1);
      const auto take = [&](int64_t count) { return memory ? memory + std::exchange(total, total + count) : (total += count, nullptr); };
      s = take(f.steps * parents), alpha = take(f.steps * parents);
      even = take(examples * f.T * r.Q), even_places = take(examples * f.T * f.E);
      A = take(copies * queries), S = take(copies * queries);
      Ae = take(copies * place_queries), Se = take(copies * place_queries);
      partition = take(copies * partitions);
    }

    int64_t of(int64_t step) const { return all ? step : 0; }
  };

  Pass new_pass() const { return Pass(f.N, f.J, Q, f.E, writable(f.places), f.leaky, -1); }

  typename Pass::Child child(int64_t b, int64_t t) const {
    const int64_t at = b * f.N * f.T + t;
    return {writable(f.children) + at * Q, f.weights ? writable(f.weights) + at : nullptr, f.T * int64_t{Q}, f.T};
  }

  // All steps of some examples, whose fields begin at another one of the memory.
  void forward_of(Pass& pass, int64_t first, int64_t count, const Fields& fields, int64_t at, V* turned) const {
    const int64_t pairs = f.T * f.J;
    if (evident())
      for (int64_t b = at; b < at + count; ++b) {
        if (f.evidence)
          std::copy_n(writable(f.evidence), pairs * Q, fields.A + b * pairs * Q);
        else
          std::fill_n(fields.A + b * pairs * Q, pairs * Q, T(0));
        if (f.place_evidence)
          std::copy_n(writable(f.place_evidence), pairs * f.E, fields.Ae + b * pairs * f.E);
        else
          std::fill_n(fields.Ae + b * pairs * f.E, pairs * f.E, T(0));
      }
    for (int64_t step = 0, query = evident() ? 0 : -1; step < f.steps; ++step, ++query) {
      const int64_t now = fields.of(std::max<int64_t>(query, 0)), next = fields.of(query + 1);
      for (int64_t b = 0; query < 0 && b < count; ++b)
        even_sums(first + b, fields.even + (at + b) * f.T * Q, f.place_transforms ? fields.even_places + (at + b) * f.T * f.E : nullptr);
      for (int64_t b = 0; query >= 0 && b < count; ++b)
        for (int64_t t = 0; t < f.T; ++t) {
          const int64_t task = (at + b) * f.T + t;
          T* const Se = f.place_transforms ? fields.Se + now * fields.place_queries + task * f.J * f.E : nullptr;
          T* const partition = fields.partitions ? fields.partition + now * fields.partitions + task * Pass::partition_size(f.N) : nullptr;
          pass.forward(child(first + b, t), fields.A + now * fields.queries + task * f.J * Q, fields.Ae + now * fields.place_queries + task * f.J * f.E,
                       fields.S + now * fields.queries + task * f.J * Q, Se, partition);
        }
      for (int64_t j = 0; j < f.J; ++j) {
        if (query < 0)
          reduce(fields.even + at * f.T * Q, fields.even_places + at * f.T * f.E, 0, j, count, fields.s + step * fields.parents + at * f.J * H);
        else
          reduce(fields.S + now * fields.queries + at * pairs * Q, fields.Se + now * fields.place_queries + at * pairs * f.E, f.J, j, count,
                 fields.s + step * fields.parents + at * f.J * H);
        const bool last = step == f.steps - 1;
        for (int64_t b = 0; b < count; ++b) {
          const int64_t parent = ((at + b) * f.J + j) * H;
          T* const s = fields.s + step * fields.parents + parent;
          if (f.bias)
            for (int h = 0; h < H; ++h) s[h] += writable(f.bias)[j * H + h];
          T* const alpha = fields.alpha + step * fields.parents + parent;
          T* const out = writable(f.pose) + ((first + b) * f.J + j) * H;
          rule.forward(s, step ? alpha : nullptr, last ? out : nullptr, last ? nullptr : alpha + fields.parents);
          if (last && step) std::copy_n(alpha, H, writable(f.alpha) + ((first + b) * f.J + j) * H);
          if (last && f.length) writable(f.length)[(first + b) * f.J + j] = rule.norm(out);
        }
        if (!last)
          expand(fields.alpha + (step + 1) * fields.parents + at * f.J * H, j, count, true, fields.A + next * fields.queries + at * pairs * Q,
                 fields.Ae + next * fields.place_queries + at * pairs * f.E, turned);
      }
    }
  }

  // S_t of one example in a step in which all parents take the same share of each child: place by place, as poses lie.
  void even_sums(int64_t b, T* S, T* Se) const {
    std::fill_n(S, f.T * Q, T(0));
    if (Se) std::fill_n(Se, f.T * f.E, T(0));
    const T* pose = writable(f.children) + b * f.N * f.T * Q;
    const T* weight = f.weights ? writable(f.weights) + b * f.N * f.T : nullptr;
    for (int64_t n = 0; n < f.N; ++n)
      for (int64_t t = 0; t < f.T; ++t, pose += Q) {
        const T part = weight ? *weight++ * share : share;
        for (int q = 0; q < Q; q += L) {
          T* const to = S + t * Q + q;
          store_first<T>(load_first(to, Q - q) + load_first(pose + q, Q - q) * part, to, Q - q);
        }
        for (int64_t k = 0; Se && k < f.E; ++k) Se[t * f.E + k] += part * writable(f.places)[k * f.N + n];
      }
  }

  void backward_of(Pass& pass, int64_t first, int64_t count, const Fields& fields, T* ds, T* dA, T* dAe, T* own, T* dgain, T* dshift, V* turned) const {
    const int64_t pairs = f.T * f.J;
    T *G = own, *Ge = G + count * pairs * Q, *dalpha = Ge + count * pairs * f.E, *flowing = dalpha + count * f.J * H;
    bool adds = false;
    for (int64_t step = f.steps - 1, query = routed - 1; step >= 0; --step, --query) {
      const bool last = step == f.steps - 1;
      T* const s = fields.s + step * fields.parents;
      for (int64_t j = 0; j < f.J; ++j) {
        // What the next step compared with: dalpha is its own gradient, flowing that with what later steps added to it.
        if (!last)
          reduce(dA + (query + 1) * fields.queries + first * pairs * Q, dAe + (query + 1) * fields.place_queries + first * pairs * f.E, f.J, j, count, dalpha);
        for (int64_t b = 0; b < count; ++b) {
          const int64_t parent = ((first + b) * f.J + j) * H, here = (b * f.J + j) * H;
          const T* dv = last && f.grad_pose ? writable(f.grad_pose) + parent : nullptr;
          if (last && f.grad_length) dv = with_length(dv, s + parent, writable(f.grad_length)[(first + b) * f.J + j], flowing + here);
          T* const dnext = last ? nullptr : flowing + here;
          if (dnext) {
            const bool latest = step == f.steps - 2;
            for (int h = 0; h < H; ++h) {
              const T later = latest ? (f.grad_alpha ? writable(f.grad_alpha)[parent + h] : T(0)) : f.rule == kAgreement && f.accumulate ? dnext[h] : T(0);
              dnext[h] = dalpha[here + h] + later;
            }
          }
          rule.backward(s + parent, dv, dnext, ds + step * fields.parents + parent, dgain, dshift);
        }
        expand(ds + step * fields.parents + first * f.J * H, j, count, false, G, Ge, turned);
      }
      for (int64_t b = 0; b < count; ++b)
        for (int64_t t = 0; t < f.T; ++t) {
          const int64_t task = (first + b) * f.T + t, own_task = b * f.T + t, at = (first + b) * f.N * f.T + t;
          T* const du = f.grad_children ? writable(f.grad_children) + at * Q : nullptr;
          T* const da = f.grad_weights ? writable(f.grad_weights) + at : nullptr;
          const T *g = G + own_task * f.J * Q, *ge = f.place_transforms ? Ge + own_task * f.J * f.E : nullptr;
          if (query < 0) {
            pass.uniform_back(child(first + b, t), share, g, ge, du, adds, da);
            continue;
          }
          const int64_t places = query * fields.place_queries + task * f.J * f.E, queries = query * fields.queries + task * f.J * Q;
          pass.backward(child(first + b, t), fields.A + queries, fields.Ae + places, g, ge,
                        fields.partition + query * fields.partitions + task * Pass::partition_size(f.N), du, adds, da, dA + queries,
                        f.E ? dAe + places : nullptr);
        }
      adds = true;
    }
  }

  // dv with the gradient of |v|, which has the direction of v and s, or is 0.
  const T* with_length(const T* dv, const T* s, T slope, T* to) const {
    const T n = rule.norm(s), along = n == 0 ? T(0) : slope / n;
    for (int h = 0; h < H; ++h) to[h] = (dv ? dv[h] : T(0)) + along * s[h];
    return to;
  }

  const T* transform(int64_t t, int64_t j) const { return writable(f.transforms) + (t * f.J + j) * f.P * f.D; }
  const T* place_transform(int64_t t, int64_t j) const { return writable(f.place_transforms) + (t * f.J + j) * f.E * H; }

  // Rows of one pose of some examples: they are so far apart.
  struct PoseRows {
    T* first;
    int64_t step;

    T* operator[](int64_t example) const { return first + example * step; }
  };

  // s_j = sum_t S_tj W_tj of some examples. S is [examples, T, parents, Q], or [examples, T, Q] with parents = 0.
  __attribute__((noinline)) void reduce(T* S, const T* Se, int64_t parents, int64_t j, int64_t count, T* s) const {
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    constexpr std::integral_constant<int, 4> four;
    const int64_t per_type = std::max<int64_t>(parents, 1), at = parents ? j : 0;
    for (int64_t m = 0; m < f.M; ++m) {
      const PoseRows from{S + at * Q + m * f.P, f.T * per_type * Q}, to{s + j * H + m * f.D, f.J * H};
      for (int d = 0; d < f.D;) {
        // Tiles of two vectors are whole; a tile of one may be less.
        const bool wide = f.D - d >= 2 * L;
        for (int64_t b = 0; b < count;) {
          const bool several = count - b >= 4;
          const auto tile = [&](auto n, auto vectors) { reduce_tile<n, vectors>(from, per_type * Q, to, b, d, j); };
          several ? (wide ? tile(four, two) : tile(four, one)) : (wide ? tile(one, two) : tile(one, one));
          b += several ? 4 : 1;
        }
        d += wide ? 2 * L : L;
      }
    }
    if (!f.place_transforms) return;
    for (int64_t b = 0; b < count; ++b)
      for (int64_t t = 0; t < f.T; ++t)
        for (int64_t k = 0; k < f.E; ++k) {
          const T along = Se[((b * f.T + t) * per_type + at) * f.E + k];
          const T* const w = place_transform(t, j) + k * H;
          for (int h = 0; h < H; ++h) s[(b * f.J + j) * H + h] += along * w[h];
        }
  }

  template <int n, int wide>
  __attribute__((always_inline)) void reduce_tile(PoseRows from, int64_t type_step, PoseRows to, int64_t b, int d, int64_t j) const {
    constexpr int chains = n == 1 ? 4 : 1;  // so that no sum waits for the one before
    V sum[n * chains][wide] = {};
    const int D = static_cast<int>(f.D), P = static_cast<int>(f.P);
    for (int64_t t = 0; t < f.T; ++t) {
      const T* const w = transform(t, j) + d;
      const T* S[n];
#pragma GCC unroll 4
      for (int k = 0; k < n; ++k) S[k] = from[b + k] + t * type_step;
      const auto add = [&](int p, int chain) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int h = 0; h < wide; ++h) {
          const V y = wide == 2 ? load_vector(w + p * D + h * L) : load_first(w + p * D, D - d);
#pragma GCC unroll 4
          for (int k = 0; k < n; ++k) sum[k + chain][h] += y * S[k][p];
        }
      };
      int p = 0;
      for (; p + chains <= P; p += chains)
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; ++chain) add(p + chain, chain);
      for (; p < P; ++p) add(p, 0);
    }
#pragma GCC unroll 4
    for (int k = 0; k < n; ++k)
      for (int h = 0; h < wide; ++h) {
        for (int chain = 1; chain < chains; ++chain) sum[k][h] += sum[k + chain][h];
        store_first<T>(sum[k][h], to[b + k] + d + h * L, wide == 2 ? L : D - d);
      }
  }

  // A_tj = W_tj alpha_j, for all types, of some examples; with the evidence or without.
  __attribute__((noinline)) void expand(T* alpha, int64_t j, int64_t count, bool with_evidence, T* A, T* Ae, V* turned) const {
    const int D = static_cast<int>(f.D), P = static_cast<int>(f.P);
    for (int64_t t = 0; t < f.T; ++t) {
      const int64_t pair = t * f.J + j;
      const T* const w = transform(t, j);
      const T* const evidence = with_evidence && f.evidence ? writable(f.evidence) + pair * Q : nullptr;
      for (int p = 0; p < P; p += L) {
        const int there = std::min(L, P - p);
        if (count > kFew) turn(w + p * D, there, turned);
        for (int64_t m = 0; m < f.M; ++m) {
          const PoseRows from{alpha + j * H + m * D, f.J * H}, to{A + pair * Q + m * P + p, f.T * f.J * Q};
          const V start = evidence ? load_first(evidence + m * P + p, there) : V{};
          int64_t b = 0;
          for (; count <= kFew && b < count; ++b) store_first<T>(start + products(w + p * D, there, from[b]), to[b], there);
          const auto tile = [&](auto examples) __attribute__((always_inline)) {
            constexpr int n = examples;
            V sum[n];
            const T* a[n];
#pragma GCC unroll 8
            for (int k = 0; k < n; ++k) a[k] = from[b + k], sum[k] = start;
            for (int d = 0; d < D; ++d)
#pragma GCC unroll 8
              for (int k = 0; k < n; ++k) sum[k] += turned[d] * a[k][d];
#pragma GCC unroll 8
            for (int k = 0; k < n; ++k) store_first<T>(sum[k], to[b + k], there);
          };
          for (; b + kTile <= count; b += kTile) tile(std::integral_constant<int, kTile>{});
          for (; b < count; ++b) tile(std::integral_constant<int, 1>{});
        }
      }
      for (int64_t b = 0; b < count; ++b)
        for (int64_t k = 0; k < f.E; ++k) {
          T sum = with_evidence && f.place_evidence ? writable(f.place_evidence)[pair * f.E + k] : T(0);
          if (f.place_transforms)
            for (int h = 0; h < H; ++h) sum += place_transform(t, j)[k * H + h] * alpha[(b * f.J + j) * H + h];
          Ae[(b * f.T * f.J + pair) * f.E + k] = sum;
        }
    }
  }

  // The inner products of some rows of D numbers with another one.
  V products(const T* rows, int count, const T* other) const {
    const int D = static_cast<int>(f.D);
    V sum[L] = {};
    for (int k = 0; k < count; ++k)
      for (int d = 0; d < D; d += L) sum[k] += load_first(rows + k * D + d, D - d) * load_first(other + d, D - d);
    fold_all<T, L / 2>(sum);
    return sum[0];
  }

  // Some rows of D numbers, transposed: a vector with the numbers d of all rows for each d.
  void turn(const T* from, int rows, V* to) const {
    const int D = static_cast<int>(f.D);
    int d = 0;
    for (; rows == L && d + L <= D; d += L) {
#pragma GCC unroll 16
      for (int k = 0; k < L; ++k) to[d + k] = load_vector(from + k * D + d);
      transpose<T>(to + d);
    }
    for (; d < D; ++d) {
      to[d] = V{};
      for (int k = 0; k < rows; ++k) to[d][k] = from[k * D + d];
    }
  }

  // The gradients of what one parent has for all types: sums over steps and examples.
  void gradients_of(int j, const Fields& fields, const T* ds, const T* dA, const T* dAe) const {
    if (f.grad_bias) {
      T* const to = writable(f.grad_bias) + j * H;
      std::fill_n(to, H, T(0));
      for (int64_t k = 0; k < f.steps * f.B; ++k)
        for (int h = 0; h < H; ++h) to[h] += ds[(k * f.J + j) * H + h];
    }
    for (int64_t t = 0; t < f.T; ++t) {
      const int64_t pair = t * f.J + j;
      if (f.grad_transforms) transform_gradient(t, j, fields, ds, dA);
      const auto add_queries = [&](const void* gradient, const T* field, int64_t numbers) {
        if (!gradient) return;
        T* const to = writable(gradient) + pair * numbers;
        std::fill_n(to, numbers, T(0));
        for (int64_t k = 0; k < routed * f.B; ++k)
          for (int64_t q = 0; q < numbers; ++q) to[q] += field[(k * f.T * f.J + pair) * numbers + q];
      };
      add_queries(f.grad_evidence, dA, Q);
      add_queries(f.grad_place_evidence, dAe, f.E);
      if (!f.grad_place_transforms) continue;
      T* const to = writable(f.grad_place_transforms) + pair * f.E * H;
      std::fill_n(to, f.E * H, T(0));
      each_product(t, j, fields.even_places, fields.Se, dAe, f.E, ds, fields.alpha, [&](const T* along, int64_t along_step, const T* flow, int64_t step) {
        for (int64_t b = 0; b < f.B; ++b, along += along_step, flow += step)
          for (int64_t k = 0; k < f.E; ++k)
            for (int h = 0; h < H; ++h) to[k * H + h] += along[k] * flow[h];
      });
    }
  }

  // Calls work with S_tj and ds_j of each step, and with dA_tj and alpha_j: of the first example, and how far those of the next
  // one are. `even` is whether S_t is that of all parents.
  template <typename Work>
  void each_product(int64_t t, int64_t j, const T* even, const T* S, const T* dA, int64_t numbers, const T* ds, const T* alphas,
                    const Work& work) const {
    const int64_t pairs = f.T * f.J * numbers, parents = f.B * f.J * H, next = f.J * H;
    const int64_t at = (t * f.J + j) * numbers;
    for (int64_t step = 0, query = routed - f.steps; step < f.steps; ++step, ++query) {
      const T* const flow = ds + step * parents + j * H;
      query < 0 ? work(even + t * numbers, f.T * numbers, flow, next) : work(S + query * f.B * pairs + at, pairs, flow, next);
      if (step) work(dA + query * f.B * pairs + at, pairs, alphas + step * parents + j * H, next);
    }
  }

  void transform_gradient(int64_t t, int64_t j, const Fields& fields, const T* ds, const T* dA) const {
    const int D = static_cast<int>(f.D), P = static_cast<int>(f.P);
    T* const to = writable(f.grad_transforms) + (t * f.J + j) * P * D;
    const auto tile = [&](auto rows, auto vectors, int p, int d) {
      constexpr int n = rows, wide = vectors;
      V sum[n][wide] = {};
      each_product(t, j, fields.even, fields.S, dA, Q, ds, fields.alpha,
                   [&](const T* S, int64_t S_step, const T* flow, int64_t step) __attribute__((always_inline)) {
        for (int64_t b = 0; b < f.B; ++b, S += S_step, flow += step)
          for (int64_t m = 0; m < f.M; ++m)
#pragma GCC unroll 2
            for (int h = 0; h < wide; ++h) {
              const V y = wide == 2 ? load_vector(flow + m * D + d + h * L) : load_first(flow + m * D + d, D - d);
#pragma GCC unroll 4
              for (int k = 0; k < n; ++k) sum[k][h] += y * S[m * P + p + k];
            }
      });
      for (int k = 0; k < n; ++k)
        for (int h = 0; h < wide; ++h) store_first<T>(sum[k][h], to + (p + k) * D + d + h * L, wide == 2 ? L : D - d);
    };
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    constexpr std::integral_constant<int, 4> four;
    for (int d = 0; d < D;) {
      const bool pair_of_vectors = D - d >= 2 * L;
      for (int p = 0; p < P;) {
        const bool several = P - p >= 4;
        if (pair_of_vectors)
          several ? tile(four, two, p, d) : tile(one, two, p, d);
        else
          several ? tile(four, one, p, d) : tile(one, one, p, d);
        p += several ? 4 : 1;
      }
      d += pair_of_vectors ? 2 * L : L;
    }
  }

  const RoutingCall& f;
  const ParentRule<T> rule;
  const Size<Q_> Q;
  const int H;
  const int64_t routed, chunk, chunks;
  const T share;
};

// Calls work with a pass or routing for Q numbers of a pose: 0 for any number.
template <typename T, typename Work>
auto for_pose(int64_t Q, const Work& work) {
  if constexpr (std::is_same_v<T, float>) {
    if (Q == 8) return work(std::integral_constant<int, 8>{});
  }
  return work(std::integral_constant<int, 0>{});
}

}  // namespace
