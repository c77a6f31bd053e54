"""The emulator finds what it is made to find: each fault is a small kernel of its own, compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ops.kernels_build import KERNELS, load_build

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include "common/portable.cuh"
using namespace vf;

VF_GLOBAL void neighbours(int* out, bool barrier) {
  VF_SHARED int values[64];
  wait_for_former();
  values[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  if (barrier) sync_block();
  out[threadIdx.x] = values[63 - threadIdx.x];
  sync_block();
  values[threadIdx.x] = 0;
}
VF_GLOBAL void half_a_barrier() {
  wait_for_former();
  if (threadIdx.x < 32) sync_block();
}
VF_GLOBAL void early_exit() { wait_for_former(); if (threadIdx.x == 5) return; sync_block(); }
VF_GLOBAL void lost_lane(int* out) {
  wait_for_former();
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = shuffle(1, 0);
}
VF_GLOBAL void misaligned(int* out) { wait_for_former(); store16(reinterpret_cast<char*>(out) + 4, Vec16{}); }
VF_GLOBAL void beyond() { wait_for_former(); dynamic_shared()[64] = 1; sync_block(); }
VF_GLOBAL void copies(const int* in, int* out, bool wait) {
  unsigned char* to = dynamic_shared();
  wait_for_former();
  cp_async16(to + 16 * threadIdx.x, in + 4 * threadIdx.x, threadIdx.x % 2 == 0);
  cp_async_commit();
  if (wait) cp_async_wait<0>();
  sync_block();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = reinterpret_cast<int*>(to)[4 * threadIdx.x + i];
}
VF_GLOBAL void product(const bf16* a, const bf16* b, float* c) {  // a (16, 16), b (8, 16): c = a b^T
  bf16* left = reinterpret_cast<bf16*>(dynamic_shared());
  bf16* right = left + 256;
  wait_for_former();
  for (int i = threadIdx.x; i < 256; i += 32) left[i] = a[i];
  for (int i = threadIdx.x; i < 128; i += 32) right[i] = b[i];
  sync_warp();
  uint32_t fa[4], both[4];
  float sums[4] = {0, 0, 0, 0};
  ldmatrix_x4(fa, left + (lane() % 16) * 16 + lane() / 16 * 8);
  ldmatrix_x4(both, right + (lane() % 8) * 16 + lane() / 8 % 2 * 8);
  const uint32_t fb[2] = {both[0], both[1]};
  mma_16816<bf16>(sums, fa, fb);
  for (int i = 0; i < 4; ++i) c[(lane() / 4 + i / 2 * 8) * 8 + lane() % 4 * 2 + i % 2] = sums[i];
}
struct Early { const int* in; int* out; const char* what; };
VF_GLOBAL void early(Early e) {  // all that may be touched before the wait, and what may not
  VF_SHARED int fixed[32];
  int own[4] = {1, 2, 3, 4};
  int* shared = reinterpret_cast<int*>(dynamic_shared());
  shared[threadIdx.x] = fixed[threadIdx.x] = own[threadIdx.x % 4] + shuffle(1, 0);
  sync_block();
  const auto is = [&](const char* what) { return !std::strcmp(e.what, what) && threadIdx.x == 31; };
  if (is("plain-load")) own[0] = e.in[8];
  if (is("ldg")) own[0] = ldg(e.in + 8);
  if (is("load16")) own[0] = static_cast<int>(load16(e.in + 8).x[0]);
  if (is("store")) e.out[8] = 1;
  if (is("store16")) store16(e.out + 8, Vec16{});
  if (is("atomic")) atomic_add(e.out + 8, 1);
  if (is("copy")) cp_async16(shared, e.in + 8, true);
  if (is("no-wait")) return;
  const int constant = is("constant") ? e.in[0] + static_cast<int>(load16(e.in).x[3]) - 4 : 1;
  if (is("written-constant")) const_cast<int*>(e.in)[0] = 1;
  wait_for_former();
  e.out[threadIdx.x] = e.in[8] - 8 + constant - 1 + (own[0] + shared[threadIdx.x] + fixed[threadIdx.x] > 99);
}

int main(int, char** arguments) {
  const char* name = arguments[1];
  if (!std::strcmp(name, "early")) {
    int* memory = static_cast<int*>(std::aligned_alloc(16, 4096));  // what is static counts as shared memory
    for (int i = 0; i < 256; ++i) memory[i] = i + 1;
    emulator::add_constant(memory, 32);
    try {
      launch(early, 1, 32, 128, nullptr, Early{memory, memory + 256, arguments[2]});
      for (int i = 0; i < 32; ++i) std::printf("%d ", memory[256 + i]);
    } catch (const std::runtime_error& error) {
      std::printf("error: %s\n", error.what());
    }
    return 0;
  }
  static int in[256], out[256];
  for (int i = 0; i < 256; ++i) in[i] = i + 1;
  try {
    if (!std::strcmp(name, "barrier")) launch(neighbours, 1, 64, 0, nullptr, out, true);
    if (!std::strcmp(name, "no-barrier")) launch(neighbours, 1, 64, 0, nullptr, out, false);
    if (!std::strcmp(name, "half-a-barrier")) launch(half_a_barrier, 1, 64, 0, nullptr);
    if (!std::strcmp(name, "early-exit")) launch(early_exit, 1, 64, 0, nullptr);
    if (!std::strcmp(name, "lost-lane")) launch(lost_lane, 1, 32, 0, nullptr, out);
    if (!std::strcmp(name, "misaligned")) launch(misaligned, 1, 32, 0, nullptr, out);
    if (!std::strcmp(name, "beyond")) launch(beyond, 1, 32, 64, nullptr);
    if (!std::strcmp(name, "too-much-shared")) launch(beyond, 1, 32, 200 * 1024, nullptr);
    if (!std::strcmp(name, "copies")) launch(copies, 1, 64, 1024, nullptr, in, out, true);
    if (!std::strcmp(name, "copies-without-wait")) launch(copies, 1, 64, 1024, nullptr, in, out, false);
    if (!std::strcmp(name, "product")) {
      static bf16 a[256], b[128];
      static float c[128];
      for (int i = 0; i < 256; ++i) a[i] = from_float<bf16>(static_cast<float>(i * 7 % 11 - 5));
      for (int i = 0; i < 128; ++i) b[i] = from_float<bf16>(static_cast<float>(i * 5 % 13 - 6));
      launch(product, 1, 32, 1024, nullptr, a, b, c);
      for (int i = 0; i < 16; ++i) for (int j = 0; j < 8; ++j) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += to_float(a[i * 16 + k]) * to_float(b[j * 16 + k]);
        if (sum != c[i * 8 + j]) { std::printf("wrong at %d %d\n", i, j); return 0; }
      }
      std::puts("equal");
      return 0;
    }
  } catch (const std::runtime_error& error) {
    std::printf("error: %s\n", error.what());
    return 0;
  }
  for (int i = 0; i < 256; ++i) std::printf("%d ", out[i]);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("emulator")
    (folder / "program.cpp").write_text(PROGRAM)
    command = [compiler, "-std=c++17", "-O1", "-DVF_EMULATE", f"-I{KERNELS}"]
    one = ["-c", "program.cpp", *load_build()._WATCHED]
    subprocess.run([*command, *one], check=True, cwd=folder)
    both = ["program.o", str(KERNELS / "emulator/emulator.cpp"), "-o", "program"]
    subprocess.run([*command, *both], check=True, cwd=folder)
    return folder / "program"


def said(program: Path, *arguments: str, seed: int = 1) -> str:
    settings = {"VOCABFORGE_EMULATOR_SEED": str(seed)}
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=True, env=settings
    ).stdout


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("half-a-barrier", "32 of 64 threads came to a barrier (32 had ended"),
        ("early-exit", "63 of 64 threads came to a barrier"),
        ("lost-lane", "waits for lanes that have ended"),
        ("misaligned", "no multiple of 16"),
        ("beyond", "beyond its dynamic shared memory"),
        ("too-much-shared", "204800 bytes of dynamic shared memory"),
    ],
)
def test_faults_are_reported(program: Path, name: str, fault: str) -> None:
    assert fault in said(program, name)


def test_a_missing_barrier_shows_under_some_order(program: Path) -> None:
    right = {said(program, "barrier", seed=seed) for seed in range(1, 6)}
    assert right == {" ".join(str(64 - i) if i < 64 else "0" for i in range(256)) + " "}
    assert len({said(program, "no-barrier", seed=seed) for seed in range(1, 6)}) > 1


def test_a_copy_may_be_as_late_as_its_wait(program: Path) -> None:
    copied = [4 * (i // 4) + i % 4 + 1 if i // 4 % 2 == 0 else 0 for i in range(256)]
    right = " ".join(map(str, copied)) + " "
    assert {said(program, "copies", seed=seed) for seed in range(1, 4)} == {right}
    assert right not in {said(program, "copies-without-wait", seed=seed) for seed in range(1, 4)}


def test_matrices_lie_as_the_instructions_want_them(program: Path) -> None:
    assert said(program, "product") == "equal\n"


@pytest.mark.parametrize(
    "what",
    ["plain-load", "ldg", "load16", "store", "store16", "atomic", "copy", "written-constant"],
)
def test_an_access_before_the_wait_is_reported(program: Path, what: str) -> None:
    assert "device memory before wait_for_former(): block (0, 0, 0), thread (31" in said(
        program, "early", what
    )


def test_a_thread_that_never_waits_is_reported(program: Path) -> None:
    assert "thread that ended without wait_for_former()" in said(program, "early", "no-wait")


@pytest.mark.parametrize("what", ["nothing", "constant"])
def test_own_memory_and_constants_may_be_read_before_the_wait(program: Path, what: str) -> None:
    assert said(program, "early", what) == "1 " * 32
