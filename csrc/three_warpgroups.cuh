// The block of the products of conv2d_tile.cuh and scaled_linear.cuh, on compute capability 9.0a: three warpgroups. One
// thread of the last loads, some steps ahead and across tiles; the other two compute, and write their sums in boxes.
#pragma once

#include "hopper.cuh"

namespace sfast {
namespace {

using hopper::kWarpgroup;
constexpr int kComputing = 2;  // warpgroups that compute
constexpr int kWarps = kComputing * kWarpgroup / 32;
constexpr int kBlockThreads = (kComputing + 1) * kWarpgroup;
constexpr int kWarpRows = 16;
constexpr int kStoreColumns = 32;  // of a box: 64 bytes
constexpr int kStoreBytes = kWarpRows * kStoreColumns * 2;
constexpr int kStores = 2;  // boxes of a warp: one is filled while TMA reads the other

constexpr int kMostShared = 227 * 1024;  // bytes of a block
constexpr int kBarrierBytes = 256;       // of these, at most
constexpr int kSharedBytes = kMostShared - kBarrierBytes;

// 65536 registers are 168 for each of 384 threads; 2 * 232 + 40 = 3 * 168.
constexpr int kComputingRegisters = 232;
constexpr int kLoadingRegisters = 40;

}  // namespace
}  // namespace sfast
