// Runs CUDA kernels on the CPU, one fiber a thread, so that their logic can be tested without a GPU.
//
// Blocks run one after the other, and the threads of a block between two meeting points, each in an order drawn from a
// seed: what is not ordered by a barrier gives other results under other seeds. Found and reported: barriers and warp
// operations that not all threads reach, different operations meeting, misaligned vector accesses, a launch beyond the
// hardware's limits, device memory that a thread touches before it has waited for the former kernel, a thread that never
// waits. Not seen: caches, the memory model between blocks, speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../common/stream.h"

namespace vf::emulator {

struct Dim3 {
  unsigned x, y, z;
  Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

constexpr size_t kMostShared = 163 * 1024;  // dynamic shared memory of a block that compute capability 8.0 allows too

const Dim3& thread_index();
const Dim3& block_index();
const Dim3& block_size();
const Dim3& grid_size();
int lane();
unsigned char* dynamic_shared();
int multiprocessors();

void block_barrier();
void warp_barrier();

// Puts `bytes` of this lane's value where all lanes see it, waits for the warp, and gives lane 0's place.
const void* meet(const void* value, size_t bytes);

template <typename T, typename Read>
auto exchange(const T& value, Read read) {
  return read(static_cast<const T*>(meet(&value, sizeof(T))));
}

void check_aligned(const void* at, size_t bytes);
void copy_later(void* to, const void* from);  // 16 bytes; zeros where `from` is null
void commit_copies();
void wait_copies(int pending);

// Before a thread has waited it may touch its stack, shared memory and the kernel's arguments, and read constants.
void wait_for_former();
void check_access(const void* at, size_t bytes, bool written);
void add_constant(const void* at, size_t bytes);  // memory that no kernel writes, until it is forgotten
void forget_constants();

// A kernel and its arguments.
struct Kernel {
  const void* body;
  size_t bytes;
  void (*call)(const void* body);
};

// Runs all threads of all blocks. Throws std::runtime_error with what a kernel did wrong.
void run(Dim3 grid, Dim3 block, size_t shared, const Kernel& kernel);

// VOCABFORGE_PDL, as it is now.
bool dependent_launches();

}  // namespace vf::emulator
