#include "emulator.h"

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <ucontext.h>

// The library's own memory, where static shared variables and constants lie; the linker knows its ends.
extern "C" char __ehdr_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));

namespace vf::emulator {
namespace {

constexpr size_t kStack = 256 * 1024;
constexpr int kLanes = 32;
constexpr size_t kGuard = 128;   // bytes behind the dynamic shared memory that nothing may write
constexpr size_t kMostValue = 32;  // bytes that a lane gives to a meeting of its warp

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Copy {
  void* to;
  const void* from;
};

struct Thread {
  Dim3 index;
  int lane = 0, warp = 0;
  State state = State::kDone;
  size_t bytes = 0;         // of the value at the last meeting: what kind of operation it was
  unsigned meetings = 0;
  bool started = false;
  bool waited = false;      // for the former kernel
  ucontext_t context;
  jmp_buf place;
  std::unique_ptr<unsigned char[]> stack;
  std::deque<std::vector<Copy>> copies;  // the last group is still open
};

struct Warp {
  alignas(16) unsigned char values[2][kLanes * kMostValue];
};

struct Machine {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  unsigned char* dynamic = nullptr;
  size_t used = 0;  // bytes of it
  Dim3 grid, block, at;
  Thread* now = nullptr;
  bool watched = false;  // a thread runs that has not waited for the former kernel
  const Kernel* kernel = nullptr;
  std::mt19937 order{1};
  jmp_buf scheduler;
  std::string error;
  size_t live = 0;
};

Machine machine;

struct Constant {
  const void* at;
  size_t bytes;
};
std::vector<Constant> constants;

bool lies_in(const void* at, size_t bytes, const void* begin, size_t size) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(at), from = reinterpret_cast<uintptr_t>(begin);
  return first >= from && first + bytes <= from + size;
}

unsigned long from_environment(const char* name, unsigned long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::strtoul(text, nullptr, 10);
}

[[noreturn]] void leave(State state) {
  machine.watched = false;
  machine.now->state = state;
  _longjmp(machine.scheduler, 1);
}

// Stop until the scheduler goes on with this thread.
void pause(State state) {
  if (_setjmp(machine.now->place) == 0) leave(state);
}

std::string text_of(const Dim3& at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

[[noreturn]] void fail(const std::string& what) {
  if (machine.error.empty()) {
    machine.error = what + ": block " + text_of(machine.at) + ", thread " + text_of(machine.now->index);
  }
  leave(State::kDone);
}

void enter() {
  machine.kernel->call(machine.kernel->body);
  if (!machine.now->waited) fail("a thread that ended without wait_for_former()");
  leave(State::kDone);
}

void resume(Thread& thread) {
  machine.now = &thread;
  if (_setjmp(machine.scheduler) != 0) return;
  machine.watched = !thread.waited;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStack;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, enter, 0);
  setcontext(&thread.context);
}

void prepare(size_t count) {
  while (machine.threads.size() < count) {
    machine.threads.push_back(std::make_unique<Thread>());
    machine.threads.back()->stack = std::make_unique<unsigned char[]>(kStack);
  }
  machine.warps.resize((count + kLanes - 1) / kLanes);
  machine.live = count;
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = *machine.threads[i];
    unsigned rest = static_cast<unsigned>(i) / machine.block.x;
    thread.index = Dim3(static_cast<unsigned>(i) % machine.block.x, rest % machine.block.y, rest / machine.block.y);
    thread.lane = static_cast<int>(i % kLanes);
    thread.warp = static_cast<int>(i / kLanes);
    thread.state = State::kReady;
    thread.meetings = 0;
    thread.started = thread.waited = false;
    thread.copies.assign(1, {});
  }
}

