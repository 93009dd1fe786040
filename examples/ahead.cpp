// A model compiled ahead of time, used from C++:
//
//   jangin compile MODEL.onnx --emit object --name model -o out
//   c++ -std=c++17 -O2 -Iout examples/ahead.cpp out/model.o out/model_threads.o -lpthread -o ahead
//   ./ahead SIZE...        (a number for each size that is known only at run time, such as the batch)
//
// Prints each output's shape and first numbers, for inputs of ones, and the time of a run.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"

namespace {

int64_t sure(int64_t code) {
  if (code < 0) throw std::runtime_error(model_error_text(static_cast<int32_t>(code)));
  return code;
}

// Memory for one input or output of the given sizes, every element of a float input 1.
std::vector<char> filled(int64_t bytes, const std::string &type) {
  std::vector<char> data(static_cast<size_t>(bytes));
  if (type == "f32") {
    auto *numbers = reinterpret_cast<float *>(data.data());
    for (size_t n = 0; n < data.size() / sizeof(float); ++n) numbers[n] = 1.0f;
  }
  return data;
}

void run(const std::vector<int64_t> &sizes, int32_t threads) {
  std::vector<std::vector<char>> memory;
  std::vector<const void *> inputs;
  std::vector<void *> outputs;
  for (int32_t n = 0; n < model_input_count(); ++n) {
    memory.push_back(filled(sure(model_input_bytes(n, sizes.data())), model_input_type(n)));
    inputs.push_back(memory.back().data());
  }
  for (int32_t n = 0; n < model_output_count(); ++n) {
    memory.push_back(filled(sure(model_output_bytes(n, sizes.data())), ""));
    outputs.push_back(memory.back().data());
  }
  std::vector<char> arena(static_cast<size_t>(sure(model_arena_bytes(sizes.data(), threads))));
  auto once = [&] {
    sure(model_run(reinterpret_cast<const model_inputs *>(inputs.data()),
                   reinterpret_cast<const model_outputs *>(outputs.data()), sizes.data(), arena.data(),
                   static_cast<int64_t>(arena.size()), threads));
  };
  once();
  const auto start = std::chrono::steady_clock::now();
  once();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::printf("%s: %.3f ms, %zu bytes of arena\n", model_version(), took.count(), arena.size());
  for (int32_t n = 0; n < model_output_count(); ++n) {
    int64_t shape[MODEL_MAX_RANK];
    const auto rank = sure(model_output_shape(n, sizes.data(), shape));
    std::printf("%s %s [", model_output_name(n), model_output_type(n));
    for (int64_t axis = 0; axis < rank; ++axis) std::printf(axis ? ", %lld" : "%lld", (long long)shape[axis]);
    std::printf("]");
    const int64_t bytes = sure(model_output_bytes(n, sizes.data()));
    for (int64_t i = 0; std::string(model_output_type(n)) == "f32" && i < 5 && 4 * i < bytes; ++i)
      std::printf(" %g", static_cast<const float *>(outputs[static_cast<size_t>(n)])[i]);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char **argv) {
  std::vector<int64_t> sizes;
  for (int n = 1; n < argc; ++n) sizes.push_back(std::atoll(argv[n]));
  if (static_cast<int32_t>(sizes.size()) != model_size_count()) {
    std::fprintf(stderr, "give %d sizes:", (int)model_size_count());
    for (int32_t n = 0; n < model_size_count(); ++n) std::fprintf(stderr, " %s", model_size_name(n));
    std::fprintf(stderr, "\n");
    return 2;
  }
  try {
    if (model_start_threads(2)) throw std::runtime_error("no threads");
    run(sizes, 2);
    model_stop_threads();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
