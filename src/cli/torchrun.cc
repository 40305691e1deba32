// Reads torchrun's flags.
#include "cli/torchrun.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace hvd::cli {
namespace {

constexpr long kMany = 1 << 20;

/// -1: no number of 1 or more.
long number(const std::string& text) {
  long value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= 1 && value <= kMany ? value : -1;
}

/// Of this machine, as CUDA_VISIBLE_DEVICES leaves them.
long gpus() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string text = visible;
    if (text.empty() || text == "-1") return 0;
    long count = 1;
    for (const char c : text) count += c == ',' ? 1 : 0;
    return count;
  }
  long count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("nvidia", 0) == 0 && name.size() > 6 &&
        name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++count;
  }
  return count;
}

long processes(const std::string& text) {
  if (text.empty()) return 1;
  const long cpus = std::max(1L, static_cast<long>(std::thread::hardware_concurrency()));
  if (text == "cpu") return cpus;
  if (text == "auto") return gpus() > 0 ? gpus() : cpus;
  if (text == "gpu") {
    if (gpus() > 0) return gpus();
    throw std::invalid_argument("--nproc-per-node gpu: this machine has none");
  }
  if (const long value = number(text); value > 0) return value;
  throw std::invalid_argument("--nproc-per-node '" + text + "': expected a number, auto, gpu or cpu");
}

std::pair<long, long> nodes(const std::string& text) {
  if (text.empty()) return {1, 1};
  const size_t colon = text.find(':');
  const long least = number(text.substr(0, colon));
  const long most = colon == std::string::npos ? least : number(text.substr(colon + 1));
  if (least < 1 || most < least)
    throw std::invalid_argument("--nnodes '" + text + "': expected N or MIN:MAX");
  return {least, most};
}

}  // namespace

void read_torchrun_environment(Torchrun* given) {
  for (auto [text, name] : {std::pair(&given->nnodes, "PET_NNODES"),
                            {&given->nproc_per_node, "PET_NPROC_PER_NODE"},
                            {&given->master_addr, "PET_MASTER_ADDR"},
                            {&given->master_port, "PET_MASTER_PORT"}}) {
    const char* value = std::getenv(name);
    if (text->empty() && value != nullptr) *text = value;
  }
}

long most_nodes(const Torchrun& given) { return nodes(given.nnodes).second; }

std::vector<std::pair<std::string, std::string>> torchrun_options(const Torchrun& given, bool join) {
  std::vector<std::pair<std::string, std::string>> result;
  const bool any = !given.nnodes.empty() || !given.nproc_per_node.empty();
  if (any) {
    const long each = processes(given.nproc_per_node);
    const auto [least, most] = nodes(given.nnodes);
    result.emplace_back("slots_per_host", std::to_string(each));
    if (join) return result;
    // Else the job begins with all that are there.
    if (least == most) result.emplace_back("np", std::to_string(least * each));
    result.emplace_back("min_np", std::to_string(least * each));
    result.emplace_back("max_np", std::to_string(most * each));
    result.emplace_back("torchrun", "true");
  }
  if (join) return result;
  if (!given.master_addr.empty()) result.emplace_back("master_addr", given.master_addr);
  if (!given.master_port.empty()) result.emplace_back("master_port", given.master_port);
  return result;
}

}  // namespace hvd::cli