// Lets a warp go on whose lanes have all come to the same operation.
bool release_warp(size_t first) {
  size_t waiting = 0;
  for (size_t i = first; i < first + kLanes; ++i) waiting += machine.threads[i]->state == State::kAtWarp;
  if (waiting < kLanes) return false;
  for (size_t i = first + 1; i < first + kLanes; ++i) {
    if (machine.threads[i]->bytes != machine.threads[first]->bytes) {
      machine.error = "lanes of a warp met in different operations (warp " + std::to_string(first / kLanes) + ")";
      return false;
    }
  }
  for (size_t i = first; i < first + kLanes; ++i) machine.threads[i]->state = State::kReady;
  return true;
}

// Lets the block go on where every thread that still runs has come to the barrier.
bool release_block(size_t count) {
  size_t waiting = 0, done = 0;
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = *machine.threads[i];
    waiting += thread.state == State::kAtBlock;
    done += thread.state == State::kDone;
  }
  if (waiting == 0) return false;
  if (waiting + done < count || done > 0) {
    machine.error = "only " + std::to_string(waiting) + " of " + std::to_string(count) + " threads came to a barrier (" +
                    std::to_string(done) + " had ended, the others wait in an operation of their warp): block " +
                    text_of(machine.at);
    return false;
  }
  for (size_t i = 0; i < count; ++i) machine.threads[i]->state = State::kReady;
  return true;
}

void run_block(size_t count) {
  prepare(count);
  std::memset(machine.dynamic, 0xFF, machine.shared.size() - (machine.dynamic - machine.shared.data()));
  std::vector<size_t> ready;
  while (machine.error.empty()) {
    ready.clear();
    for (size_t i = 0; i < count; ++i) {
      if (machine.threads[i]->state == State::kReady) ready.push_back(i);
    }
    if (ready.empty()) {
      bool moved = false;
      // Some warps wait while others run ahead, as far as barriers let them.
      for (size_t first = 0; first < count; first += kLanes) {
        if (machine.order() % 2 == 0) moved |= release_warp(first);
      }
      for (size_t first = 0; first < count && !moved; first += kLanes) moved = release_warp(first);
      if (!moved && machine.error.empty()) moved = release_block(count);
      if (moved) continue;
      if (!machine.error.empty()) break;
      size_t done = 0;
      for (size_t i = 0; i < count; ++i) done += machine.threads[i]->state == State::kDone;
      if (done == count) {
        const unsigned char* end = machine.dynamic + machine.used;
        if (std::any_of(end, end + kGuard, [](unsigned char one) { return one != 0xFF; })) {
          machine.error = "a block wrote beyond its dynamic shared memory";
          break;
        }
        return;
      }
      machine.error = "an operation of a warp waits for lanes that have ended: block " + text_of(machine.at);
      break;
    }
    std::shuffle(ready.begin(), ready.end(), machine.order);
    for (size_t i : ready) {
      resume(*machine.threads[i]);
      if (!machine.error.empty()) break;
    }
  }
  throw std::runtime_error("emulated kernel: " + machine.error);
}

void apply(const Copy& copy) {
  copy.from == nullptr ? std::memset(copy.to, 0, 16) : std::memcpy(copy.to, copy.from, 16);
}

}  // namespace

const Dim3& thread_index() { return machine.now->index; }
const Dim3& block_index() { return machine.at; }
const Dim3& block_size() { return machine.block; }
const Dim3& grid_size() { return machine.grid; }
int lane() { return machine.now->lane; }
unsigned char* dynamic_shared() { return machine.dynamic; }
int multiprocessors() { return static_cast<int>(from_environment("VOCABFORGE_EMULATED_SMS", 4)); }

void block_barrier() { pause(State::kAtBlock); }

void warp_barrier() {
  machine.now->bytes = 0;
  pause(State::kAtWarp);
}

const void* meet(const void* value, size_t bytes) {
  if (bytes > kMostValue) fail("a value too large for the emulator's warps");
  Thread& own = *machine.now;
  unsigned char* values = machine.warps[own.warp].values[own.meetings++ % 2];
  std::memcpy(values + own.lane * bytes, value, bytes);
  own.bytes = bytes;
  pause(State::kAtWarp);
  return values;
}

