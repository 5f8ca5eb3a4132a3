// Vector poses under inner products: what a call has, and how its work is shared out.
#pragma once

#include <algorithm>
#include <vector>

#include "rows.hpp"

namespace {

// What a task has to do: rows, and children of them.
struct Part {
  int64_t row, end;
  int first, last;
};

template <typename T, int P_, int D_>
struct VectorCall : Rows<T> {
  using Base = Rows<T>;
  using Base::blocks, Base::call, Base::I, Base::J, Base::rows, Base::writable;
  const Size<P_> P;
  const Size<D_> D;
  const bool compares, uniform;  // uniform: a child is shared out evenly, and its votes are not needed

  explicit VectorCall(const Call& call)
      : Base(call), P(call.P), D(call.D), compares(call.similarity == kInnerProduct), uniform(!compares && !call.hard && !call.coordinates) {}

  static bool suits(const Call& call) {
    return call.M == 1 && call.similarity != kGaussian && !call.scatter && call.D % (Lanes<T>::count / 2) == 0;
  }

  // Mass and sum; a kernel's Forward adds up some children of some rows.
  template <typename Kernel>
  void moments_by(const Kernel& kernel) const {
    using Forward = typename Kernel::Forward;
    const int64_t parts = child_parts(), numbers = rows * J;
    if (parts == 1) {
      return parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
        const int64_t end = std::min<int64_t>(rows, last * Lanes<T>::count);
        Forward(kernel).children_of({first * Lanes<T>::count, end, 0, I}, writable(call.mass), writable(call.sum));
      });
    }
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T *mass = writable(call.mass), *sum = writable(call.sum);
      if (part > 0) {
        others[part - 1].resize(numbers * (1 + D));
        mass = others[part - 1].data(), sum = mass + numbers;
      }
      Forward(kernel).children_of(children_part(part, parts), mass, sum);
    });
    for (const auto& other : others) {
      add(other.data(), numbers, writable(call.mass));
      add(other.data() + numbers, numbers * D, writable(call.sum));
    }
  }

  // Gradients; a kernel's Backward has where to add those of transforms and coordinates, and where to write those of parents.
  // Children are shared out among threads, or else images, in so many parts.
  template <typename Kernel>
  void backward_by(const Kernel& kernel, int64_t image_parts) const {
    this->clear_gradients(call.sites, call.shared);
    const int64_t parts = call.shared ? 1 : child_parts();
    if (parts > 1) return backward_by_children(kernel, parts);
    backward_by_images(kernel, image_parts);
  }

 private:
  // Among how many tasks the children are shared out; windows share children, so that they share rows out.
  int64_t child_parts() const { return call.sites ? 1 : std::clamp<int64_t>(I / 16, 1, call.threads); }

  Part children_part(int64_t part, int64_t parts) const {
    return {0, rows, static_cast<int>(I * part / parts), static_cast<int>(I * (part + 1) / parts)};
  }

  template <typename Work>
  void each_part(int64_t parts, const Work& work) const {
    parallel_for(call.threads, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) work(part);
    });
  }

  static void add(const T* from, int64_t count, T* to) {
    for (int64_t k = 0; k < count; ++k) to[k] += from[k];
  }

  template <typename Kernel>
  void backward_by_children(const Kernel& kernel, int64_t parts) const {
    const int64_t numbers = compares ? rows * J * D : 0;
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T* parents = writable(call.grad_parents);
      if (part > 0 && compares) {
        others[part - 1].resize(numbers);
        parents = others[part - 1].data();
      }
      typename Kernel::Backward work(kernel, writable(call.grad_transforms), writable(call.grad_coordinates), parents);
      work.children_of(children_part(part, parts));
    });
    for (const auto& other : others) add(other.data(), numbers, writable(call.grad_parents));
  }

  template <typename Kernel>
  void backward_by_images(const Kernel& kernel, int64_t parts) const {
    const int64_t transforms = (call.shared ? 1 : call.I) * J * P * D, coordinates = call.coordinates ? call.I * D : 0;
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T *sums = writable(call.grad_transforms), *offsets = writable(call.grad_coordinates);
      if (part > 0) {
        others[part - 1].resize(transforms + coordinates);
        sums = others[part - 1].data();
        if (coordinates) offsets = sums + transforms;
      }
      typename Kernel::Backward work(kernel, sums, offsets, writable(call.grad_parents));
      const int64_t row = call.images * part / parts * call.windows, end = call.images * (part + 1) / parts * call.windows;
      work.children_of({row, end, 0, I});
    });
    for (const auto& other : others) {
      add(other.data(), transforms, writable(call.grad_transforms));
      add(other.data() + transforms, coordinates, writable(call.grad_coordinates));
    }
  }
};

}  // namespace
