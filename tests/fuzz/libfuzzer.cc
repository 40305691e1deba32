// A fuzzer under libFuzzer. HVD_FUZZ_SEEDS names a folder that gets the seeds before libFuzzer reads it.
#include <filesystem>
#include <fstream>

#include "fuzz.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* folder = std::getenv("HVD_FUZZ_SEEDS")) {
    std::filesystem::create_directories(folder);
    size_t number = 0;
    for (const auto& seed : hvd::fuzz::seeds()) {
      std::ofstream file(std::filesystem::path(folder) / ("seed-" + std::to_string(number++)),
                         std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvd::fuzz::one_input({data, size});
  return 0;
}