void check_aligned(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) fail("an address that is no multiple of " + std::to_string(bytes));
}

// The hardware may copy at once or as late as the wait: the order's seed decides.
void copy_later(void* to, const void* from) {
  if (machine.order() % 2 == 0) {
    apply({to, from});
  } else {
    machine.now->copies.back().push_back({to, from});
  }
}

void commit_copies() { machine.now->copies.emplace_back(); }

void wait_copies(int pending) {
  auto& copies = machine.now->copies;
  while (copies.size() > static_cast<size_t>(pending) + 1) {
    for (const Copy& copy : copies.front()) apply(copy);
    copies.pop_front();
  }
}

void wait_for_former() {
  machine.now->waited = true;
  machine.watched = false;
}

void check_access(const void* at, size_t bytes, bool written) {
  if (!machine.watched) return;
  machine.watched = false;  // what follows touches the emulator's own memory
  const Thread& own = *machine.now;
  const auto in = [&](const void* begin, size_t size) { return lies_in(at, bytes, begin, size); };
  bool fine = in(own.stack.get(), kStack) || in(&own, sizeof(own)) || in(machine.kernel->body, machine.kernel->bytes) ||
              in(machine.shared.data(), machine.shared.size()) ||
              in(machine.warps.data(), machine.warps.size() * sizeof(Warp)) ||
              in(&__ehdr_start, static_cast<size_t>(&_end - &__ehdr_start));
  for (const Constant& one : constants) fine = fine || (!written && in(one.at, one.bytes));
  if (!fine) fail("an access to device memory before wait_for_former()");
  machine.watched = true;
}

void add_constant(const void* at, size_t bytes) { constants.push_back({at, bytes}); }
void forget_constants() { constants.clear(); }

bool dependent_launches() { return from_environment("VOCABFORGE_PDL", 0) == 1; }

void run(Dim3 grid, Dim3 block, size_t shared, const Kernel& kernel) {
  const size_t count = static_cast<size_t>(block.x) * block.y * block.z;
  const size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
  if (count == 0 || count > 1024 || count % kLanes != 0) {
    throw std::runtime_error("emulated kernel: " + std::to_string(count) + " threads a block; whole warps, at most 1024");
  }
  if (blocks == 0 || grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    throw std::runtime_error("emulated kernel: a grid of " + text_of(grid) + " blocks");
  }
  if (shared > kMostShared) {
    throw std::runtime_error("emulated kernel: " + std::to_string(shared) + " bytes of dynamic shared memory, at most " +
                             std::to_string(kMostShared));
  }
  machine.error.clear();
  machine.grid = grid;
  machine.block = block;
  machine.kernel = &kernel;
  machine.order.seed(static_cast<unsigned>(from_environment("VOCABFORGE_EMULATOR_SEED", 1)));
  machine.used = shared;
  machine.shared.resize(shared + 128 + kGuard);
  machine.dynamic = machine.shared.data() + (128 - reinterpret_cast<uintptr_t>(machine.shared.data()) % 128);
  std::vector<size_t> order(blocks);
  for (size_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), machine.order);
  for (size_t i : order) {
    size_t rest = i / grid.x;
    machine.at = Dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(rest % grid.y),
                      static_cast<unsigned>(rest / grid.y));
    run_block(count);
  }
}

}  // namespace vf::emulator

// Kernels are compiled with -fsanitize=thread, without its library: every access to memory comes here first.
extern "C" {
#define VF_WATCH(size)                                                                              \
  void __tsan_read##size(void* at) { vf::emulator::check_access(at, size, false); }                 \
  void __tsan_write##size(void* at) { vf::emulator::check_access(at, size, true); }
VF_WATCH(1)
VF_WATCH(2)
VF_WATCH(4)
VF_WATCH(8)
VF_WATCH(16)
void __tsan_read_range(void* at, size_t bytes) { vf::emulator::check_access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { vf::emulator::check_access(at, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
